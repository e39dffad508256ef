"""Recorded arrivals as columns: time, key and run time of each task. Small enough to send to every
worker of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

UNKNOWN = -1
"""The wait of a task without a recorded one."""

_SPREAD = 1 << 31


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Tasks in the order of their arrival. Times are microseconds; each array has one entry for
    each task."""

    at: Ints
    """Times of arrival, ascending."""
    run: Ints
    """Run times."""
    wait: Ints
    """Recorded waits; UNKNOWN where there is none."""
    key: Ints
    """Indices into `keys`."""
    name: Ints
    """Indices into `names`."""
    weight: Floats
    """Weights as submitted."""
    priority: Ints
    keys: tuple[str, ...]
    names: tuple[str, ...] = ("",)
    queue: str = ""
    spread: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """A random number for each task, which chooses the partition of tasks without an ordering key;
    drawn if missing."""

    def __post_init__(self) -> None:
        if len(self.spread) != len(self.at):
            drawn = np.random.default_rng(len(self.at)).integers(
                _SPREAD, size=len(self.at), dtype=np.int64
            )
            object.__setattr__(self, "spread", drawn)

    def __len__(self) -> int:
        return len(self.at)

    @property
    def span(self) -> int:
        """Microseconds from the first arrival to the last."""
        return int(self.at[-1] - self.at[0]) if len(self) else 0

    def part(self, rows: npt.NDArray[Any] | slice) -> Arrivals:
        """Return a part of the tasks. `rows`: a mask, or ascending indices."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return replace(self, **columns)

    def between(self, since: int, until: int | None = None) -> Arrivals:
        """Return the tasks that arrived from `since` on and before `until`, in microseconds after
        the first arrival."""
        if not len(self):
            return self
        begin = int(self.at[0])
        low = int(np.searchsorted(self.at, begin + since))
        high = len(self) if until is None else int(np.searchsorted(self.at, begin + until))
        return self.part(slice(low, high))

    def reordered(self, at: Ints) -> Arrivals:
        """Return the tasks with these times of arrival. Tasks of one instant keep their order."""
        order = np.argsort(at, kind="stable")
        return replace(self.part(order), at=at[order])


_COLUMNS = tuple(f.name for f in fields(Arrivals) if f.name not in ("keys", "names", "queue"))


def arrivals_of(
    at: npt.ArrayLike,
    run: npt.ArrayLike,
    keys: Sequence[str],
    wait: npt.ArrayLike | None = None,
    weight: npt.ArrayLike | None = None,
    priority: npt.ArrayLike | None = None,
    names: Sequence[str] | None = None,
) -> Arrivals:
    """Make arrivals from plain columns in any order. `keys` and `names` have a text for each
    task."""
    count = len(keys)
    times = np.asarray(at, np.int64)
    known_keys, key = _numbered(keys)
    known_names, name = _numbered(names or [""] * count)
    rows = Arrivals(
        at=times,
        run=np.maximum(np.asarray(run, np.int64), 0),
        wait=np.full(count, UNKNOWN, np.int64) if wait is None else np.asarray(wait, np.int64),
        key=key,
        name=name,
        weight=np.ones(count) if weight is None else np.asarray(weight, np.float64),
        priority=np.full(count, 5, np.int64)
        if priority is None
        else np.asarray(priority, np.int64),
        keys=known_keys,
        names=known_names,
    )
    return rows.reordered(times)


def _numbered(texts: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """Return the different texts in their order, and for each text its index among them.

    An array of texts in NumPy would need memory for the longest text in each place.
    """
    known = tuple(sorted(set(texts)))
    index = {text: at for at, text in enumerate(known)}
    return known, np.fromiter((index[text] for text in texts), np.int64, len(texts))
