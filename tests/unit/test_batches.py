"""The size of batches that a server may refuse, and the times at which refused entries are tried
again."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from fairlead.core.batches import (
    FEWEST_GOOD,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MOST_GOOD,
    BatchSize,
    Refusal,
    Retries,
)

MOST = 1000


def write(size: BatchSize, limit: int, entries: int) -> tuple[int, int]:
    """Write entries to a server that takes at most `limit` at once; return how many writes it
    accepted and refused."""
    accepted = refused = 0
    size.begin()
    while entries:
        count = min(entries, size.now)
        if count > limit:
            size.refused(count)
            refused += 1
        else:
            size.accepted(count)
            accepted += 1
            entries -= count
    return accepted, refused


@pytest.mark.parametrize("seed", range(20))
def test_a_lasting_limit_is_learnt_and_costs_few_further_refusals(seed: int) -> None:
    draw = random.Random(seed)
    size, limit = BatchSize(MOST), draw.randint(1, MOST)
    _, first = write(size, limit, MOST)
    assert first <= math.log2(MOST) + 2
    assert limit // 2 <= size.now <= 2 * limit
    accepted = refused = 0
    for _ in range(5000):
        more = write(size, limit, draw.randint(1, 2 * MOST))
        accepted, refused = accepted + more[0], refused + more[1]
    # Each refused doubling needs twice as many full batches as the one before.
    assert refused <= 2 * math.log2(MOST_GOOD / FEWEST_GOOD) + 2 * accepted / MOST_GOOD + 10


@pytest.mark.parametrize("seed", range(20))
def test_the_size_grows_back_once_the_limit_is_gone(seed: int) -> None:
    draw = random.Random(seed)
    size = BatchSize(MOST)
    for _ in range(draw.randint(1, 50)):
        write(size, draw.randint(1, MOST), draw.randint(1, MOST))
        assert 1 <= size.now <= MOST
    full = 0
    while size.now < MOST:
        size.begin()
        size.accepted(size.now)
        full += 1
    assert full <= MOST_GOOD + FEWEST_GOOD * math.log2(MOST)


def test_batches_that_are_not_full_say_nothing_about_a_greater_size() -> None:
    size = BatchSize(MOST)
    write(size, 30, MOST)
    learnt = size.now
    for _ in range(10 * MOST_GOOD):
        write(size, MOST, learnt - 1)
    assert size.now == learnt


@pytest.mark.parametrize("place", [0, 1, 417, 998, 999])
def test_one_entry_that_is_too_large_leaves_the_size_as_it_was(place: int) -> None:
    size, done, writes = BatchSize(MOST), 0, 0
    size.begin()
    while done < MOST:
        count, writes = min(MOST - done, size.now), writes + 1
        if done <= place < done + count:
            size.refused(count)
            done += count == 1
        else:
            size.accepted(count)
            done += count
    size.begin()
    assert size.now == MOST
    assert writes <= 2 * math.log2(MOST) + 2


def test_a_refused_entry_is_tried_again_after_growing_pauses() -> None:
    retries, now = Retries[str](), 0.0
    refusal = Refusal("end", ValueError(), now)
    retries.put(refusal, now)
    tries = [0.0]
    for _ in range(10):
        assert retries.take(retries.next_at - 0.001) is None
        now = retries.next_at
        assert retries.take(now) is refusal
        tries.append(now)
        refusal.times += 1
        retries.put(refusal, now)
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses == [min(FIRST_PAUSE * 2**n, LONGEST_PAUSE) for n in range(10)]


def test_a_slow_refusal_is_tried_again_seldom() -> None:
    retries = Retries[str]()
    retries.put(Refusal("end", ValueError(), 0.0), 0.0, took=30.0)
    assert retries.next_at == 300.0


def test_entries_are_tried_a_last_time_and_not_again() -> None:
    retries = Retries[int]()
    for n in range(5):
        retries.put(Refusal(n, ValueError(), 0.0), 0.0)
    retries.try_last(0.5)
    for n in range(5):
        refusal = retries.take(0.5)
        assert refusal is not None and refusal.entry == n
        retries.put(refusal, 0.5)
    assert retries.next_at == math.inf and retries.take(1e9) is None
    assert [refusal.entry for refusal in retries] == [0, 1, 2, 3, 4]
    assert retries.clear() == [0, 1, 2, 3, 4] and len(retries) == 0
