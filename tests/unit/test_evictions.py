"""Evictions: which triggers leave memory, and how often this is checked."""

from __future__ import annotations

from fairlead.core.fair.backlog import Backlog
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import Passes
from fairlead.core.fair.steps import BacklogWrite, Timing
from fairlead.core.triggers.evictions import FIRST_PAUSE, LONGEST_PAUSE, Eviction, Evictions
from fairlead.core.triggers.table import Held
from fairlead.model import LaneRecord
from tests.builders import trigger


def full_backlog() -> Backlog:
    """Return a backlog with full memory and as many entries only in the store."""
    backlog = Backlog(1, LaneRecord(), Passes(Counters()), 100, Timing(), is_new=True)
    triggers = [trigger(n, key=f"k{n % 4}") for n in range(200)]
    write = backlog.add(triggers)
    assert isinstance(write, BacklogWrite)
    backlog.written(write)
    return backlog


def choose_when_due(
    backlog: Backlog, evictions: Evictions, *columns: Held, now: float
) -> Eviction | None:
    assert evictions.is_due(backlog, now)
    return evictions.choose(backlog, columns, now)


def test_nothing_is_evicted_while_enough_triggers_may_run() -> None:
    backlog, evictions = full_backlog(), Evictions()
    held = Held(backlog.loaded()[:50], taken=0)
    assert (
        choose_when_due(backlog, evictions, held, now=1.0) is None
    )  # the first check measures the rates of the limits
    assert choose_when_due(backlog, evictions, held, now=2.0) is None


def test_nothing_is_evicted_while_the_whole_backlog_is_in_memory() -> None:
    backlog, evictions = (
        Backlog(1, LaneRecord(), Passes(Counters()), 10, Timing(), is_new=True),
        Evictions(),
    )
    backlog.add([trigger(n, key="k") for n in range(10)])
    assert not evictions.is_due(backlog, 1.0)
    assert evictions.check_at is None


def test_the_first_triggers_of_each_column_stay_in_memory_and_the_rest_is_evicted() -> None:
    backlog, evictions = full_backlog(), Evictions()
    loaded = backlog.loaded()
    columns = [Held(loaded[:90], taken=0), Held(loaded[90:], taken=0)]
    assert choose_when_due(backlog, evictions, *columns, now=1.0) is None
    chosen = choose_when_due(backlog, evictions, *columns, now=2.0)
    assert chosen is not None
    assert len(chosen.kept) == len(loaded) // 4
    assert set(chosen.kept) >= {*loaded[:10], *loaded[90:]}
    assert sorted([*chosen.kept, *chosen.evicted], key=lambda t: t.level or (0, 0)) == loaded


def test_checks_become_rare_while_evictions_do_not_pay() -> None:
    backlog, evictions = full_backlog(), Evictions()
    column = Held(backlog.loaded(), taken=0)
    now, pauses = 1.0, []
    choose_when_due(backlog, evictions, column, now=now)
    for _ in range(12):
        before = now
        evictions.is_due(backlog, now)
        assert evictions.check_at is not None
        now = evictions.check_at
        assert choose_when_due(backlog, evictions, column, now=now) is not None
        pauses.append(round(now - before, 6))
    assert pauses[0] == FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    evictions.ran = 25  # of 100 evicted triggers
    evictions.is_due(backlog, now)
    choose_when_due(backlog, evictions, column, now=evictions.check_at or 0.0)
    before = evictions.check_at or 0.0
    evictions.is_due(backlog, before)
    assert round((evictions.check_at or 0.0) - before, 6) == FIRST_PAUSE
