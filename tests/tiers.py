"""The two tiers of the tests, and the rules by which a test belongs to one.

`make test` decides: it runs every test without the mark `nightly`, with fixed seeds, Spark's tests
among them. `make test-nightly` runs the others, with new seeds.

A test has the mark `nightly` for one of these reasons, which it names:

- **the matrix**: a behaviour of the engine, which `make test` tests on SQLite, on the other
  stores and channels (`matrix`). The contract suites test the promises of each store and channel
  themselves, and a test marked `smoke` runs over the whole matrix in `make test` too.
- **seeds**: a simulation or a property with other seeds than the first few (`seeds`), or with more
  examples (`examples`).
- **a slow start**: the test needs a Cassandra, a Kafka or a Spark with settings of its own, which
  starts for tens of seconds.
- **an outage**: the test kills its own server and waits until the server is back.
- **a long run**: a promise about large numbers or long times; a shorter test covers its mechanism.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from hypothesis import settings

NIGHTLY = pytest.mark.nightly
"""Mark of the tests that only `make test-nightly` runs, with one of the reasons above."""

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
    """Return whether this run uses new seeds."""
    return os.environ.get(_NEW_SEEDS) == "1"


def seed() -> int:
    """Return the seed, below 2**30: $FAIRLEAD_SEED if set, else a random one with new seeds, else the
    fixed one."""
    if named := os.environ.get("FAIRLEAD_SEED"):
        return int(named)
    return random.SystemRandom().randrange(1 << 30) if has_new_seeds() else _FIXED_SEED


def examples(count: int) -> int:
    """Return how many examples of a property to try: `count` with new seeds, else a quarter."""
    return count if has_new_seeds() else max(10, count // 4)


def worlds(count: int) -> int:
    """Return how many seeds one test of a simulation tries: `count` with new seeds, else a quarter."""
    return count if has_new_seeds() else max(1, count // 4)


def block(number: int, size: int) -> range:
    """Return the seeds of the test with this number, each of which tries `size` seeds."""
    first = seed() + number * size
    return range(first, first + size)


def matrix(first: Any, *others: Any) -> list[Any]:
    """Return parameters of which only the first is in `make test` too."""
    return [first, *(pytest.param(other, marks=NIGHTLY("the matrix")) for other in others)]


def seeds(few: int) -> list[Any]:
    """Return the numbers of a few seeds, and of eight more that only `make test-nightly` tries."""
    more = [pytest.param(number, marks=NIGHTLY("seeds")) for number in range(few, few + 8)]
    return [*range(few), *more]
