"""The counters of passes are exact for the keys furthest ahead, and bounded in memory."""

from __future__ import annotations

from random import Random

from fairlead.core.levels.counters import Counters


def test_the_keys_furthest_ahead_stay_exact_and_the_others_are_dropped() -> None:
    counters, passes = Counters(100), [*range(1, 1001)]
    Random(1).shuffle(passes)
    for pass_ in passes:
        counters.put(f"key {pass_}", pass_, 0)
        assert len(counters) <= 100
    assert counters.heaviest(50) == [(f"key {n}", n) for n in range(1000, 950, -1)]


def test_keys_that_the_virtual_time_has_passed_make_room_first() -> None:
    counters = Counters(100)
    for number in range(1000):
        counters.put(f"key {number}", number + 60, number)
    assert [counters.next_pass(f"key {n}") for n in range(941, 1000)] == [*range(1001, 1060)]
