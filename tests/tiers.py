"""The two tiers of the tests, and the rules by which a test belongs to one.

`make test` runs what is not marked `full` or `spark`, with fixed seeds; `make test-all` runs
everything, with new seeds. A test is marked `full` for one of these reasons, and says which:

- **the matrix**: a behaviour of the engine, which `make test` shows on SQLite, over the other
  stores and channels (`matrix`). What a store or a channel itself promises is in its contract
  suite, and a test marked `smoke` runs over the whole matrix in both tiers.
- **seeds**: a simulation or a property with other seeds than the first few (`seeds`), or with more
  examples (`examples`).
- **an outage**: a server of its own is killed and comes back, in the server's time.
- **a long run**: a claim of size or of duration, whose mechanism a shorter test shows.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

FULL = pytest.mark.full
"""Mark of what only `make test-all` runs, with one of the reasons above."""

_NEW_SEEDS = "FAIRLEAD_NEW_SEEDS"
_FIXED_SEED = 20260


def choose(new_seeds: bool) -> None:
    """Set seeds and numbers of examples for this process and those that it starts."""
    os.environ[_NEW_SEEDS] = str(int(new_seeds))
    settings.register_profile("new seeds", deadline=None, print_blob=True)
    settings.register_profile(
        "fixed seeds", deadline=None, print_blob=True, derandomize=True, max_examples=50
    )
    settings.load_profile("new seeds" if new_seeds else "fixed seeds")


def has_new_seeds() -> bool:
    """Whether this run looks for what no run has looked at yet."""
    return os.environ.get(_NEW_SEEDS) == "1"


def seed() -> int:
    """Return a seed, below 2**30: FAIRLEAD_SEED, else a new one or always the same."""
    if named := os.environ.get("FAIRLEAD_SEED"):
        return int(named)
    return random.SystemRandom().randrange(1 << 30) if has_new_seeds() else _FIXED_SEED


def examples(count: int) -> int:
    """Return how many examples of a property to try: `count` with new seeds, else a tenth."""
    return count if has_new_seeds() else max(10, count // 10)


def matrix(first: Any, *others: Any) -> list[Any]:
    """Return parameters of which only the first is in both tiers."""
    return [first, *(pytest.param(other, marks=FULL("the matrix")) for other in others)]


def seeds(count: int | Iterable[int], few: int) -> list[Any]:
    """Return seeds of which only the first few are in both tiers."""
    found = list(range(count) if isinstance(count, int) else count)
    return [*found[:few], *(pytest.param(each, marks=FULL("seeds")) for each in found[few:])]
