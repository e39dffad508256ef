"""The next passes of tenants are exact for those furthest ahead, and bounded in memory."""

from __future__ import annotations

from random import Random

from fairlead.core.levels.levels import Levels


def test_the_tenants_furthest_ahead_stay_exact_and_the_others_are_dropped() -> None:
    levels, passes = Levels(1, most=100), [*range(2, 1002)]
    Random(1).shuffle(passes)
    for pass_ in passes:
        levels.resume(f"key {pass_}", pass_)
        assert len(levels._next) <= 100
    assert levels.next_passes(50) == [(f"key {n}", n) for n in range(1001, 951, -1)]


def test_tenants_that_the_virtual_time_has_passed_make_room_first() -> None:
    levels = Levels(1, most=100)
    for number in range(1000):
        levels.virtual_time = max(1, number)
        levels.resume(f"key {number}", number + 60)
    kept = dict(levels.next_passes(1000))
    assert [kept[f"key {n}"] for n in range(941, 1000)] == [*range(1001, 1060)]
