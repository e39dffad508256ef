"""Each kind of incident is found in hand-made minutes, and none in quiet ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.incidents.detector import Rules
from fairlead.pipeline.jobs.incidents import IncidentRow, incidents
from fairlead.pipeline.models import ATTEMPTS, BACKLOG, INCIDENTS, SERVICE, TENANT_SHARE
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import at, attempt
from tests.pipeline.silver_rows import served, waited
from tests.pipeline.tables_by_hand import MemoryTables, row, rows_of
from tests.tiers import examples


def found(lake: Warehouse, tables: MemoryTables, **of: Any) -> list[IncidentRow]:
    return incidents(lake, tables, SYSTEM_CLOCK, Rules(), **of)


def quiet(*minutes: int) -> list[dict[str, Any]]:
    """Return minutes in which a key waits for a short time and is served."""
    return [waited(minute, "a", arrived=1, claimed=1, depth_min=0) for minute in minutes]


def test_a_queue_without_claims_for_minutes_stalls(lake: Warehouse) -> None:
    stalled = [
        waited(minute, key, depth_min=2, depth_end=2, arrived=1)
        for minute in range(10, 15)
        for key in "ab"
    ]
    tables = MemoryTables({BACKLOG.name: [*quiet(5, 9, 15, 40), *stalled]})
    [incident] = found(lake, tables)
    assert (
        incident.kind,
        incident.queue,
        incident.subject,
        incident.start_at,
        incident.end_at,
    ) == (
        "stall",
        "q",
        "*",
        at(600),
        at(900),
    )
    assert (incident.is_over, incident.keys_hit, incident.tasks_delayed) == (True, 2, 4 + 10)
    assert incident.extra_wait_us == 5 * 4 * 60_000_000, (
        "no task waits in the median minute of the queue"
    )


def test_a_stall_in_the_last_known_minutes_is_open(lake: Warehouse) -> None:
    [incident] = found(
        lake,
        MemoryTables(
            {BACKLOG.name: [waited(minute, "a", depth_min=5) for minute in range(50, 60)]}
        ),
    )
    assert not incident.is_over and incident.end_at == at(3600)


def test_a_key_with_far_more_tasks_than_usual_and_than_others_floods(lake: Warehouse) -> None:
    rows = [waited(minute, "a", arrived=10, claimed=10) for minute in range(60)]
    rows += [waited(minute, "b", arrived=500, claimed=9, depth_end=400) for minute in (20, 24)]
    rows += [
        waited(40, "c", arrived=99, claimed=9),
        waited(41, "d", arrived=150),
        waited(41, "e", arrived=150, claimed=1),
    ]
    [incident] = found(lake, MemoryTables({BACKLOG.name: rows}))
    assert (incident.kind, incident.subject, incident.start_at, incident.end_at) == (
        "flood",
        "b",
        at(1200),
        at(1500),
    )
    assert incident.keys_hit == 2 and incident.tasks_delayed == 2 + 1000 + 50


def starving(*minutes: int, key: str = "b") -> list[dict[str, Any]]:
    """Return minutes in which the tables mark a key as starved."""
    of = {"window_s": 60, "queue": "q", "fairness_key": key, "starved": True}
    return [row(TENANT_SHARE, window_start=at(60 * minute), **of) for minute in minutes]


def test_keys_do_not_starve_while_the_whole_queue_stalls(lake: Warehouse) -> None:
    stalled = [
        waited(minute, key, depth_min=3, depth_end=3) for minute in range(10, 40) for key in "abc"
    ]
    marked = [each for key in "abc" for each in starving(*range(11, 40), key=key)]
    backlog = [*quiet(5, 9, 40), *stalled]
    [incident] = found(lake, MemoryTables({BACKLOG.name: backlog, TENANT_SHARE.name: marked}))
    assert (incident.kind, incident.keys_hit, incident.tasks_delayed) == ("stall", 3, 9)


@pytest.mark.parametrize(("tasks", "minutes", "count"), [(5, 5, 1), (4, 5, 0), (5, 4, 0)])
def test_a_key_starves_by_the_tasks_and_minutes_of_the_rules(
    lake: Warehouse, tasks: int, minutes: int, count: int
) -> None:
    of_b = [waited(m, "b", depth_min=tasks, depth_end=tasks) for m in range(10, 10 + minutes)]
    tables = {
        BACKLOG.name: [*quiet(*range(5, 40)), *of_b],
        TENANT_SHARE.name: starving(*range(10, 10 + minutes)),
    }
    rows = found(lake, MemoryTables(tables))
    assert [(each.kind, each.subject) for each in rows] == [("starved", "b")] * count
    for each in rows:
        wait_us = tasks * minutes * 60_000_000
        assert (each.keys_hit, each.tasks_delayed, each.extra_wait_us) == (1, tasks, wait_us)


def test_a_stall_of_few_tasks_is_not_listed(lake: Warehouse) -> None:
    backlog = [*quiet(5, 9, 40), *(waited(m, "b", depth_min=4, depth_end=4) for m in range(10, 15))]
    assert found(lake, MemoryTables({BACKLOG.name: backlog})) == []


@pytest.mark.parametrize("first", [0, 1, 59])
def test_minutes_before_the_lake_are_not_zero(lake: Warehouse, first: int) -> None:
    """One key with 120 tasks in each minute of a lake of two hours was a flood."""
    rows = [waited(minute, "a", arrived=120, claimed=120) for minute in range(first, first + 120)]
    assert found(lake, MemoryTables({BACKLOG.name: rows})) == []


_HISTORY = st.lists(
    st.tuples(
        st.integers(0, 6 * 1440 - 1),
        st.sampled_from("ab"),
        st.sampled_from([1, 90, 130, 2000]),
        st.integers(1, 400),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(100), deadline=None)
@given(history=_HISTORY, first=st.integers(0, 5), count=st.integers(1, 6))
def test_an_incident_is_the_same_whatever_days_are_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[int, str, int, int, bool]],
    first: int,
    count: int,
) -> None:
    minutes = {
        (minute, key): (tasks, is_stalled)
        for begin, key, tasks, length, is_stalled in history
        for minute in range(begin, min(begin + length, 6 * 1440))
    }
    rows = [
        waited(
            minute,
            key,
            arrived=tasks,
            claimed=0 if is_stalled else tasks,
            depth_min=5 * is_stalled,
            depth_end=tasks * is_stalled,
        )
        for (minute, key), (tasks, is_stalled) in minutes.items()
    ]
    tables, lake = (
        MemoryTables({BACKLOG.name: rows}),
        Warehouse(Location.of(str(tmp_path_factory.mktemp("lake")))),
    )
    midnight = at(0).replace(hour=0)
    everything = found(lake, tables, since=midnight, until=midnight + timedelta(days=6))
    since, until = midnight + timedelta(days=first), midnight + timedelta(days=first + count - 1)
    some = found(lake, tables, since=since, until=until)
    assert some == [
        each for each in everything if since <= each.start_at < until + timedelta(days=1)
    ]
    left = {row["incident_id"] for row in rows_of(lake, INCIDENTS)}
    assert left == {each.incident_id for each in everything}


@pytest.mark.parametrize("kind", ["flood", "error burst", "starved", "node loss", "stall"])
def test_an_incident_across_midnight_is_found_once(lake: Warehouse, kind: str) -> None:
    """A flood that began before the days asked for was found again at their midnight."""
    midnight = 14 * 60  # minutes after T0
    minutes = range(midnight - 4, midnight + 4)
    each: list[dict[str, Any]] = []
    backlog = [waited(m, "a", arrived=1, claimed=1, depth_min=0) for m in range(0, 2 * 1440, 7)]
    table = BACKLOG
    if kind == "flood":
        backlog += [
            waited(m, "b", arrived=2 * 10 ** (3 + n // 4), claimed=1, depth_min=0)
            for n, m in enumerate(minutes)
        ]
    elif kind == "error burst":
        table = SERVICE
        each = [served(m, "b", 1, attempts_done=0, failed=20) for m in minutes]
    elif kind == "starved":
        table = TENANT_SHARE
        each = starving(*minutes)
        backlog += [waited(m, "b", arrived=1) for m in minutes]
        backlog += [waited(m, "c", arrived=1, claimed=1, depth_min=0) for m in minutes]
    elif kind == "node loss":
        table = ATTEMPTS
        each = [
            attempt(outcome="lost", node="n1", started_at=None, finished_at=60 * m) for m in minutes
        ]
    else:
        backlog = [r for r in backlog if r["minute"] not in {at(60 * m) for m in minutes}]
        backlog += [waited(m, "b", depth_min=5) for m in minutes]
    tables = MemoryTables({BACKLOG.name: backlog, table.name: [*each] or backlog})
    days = [at(0).replace(hour=0) + timedelta(days=n) for n in range(2)]
    [incident] = found(lake, tables, since=days[0], until=days[1])
    assert (incident.kind, incident.start_at) == (kind, at(60 * minutes[0]))
    assert found(lake, tables, since=days[1], until=days[1]) == []
    assert found(lake, tables, since=days[0], until=days[0]) == [incident]


def test_days_without_tables_are_not_searched(
    lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    rows = [waited(minute, "a", depth_min=5) for minute in range(10, 16)]
    tables = MemoryTables({BACKLOG.name: rows})
    totals = tables.totals
    monkeypatch.setattr(tables, "totals", lambda *of: asked.append(of) or totals(*of))
    first, counts = found(lake, tables), []
    for days in (1, 100):
        asked.clear()
        around = timedelta(days=days)
        assert found(lake, tables, since=at(0) - around, until=at(0) + around) == first
        counts.append(len(asked))
    assert counts[0] == counts[1]
    assert found(lake, tables, since=at(0) - 2 * around, until=at(0) - around) == []


def test_the_error_about_missing_tables_names_the_command_that_builds_them(lake: Warehouse) -> None:
    with pytest.raises(ConfigurationError, match="build"):
        found(lake, MemoryTables({}))
