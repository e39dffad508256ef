"""Who stands aside for whom, and how often it is asked."""

from __future__ import annotations

from fairlead.core.fair.backlog import Backlog, Timing, Write
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import Passes
from fairlead.core.triggers.evictions import FIRST_PAUSE, LONGEST_PAUSE, Aside, StandAside
from fairlead.core.triggers.table import Held
from fairlead.model import LaneRecord, Trigger


def full_backlog(capacity: int = 100) -> Backlog:
    """Memory holds its capacity, and the store as much again."""
    backlog = Backlog(1, LaneRecord(), Passes(Counters()), capacity, Timing(), is_new=True)
    triggers = [
        Trigger(f"t{n}", 1, "q", 0, "work", 5, f"k{n % 4}", 1.0, None, seq=n)
        for n in range(2 * capacity)
    ]
    write = backlog.place(triggers)
    assert isinstance(write, Write)
    backlog.written(write)
    return backlog


def looked(backlog: Backlog, aside: StandAside, *columns: Held, now: float) -> Aside | None:
    assert aside.is_due(backlog, now)
    return aside.choose(backlog, columns, now)


def test_nobody_stands_aside_while_enough_may_run() -> None:
    backlog, aside = full_backlog(), StandAside()
    held = Held(backlog.loaded()[:50], taken=0)
    assert (
        looked(backlog, aside, held, now=1.0) is None
    )  # the first look learns how fast the limits are
    assert looked(backlog, aside, held, now=2.0) is None


def test_nobody_stands_aside_for_what_is_in_memory_already() -> None:
    backlog, aside = (
        Backlog(1, LaneRecord(), Passes(Counters()), 10, Timing(), is_new=True),
        StandAside(),
    )
    backlog.place(
        [Trigger(f"t{n}", 1, "q", 0, "work", 5, "k", 1.0, None, seq=n) for n in range(10)]
    )
    assert not aside.is_due(backlog, 1.0)
    assert aside.look_at is None


def test_the_first_of_each_column_are_carried_on_and_the_rest_goes_behind() -> None:
    backlog, aside = full_backlog(), StandAside()
    loaded = backlog.loaded()
    columns = [Held(loaded[:90], taken=0), Held(loaded[90:], taken=0)]
    assert looked(backlog, aside, *columns, now=1.0) is None
    chosen = looked(backlog, aside, *columns, now=2.0)
    assert chosen is not None
    assert len(chosen.carried) == len(loaded) // 4
    assert set(chosen.carried) >= {*loaded[:10], *loaded[90:]}
    assert sorted([*chosen.carried, *chosen.behind], key=lambda t: t.level or (0, 0)) == loaded


def test_what_a_limit_lets_through_soon_counts_as_what_may_run() -> None:
    backlog, aside = full_backlog(), StandAside()
    column = Held(backlog.loaded(), taken=2)
    assert looked(backlog, aside, column, now=1.0) is None
    assert looked(backlog, aside, column, now=2.0) is None  # 2 a second: 10 of 100 within 5 seconds
    slower = Held(backlog.loaded(), taken=1)
    assert looked(backlog, aside, slower, now=3.0) is not None


def test_looks_become_rare_while_standing_aside_is_not_paid_for() -> None:
    backlog, aside = full_backlog(), StandAside()
    column = Held(backlog.loaded(), taken=0)
    now, pauses = 1.0, []
    looked(backlog, aside, column, now=now)
    for _ in range(12):
        before = now
        aside.is_due(backlog, now)
        assert aside.look_at is not None
        now = aside.look_at
        assert looked(backlog, aside, column, now=now) is not None
        pauses.append(round(now - before, 6))
    assert pauses[0] == FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    aside.ran = 25  # of the 100 that stood aside
    aside.is_due(backlog, now)
    looked(backlog, aside, column, now=aside.look_at or 0.0)
    before = aside.look_at or 0.0
    aside.is_due(backlog, before)
    assert round((aside.look_at or 0.0) - before, 6) == FIRST_PAUSE
