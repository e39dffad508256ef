"""Promises of `fairlead.backends.sql.periodic.PeriodicStore`, for each store."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from fairlead import App
from fairlead.backends.sql.periodic import (
    Advance,
    PeriodicDeclaration,
    PeriodicRecord,
    PeriodicStore,
)
from fairlead.model import NewTask
from fairlead.ports.sql_store import SqlStore
from fairlead.testing.contract.tasks import NOW, make
from tests.conftest import url_of

MINUTE = 60_000_000
NIGHTLY = PeriodicDeclaration("nightly", "report", "q", "0 2 * * *", "Europe/Athens", "last")


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest) -> Iterator[App]:
    """Return an application on a new store, for each kind of store."""
    app = App(url_of(request.param, request))
    app.migrate()
    yield app
    app.close()


@pytest.fixture
def tasks(app: App) -> SqlStore:
    return app.store


@pytest.fixture
def store(tasks: SqlStore) -> PeriodicStore:
    return PeriodicStore(tasks)


def run(tasks: SqlStore, steps: Any) -> Any:
    return tasks.database.run(steps)


def only(tasks: SqlStore) -> PeriodicRecord:
    (record,) = run(tasks, PeriodicStore(tasks).records())
    return record


def registered(
    tasks: SqlStore, declared: PeriodicDeclaration = NIGHTLY, now: int = NOW
) -> PeriodicRecord:
    run(tasks, PeriodicStore(tasks).register([declared], "node", now))
    return only(tasks)


def task(key: str) -> NewTask:
    (new,) = make(queue="q", name="report", unique_key=key)
    return new


def unfinished(tasks: SqlStore) -> int:
    return run(tasks, tasks.unfinished(["q"]))[0]


def test_slots_begin_at_the_first_registration(tasks: SqlStore) -> None:
    record = registered(tasks)
    assert msgspec.structs.asdict(record) | {"declared_at": 0} == {
        **msgspec.structs.asdict(NIGHTLY),
        "paused": False,
        "version": 1,
        "registered_at": NOW,
        "passed_at": NOW,
        "last_slot_at": None,
        "declared_at": 0,
        "declared_by": "node",
    }


def test_the_same_registration_keeps_the_missed_slots(tasks: SqlStore) -> None:
    first = registered(tasks)
    again = registered(tasks, now=NOW + MINUTE)
    assert (again.registered_at, again.passed_at) == (NOW, NOW)
    assert again.version > first.version


@pytest.mark.parametrize("change", [{"cron": "0 3 * * *"}, {"timezone": "UTC"}])
def test_another_cron_expression_or_timezone_skips_earlier_slots(
    tasks: SqlStore, change: dict[str, str]
) -> None:
    first = registered(tasks)
    changed = registered(tasks, msgspec.structs.replace(NIGHTLY, **change), NOW + MINUTE)
    assert (changed.registered_at, changed.passed_at) == (NOW, NOW + MINUTE)
    assert changed.version > first.version
    assert {name: getattr(changed, name) for name in change} == change


def test_another_queue_or_policy_keeps_the_missed_slots(tasks: SqlStore) -> None:
    registered(tasks)
    changed = registered(
        tasks, msgspec.structs.replace(NIGHTLY, queue="r", catch_up="all"), NOW + MINUTE
    )
    assert (changed.queue, changed.catch_up, changed.passed_at) == ("r", "all", NOW)


def test_a_pass_of_the_poller_submits_its_tasks_and_counts_once(
    tasks: SqlStore, store: PeriodicStore
) -> None:
    record = registered(tasks)
    advance = Advance("nightly", record.version, NOW + MINUTE, NOW + MINUTE)
    submitted, _ = run(tasks, store.submission(advance, [task("a")]))
    assert [each.is_new for each in submitted] == [True]
    assert run(tasks, store.submission(advance, [task("a")])) is None
    passed = only(tasks)
    assert (passed.passed_at, passed.last_slot_at) == (NOW + MINUTE, NOW + MINUTE)
    assert unfinished(tasks) == 1


def test_a_pass_of_the_poller_without_tasks_keeps_the_last_slot(
    tasks: SqlStore, store: PeriodicStore
) -> None:
    record = registered(tasks)
    assert run(tasks, store.submission(Advance("nightly", 1, NOW + 1, NOW + 1), [task("a")]))
    advance = Advance("nightly", record.version + 1, NOW + MINUTE, None)
    assert run(tasks, store.submission(advance, [])) is not None
    passed = only(tasks)
    assert (passed.passed_at, passed.last_slot_at) == (NOW + MINUTE, NOW + 1)


def test_of_many_concurrent_passes_over_one_slot_one_wins(
    tasks: SqlStore, store: PeriodicStore
) -> None:
    record = registered(tasks)
    advance = Advance("nightly", record.version, NOW + MINUTE, NOW + MINUTE)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda _: run(tasks, store.submission(advance, [task("a")])), range(8)))
    assert sum(each is not None for each in won) == 1
    assert unfinished(tasks) == 1


def test_a_stale_version_and_an_unknown_record_submit_nothing(
    tasks: SqlStore, store: PeriodicStore
) -> None:
    record = registered(tasks)
    run(tasks, store.pause("nightly", False, NOW))
    for advance in (
        Advance("nightly", record.version, NOW + MINUTE, None),
        Advance("daily", 1, NOW + MINUTE, None),
    ):
        assert run(tasks, store.submission(advance, [task("a")])) is None
    assert unfinished(tasks) == 0


def test_a_paused_record_submits_nothing_and_skips_its_slots_when_resumed(
    tasks: SqlStore, store: PeriodicStore
) -> None:
    registered(tasks)
    assert run(tasks, store.pause("nightly", True, NOW))
    paused = only(tasks)
    assert (paused.paused, paused.passed_at) == (True, NOW)
    advance = Advance("nightly", paused.version, NOW + MINUTE, None)
    assert run(tasks, store.submission(advance, [task("a")])) is None
    assert run(tasks, store.pause("nightly", False, NOW + MINUTE))
    assert (only(tasks).paused, only(tasks).passed_at) == (False, NOW + MINUTE)
    assert not run(tasks, store.pause("daily", True, NOW))


def test_a_declaration_is_recorded_again_after_a_while(
    tasks: SqlStore, store: PeriodicStore
) -> None:
    first = registered(tasks)
    run(tasks, store.declare(["nightly", "daily"], "other", NOW + 1, MINUTE))
    assert only(tasks) == first
    run(tasks, store.declare(["nightly", "daily"], "other", NOW + 1, 0))
    found = only(tasks)
    assert (found.declared_by, found.version) == ("other", first.version)
    assert first.declared_at <= found.declared_at <= run(tasks, store.clock(NOW + 1))


def test_a_record_is_removed_unless_it_was_declared_again(
    tasks: SqlStore, store: PeriodicStore
) -> None:
    record = registered(tasks)
    assert not run(tasks, store.remove("nightly", record.declared_at - 1))
    assert not run(tasks, store.remove("daily", record.declared_at))
    assert run(tasks, store.remove("nightly", record.declared_at))
    assert run(tasks, store.records()) == []
