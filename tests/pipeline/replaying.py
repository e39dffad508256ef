"""Arrivals for the tests of replay: from plain lists, in seconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairlead.clock import MICROS
from fairlead.lab.policies.arrivals import Arrivals, arrivals_of
from fairlead.lab.policies.virtual import VirtualSchedule


def arrivals(*tasks: tuple[float, float, str], waits: Sequence[float] | None = None) -> Arrivals:
    """Return arrivals of tasks given by (arrival in seconds, run time in seconds, key), in any order."""
    return arrivals_of(
        at=[round(at * MICROS) for at, _, _ in tasks],
        run=[round(run * MICROS) for _, run, _ in tasks],
        keys=[key for _, _, key in tasks],
        wait=None if waits is None else [round(wait * MICROS) for wait in waits],
    )


def schedule(*tasks: tuple[float, float, float, int]) -> VirtualSchedule:
    """Return a schedule of tasks given by (arrival, start, run time, number of the key), in seconds."""
    at, start, run, key = (np.array(column, float) for column in zip(*tasks, strict=True))
    return VirtualSchedule(
        *((times * MICROS).astype(np.int64) for times in (at, start, run)), key.astype(np.int64)
    )
