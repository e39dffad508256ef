"""Samples that are similar to a record, by resampled users. Intervals need many samples, and one
record is only one.

Source: Zakay and Feitelson, "Workload resampling for performance evaluation of parallel job
schedulers" (2013).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlead.clock import MICROS
from fairlead.lab.policies.arrivals import Arrivals, Ints

WEEK = 7 * 86_400 * MICROS
COPY = "\x1f"
"""Separator between a key and the number of its copy; no key that people write has it."""


def original_key(key: str) -> str:
    """Return the key of which `key` is a copy, or `key` itself."""
    return key.partition(COPY)[0]


def resampled(arrivals: Arrivals, seed: int, week: int = WEEK) -> Arrivals:
    """Draw as many keys as there are, with replacement, each with all its tasks; a key drawn again
    becomes a key of its own. If the record has two whole weeks or more, each week of a drawn key is
    one of its weeks at random, at the same hours, which keeps daily and weekly cycles. A draw
    without any task is repeated."""
    random = np.random.default_rng(seed)
    drawn = _drawn(arrivals, random, week)
    while not len(drawn):
        drawn = _drawn(arrivals, random, week)
    return drawn


def _drawn(arrivals: Arrivals, random: np.random.Generator, week: int) -> Arrivals:
    present = np.unique(arrivals.key)
    whole = arrivals.span // week
    weeks = -(-(arrivals.span + 1) // week)
    begin = int(arrivals.at[0])
    rows_of = np.split(
        np.argsort(arrivals.key, kind="stable"), np.cumsum(np.bincount(arrivals.key))[:-1]
    )
    rows: list[Ints] = []
    shifts: list[Ints] = []
    keys: list[Ints] = []
    names: list[str] = []
    drawn: dict[int, int] = {}
    for key in random.choice(present, size=len(present)).tolist():
        drawn[key] = drawn.get(key, 0) + 1
        own = rows_of[key]
        source = random.integers(whole, size=weeks) if whole > 1 else np.arange(weeks)
        of_week = (arrivals.at[own] - begin) // week
        for to, of in enumerate(source.tolist()):
            taken = own[of_week == of]
            rows.append(taken)
            shifts.append(np.full(len(taken), (to - of) * week, np.int64))
            keys.append(np.full(len(taken), len(names), np.int64))
        names.append(arrivals.keys[key] + (f"{COPY}{drawn[key]}" if drawn[key] > 1 else ""))
    taken, shift = np.concatenate(rows), np.concatenate(shifts)
    at = arrivals.at[taken] + shift
    kept = at <= int(arrivals.at[-1])
    made = replace(arrivals.part(taken), key=np.concatenate(keys), keys=tuple(names)).part(kept)
    return made.reordered(at[kept])
