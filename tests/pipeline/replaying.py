"""Arrivals for the tests of replay: from plain lists, in seconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairlead.clock import MICROS
from fairlead.lab.policies.arrivals import Arrivals, arrivals_of
from fairlead.lab.policies.virtual import VirtualSchedule


def arrivals(*tasks: tuple[float, float, str], waits: Sequence[float] | None = None) -> Arrivals:
    """(seconds when it came, seconds it ran, key) of each, in any order."""
    return arrivals_of(
        at=[round(at * MICROS) for at, _, _ in tasks],
        run=[round(run * MICROS) for _, run, _ in tasks],
        keys=[key for _, _, key in tasks],
        wait=None if waits is None else [round(wait * MICROS) for wait in waits],
    )


def schedule(*tasks: tuple[float, float, float, int]) -> VirtualSchedule:
    """(seconds when it came, when it started, how long it ran, number of its key) of each."""
    at, start, run, key = (np.array(column, float) for column in zip(*tasks, strict=True))
    return VirtualSchedule(
        *((times * MICROS).astype(np.int64) for times in (at, start, run)), key.astype(np.int64)
    )
