"""Promises of `fairlead.model.history.HistoryStore`, and of the cleaner to readers of the history,
for both stores."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from fairlead import App, Fixed, NoRetry, State
from fairlead.backends.sql.history import SqlHistory
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import SYSTEM_CLOCK, to_micros
from fairlead.connect import task_store
from fairlead.core.ids import IdSource, id_text
from fairlead.model import NewTask
from fairlead.model.history import (
    ATTEMPT_FIELDS,
    EVENT_FIELDS,
    FINGERPRINT_MODULUS,
    START,
    SUBMITTED_FIELDS,
    Position,
    Totals,
)
from fairlead.ports.statements import Row
from fairlead.testing import drain, running
from fairlead.testing.contract.tasks import NOW, SECOND, make
from tests.builders import idle
from tests.pipeline.filling import COLUMNS, add_attempts, add_rows, attempt, connected, migrated
from tests.waiting import until

EVERYTHING = Position(2**62, 2**62)


@pytest.fixture
def history(store: SqlTaskStore) -> SqlHistory:
    return SqlHistory(store.database)


def attempts(
    history: SqlHistory, after: Position = START, until: Position = EVERYTHING, limit: int = 10_000
) -> list[Row]:
    return list(history.database.read_now(history.attempts(after, until, limit)))


def positions(rows: list[Row]) -> list[Position]:
    return [Position(*row[:2]) for row in rows]


def numbers(rows: list[Row]) -> list[int]:
    """Return the numbers of attempts that `add_attempts` made."""
    return [int(row[2].replace("-", ""), 16) for row in rows]


def horizon(history: SqlHistory) -> Position:
    return history.database.read_now(history.horizon())


# order --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 3, 7, 100])
def test_attempts_are_read_in_order_and_once_with_pages_of_any_size(
    store_url: str, history: SqlHistory, page: int
) -> None:
    with connected(store_url) as connection:
        for first in range(0, 25, 5):
            add_attempts(connection, range(first, first + 5))
    read: list[Row] = []
    position = START
    while rows := attempts(history, position, horizon(history), page):
        assert len(rows) <= page
        read += rows
        position = positions(rows)[-1]
    assert numbers(read) == list(range(25))
    assert positions(read) == sorted(set(positions(read)))
    assert attempts(history, *positions(read)[4:8:3]) == read[5:7], (
        "the rows after the first position up to the second"
    )


def test_an_attempt_has_all_its_fields(store_url: str, history: SqlHistory) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, [3, 4])
    assert [tuple(row[2:]) for row in attempts(history)] == [attempt(3), attempt(4)]


def test_the_horizon_never_goes_back_when_the_last_attempts_are_cleaned(
    store_url: str, history: SqlHistory
) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, range(3))
        before = horizon(history)
        connection.execute("DELETE FROM fairlead_attempts")
        assert horizon(history) >= before
        add_attempts(connection, [3])
    assert positions(attempts(history))[0] >= before


def test_a_late_commit_is_read_in_order_and_never_appears_before_a_horizon(
    postgres_url: str,
) -> None:
    history = SqlHistory(migrated(postgres_url).database)
    with connected(postgres_url) as late, connected(postgres_url) as other:
        add_attempts(late, [0])  # its connection has now reserved the lower numbers
        late.execute("BEGIN")
        add_attempts(late, [1])
        add_attempts(other, [2])
        early = horizon(history)
        seen = attempts(history, START, early)
        assert numbers(seen) == [0], "row 2 exists, but row 1 may still appear before it"
        late.execute("COMMIT")
        assert attempts(history, START, early) == seen, "nothing has appeared before the horizon"
        assert numbers(attempts(history, START, horizon(history))) == [0, 1, 2]
        # A later transaction with a lower number comes later: the order is by transaction, then by number.
        add_attempts(late, [3])
        rows = attempts(history, START, horizon(history))
        assert numbers(rows) == [0, 1, 2, 3]
        assert rows[3][1] < rows[2][1]
    history.database.close()


def test_a_reader_that_stays_below_the_horizon_misses_nothing_and_reads_nothing_twice(
    store_url: str, history: SqlHistory
) -> None:
    ends = threading.Event()

    def write(worker: int) -> list[int]:
        chance = random.Random(worker)
        mine: list[int] = []
        with connected(store_url) as connection:
            while not ends.is_set():
                added = [worker + 10 * (len(mine) + n) for n in range(chance.randint(1, 3))]
                connection.execute("BEGIN IMMEDIATE" if store_url.startswith("sqlite") else "BEGIN")
                add_attempts(connection, added)
                time.sleep(chance.choice([0, 0, 0.001, 0.02]))
                if chance.random() < 0.2:
                    connection.execute("ROLLBACK")
                else:
                    connection.execute("COMMIT")
                    mine += added
        return mine

    read: list[Row] = []
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, worker) for worker in range(4)]
        while len(read) < 300:
            read += attempts(history, positions(read)[-1] if read else START, horizon(history), 7)
        ends.set()
        written = [n for each in writing for n in each.result()]
    while rows := attempts(history, positions(read)[-1] if read else START, horizon(history), 1000):
        read += rows
    assert sorted(numbers(read)) == sorted(written)
    assert positions(read) == sorted(set(positions(read)))


# sums ---------------------------------------------------------------------------------------------


def test_the_sums_of_a_range_equal_those_of_its_rows(store_url: str, history: SqlHistory) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, range(40))
        connection.execute(
            f"UPDATE fairlead_attempts SET finished_at = {2**61} WHERE task_id = '{id_text(11)}'"
        )
    rows = attempts(history)
    after, until = positions(rows)[4], positions(rows)[30]
    busy = prints = 0
    for row in rows[5:31]:
        one = dict(zip(ATTEMPT_FIELDS, row, strict=True))
        if one["started_at"] is not None:
            busy += one["finished_at"] - one["started_at"]
        prints += (
            31 * (one["finished_at"] % FINGERPRINT_MODULUS) + 17 * one["seq"] + one["version"]
        ) % FINGERPRINT_MODULUS
    assert history.database.read_now(history.attempts_between(after, until)) == Totals(
        26, busy, prints
    )
    assert history.database.read_now(history.attempts_between(until, until)) == Totals(0, 0, 0)


def test_the_position_after_a_number_of_rows_is_found_or_is_the_end(
    store_url: str, history: SqlHistory
) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, range(10))
    all_places = positions(attempts(history))
    look = history.database.read_now
    assert look(history.position_after(START, all_places[-1], 3)) == all_places[2]
    assert look(history.position_after(all_places[2], all_places[-1], 3)) == all_places[5]
    assert look(history.position_after(all_places[5], all_places[7], 3)) == all_places[7]


# submits ------------------------------------------------------------------------------------------


def fresh(count: int, now: int, source: IdSource | None = None, **changes: Any) -> list[NewTask]:
    """Return new tasks with ids of `now`, from a new source unless one is given: the ids of one
    source never go back in time."""
    fields = {"submitted_at": now, "run_at": now, "fairness_key": "acme", "weight": 2.0}
    ids = (source or IdSource()).block(count, now)
    tasks = zip(make(count, **fields | changes), ids, strict=True)
    return [msgspec.structs.replace(task, id=id_text(new)) for task, new in tasks]


def submitted(history: SqlHistory, after: str, now: int, limit: int = 1000) -> list[Row]:
    return list(history.database.read_now(history.submitted(after, now, limit)))


def test_tasks_that_have_not_run_are_returned_once_in_the_order_of_their_submits(
    store: SqlTaskStore, history: SqlHistory
) -> None:
    now = SYSTEM_CLOCK.now()
    source = IdSource()
    tasks = fresh(5, now, source) + fresh(2, now, source, run_at=now + 3600 * SECOND)
    store.database.run(store.submission(tasks))
    later = now + 60 * SECOND
    found: list[Row] = []
    while rows := submitted(history, found[-1][0] if found else "", later, 3):
        found += rows
    assert [row[1] for row in found] == [task.id for task in tasks]
    first = dict(zip(SUBMITTED_FIELDS, found[0], strict=True))
    assert [first[name] for name in SUBMITTED_FIELDS[2:]] == [
        now,
        "mail",
        "send",
        "acme",
        2.0,
        5,
        now,
    ]
    more = fresh(1, now, source)
    store.database.run(store.submission(more))
    assert [row[1] for row in submitted(history, found[-1][0], later)] == [more[0].id]


async def test_a_task_that_has_run_is_not_returned_as_submitted(app: App) -> None:
    history = SqlHistory(app.store.database)

    @app.task(retry=Fixed(3600.0, max_attempts=3))
    async def fails() -> None:
        raise ValueError

    handle = fails.submit()
    async with running(app):
        await until(lambda: handle.state() == State.WAITING)
    assert submitted(history, "", SYSTEM_CLOCK.now() + 60 * SECOND) == []


def test_tasks_submitted_in_a_transaction_that_is_still_open_are_waited_for(
    postgres_url: str,
) -> None:
    store = migrated(postgres_url)
    history = SqlHistory(store.database)
    now = SYSTEM_CLOCK.now()
    first = fresh(1, now)
    store.database.run(store.submission(first))
    found = submitted(history, "", now + 10 * SECOND)
    assert [row[1] for row in found] == [first[0].id]
    with connected(postgres_url) as slow:
        slow.execute("BEGIN")
        early = fresh(1, now + 20 * SECOND)
        store.database.join(slow, store.submission(early))
        late = fresh(1, now + 21 * SECOND)
        store.database.run(store.submission(late))
        assert submitted(history, found[-1][0], now + 60 * SECOND) == [], (
            "the later task exists, but earlier tasks may still commit"
        )
        slow.execute("COMMIT")
    assert [row[1] for row in submitted(history, found[-1][0], now + 60 * SECOND)] == [
        task.id for task in [*early, *late]
    ]
    store.database.close()


def test_submitted_tasks_are_read_beside_transactions_that_always_overlap(
    postgres_url: str,
) -> None:
    store = migrated(postgres_url)
    history = SqlHistory(store.database)
    now = SYSTEM_CLOCK.now()
    with connected(postgres_url) as one, connected(postgres_url) as other:
        _begin_writing(one)
        tasks = fresh(1, now)
        store.database.run(store.submission(tasks))
        assert submitted(history, "", now + 10 * SECOND) == []
        _begin_writing(other)
        one.execute("COMMIT")
        assert [row[1] for row in submitted(history, "", now + 20 * SECOND)] == [tasks[0].id]
        assert history._marks, "the other transaction may still submit"
    store.database.close()


def test_a_new_reader_begins_beside_an_open_transaction_with_the_tasks_before_the_last_claims(
    postgres_url: str,
) -> None:
    store = migrated(postgres_url)
    now = SYSTEM_CLOCK.now()
    with connected(postgres_url) as plain, connected(postgres_url) as slow:
        old = fresh(1, now - 60 * SECOND)
        store.database.run(store.submission(old))
        _add_claimed(plain, 1, now - 10 * SECOND)
        _begin_writing(slow)
        late = fresh(1, now)
        store.database.run(store.submission(late))
        _add_claimed(plain, 2, now + 60 * SECOND)
        found = submitted(SqlHistory(store.database), "", now + 60 * SECOND)
        assert [row[1] for row in found] == [old[0].id]
    store.database.close()


def test_tasks_of_a_prepared_transaction_are_waited_for(postgres_url: str) -> None:
    store = migrated(postgres_url)
    history = SqlHistory(store.database)
    now = SYSTEM_CLOCK.now()
    assert submitted(history, "", now) == []
    with connected(postgres_url) as slow:
        slow.execute("BEGIN")
        slow.execute("SET LOCAL fairlead.notify = off")
        early = fresh(1, now + SECOND)
        store.database.join(slow, store.submission(early))
        slow.execute("PREPARE TRANSACTION 'early'")
        late = fresh(1, now + 2 * SECOND)
        store.database.run(store.submission(late))
        assert submitted(history, "", now + 60 * SECOND) == []
        slow.execute("COMMIT PREPARED 'early'")
    found = submitted(history, "", now + 60 * SECOND)
    assert [row[1] for row in found] == [early[0].id, late[0].id]
    store.database.close()


def _add_claimed(connection: Any, number: int, claimed_at: int) -> None:
    row = list(attempt(number))
    row[COLUMNS.index("claimed_at")] = claimed_at
    add_rows(connection, [tuple(row)])


def _begin_writing(connection: Any) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT pg_current_xact_id()")


# events -------------------------------------------------------------------------------------------


def events(app: App) -> list[dict[str, Any]]:
    history = SqlHistory(app.store.database)
    rows = history.database.read_now(history.events(START, EVERYTHING, 1000))
    assert positions(list(rows)) == sorted(set(positions(list(rows))))
    return [dict(zip(EVENT_FIELDS, row, strict=True)) for row in rows]


def test_a_change_by_a_person_is_an_event_with_version_and_actor(app: App) -> None:
    pay = idle(app, "pay")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    handle = pay.options(run_at=tomorrow, fairness_key="acme", weight=3.0, priority=2).submit()
    management = app.management
    first = management.show(handle.id)
    management.reschedule(handle.id, tomorrow + timedelta(hours=1))
    second = management.show(handle.id)
    management.resume(handle.id)
    third = management.show(handle.id)
    management.cancel(handle.id, actor="Ada")
    found = events(app)
    assert [(one["kind"], one["version"], one["actor"]) for one in found] == [
        ("rescheduled", first.version, None),
        ("resumed", second.version, None),
        ("cancelled", third.version, "Ada"),
    ]
    assert found[0]["run_at"] == to_micros(tomorrow + timedelta(hours=1))
    assert {one["task_id"] for one in found} == {handle.id}
    assert {
        (one["queue"], one["name"], one["fairness_key"], one["weight"], one["priority"])
        for one in found
    } == {("default", "pay", "acme", 3.0, 2)}
    assert sorted(one["at"] for one in found) == [one["at"] for one in found]


def test_a_change_of_priority_or_key_is_an_event_with_the_values_before(app: App) -> None:
    pay = idle(app, "pay")
    handle = pay.options(fairness_key="acme", priority=2).submit()
    app.management.change(handle.id, priority=7, actor="Ada")
    app.management.change(handle.id, fairness_key="bulk", actor="Grace")
    found = [
        (one["kind"], one["version"], one["priority"], one["fairness_key"], one["actor"])
        for one in events(app)
    ]
    assert found == [("changed", 1, 2, "acme", "Ada"), ("changed", 2, 7, "acme", "Grace")]
    assert app.management.show(handle.id).fairness_key == "bulk"


async def test_failing_and_retrying_a_task_in_error_are_events(app: App) -> None:
    @app.task(retry=NoRetry())
    async def fails() -> None:
        raise ValueError("never mind")

    handle = fails.submit()
    await drain(app)
    in_error = app.management.show(handle.id)
    app.management.retry(handle.id)
    await drain(app)
    again = app.management.show(handle.id)
    app.management.fail(handle.id, actor="Grace")
    assert [(one["kind"], one["version"], one["actor"]) for one in events(app)] == [
        ("resumed", in_error.version, None),
        ("marked_failed", again.version, "Grace"),
    ]


# readers and cleaning -----------------------------------------------------------------------------


def test_readers_are_known_until_they_are_dropped_and_their_positions_never_go_back(
    history: SqlHistory,
) -> None:
    run, look = history.database.run, history.database.read_now
    run(history.advance("lake a", "lake", Position(0, 7), NOW))
    run(history.advance("lake a", "lake", Position(0, 3), NOW + 1))
    run(history.advance("b", "stream", START, NOW + 2))
    lake, stream = sorted(look(history.readers()), key=lambda reader: reader.kind)
    assert (lake.name, lake.kind, lake.position, lake.checked) == (
        "lake a",
        "lake",
        Position(0, 7),
        None,
    )
    assert (lake.updated_at, lake.checked_at) == (NOW + 1, None)
    assert (stream.name, stream.position) == ("b", START)
    run(history.checked("lake a", Position(0, 5), NOW + 3))
    lake = next(reader for reader in look(history.readers()) if reader.name == "lake a")
    assert (lake.position, lake.checked, lake.updated_at, lake.checked_at) == (
        Position(0, 7),
        Position(0, 5),
        NOW + 1,
        NOW + 3,
    )
    assert run(history.drop_reader("b")) is True
    assert run(history.drop_reader("b")) is False
    assert [reader.name for reader in look(history.readers())] == ["lake a"]


def test_a_reader_on_postgresql_advances_by_transaction_first(postgres_url: str) -> None:
    history = SqlHistory(migrated(postgres_url).database)
    run = history.database.run
    for position in (Position(5, 9), Position(6, 1), Position(5, 100)):
        run(history.advance("b", "stream", position, NOW))
    assert history.database.read_now(history.readers())[0].position == Position(6, 1)
    history.database.close()


async def left(url: str, history: SqlHistory) -> list[int]:
    """Clean everything old and return the numbers of the attempts that are left."""
    store = task_store(url)
    while await store.clean(2**62, 7):
        pass
    await store.database.close_async()
    return numbers(attempts(history))


@pytest.mark.parametrize("at_once", [1, 30])
async def test_attempts_are_kept_until_every_reader_has_read_and_every_lake_has_checked_them(
    store_url: str, history: SqlHistory, at_once: int
) -> None:
    with connected(store_url) as connection:
        for first in range(0, 30, at_once):
            add_attempts(connection, range(first, first + at_once))
    run, at = history.database.run, positions(attempts(history))
    run(history.advance("lake", "lake", START, NOW))
    run(history.advance("stream", "stream", START, NOW))
    assert await left(store_url, history) == list(range(30)), "no reader has read a row"
    run(history.advance("lake", "lake", at[-1], NOW))
    run(history.advance("stream", "stream", at[-1], NOW))
    assert await left(store_url, history) == list(range(30)), "the lake has not been compared"
    run(history.checked("lake", at[9], NOW))
    assert await left(store_url, history) == list(range(10, 30))
    run(history.drop_reader("stream"))
    run(history.advance("slow", "stream", at[14], NOW))
    run(history.checked("lake", at[-1], NOW))
    assert await left(store_url, history) == list(range(15, 30)), "the slowest reader counts"
    run(history.advance("slow", "stream", at[-1], NOW))
    assert await left(store_url, history) == [], "all rows are read and compared"


async def test_events_are_kept_until_their_reader_has_read_them(store_url: str, app: App) -> None:
    pay = idle(app, "pay")
    history = SqlHistory(app.store.database)
    run = history.database.run
    run(history.advance("lake/events", "events", START, NOW))
    for _ in range(6):
        app.management.cancel(pay.submit().id)
    at = [Position(one["xid"], one["seq"]) for one in events(app)]
    await left(store_url, history)
    assert len(events(app)) == 6
    run(history.advance("lake/events", "events", at[3], NOW))
    await left(store_url, history)
    assert [Position(one["xid"], one["seq"]) for one in events(app)] == at[4:]
    run(history.drop_reader("lake/events"))
    await left(store_url, history)
    assert events(app) == []


def test_a_reader_that_registers_during_cleaning_finds_rows_that_stay(postgres_url: str) -> None:
    store = migrated(postgres_url)
    history = SqlHistory(store.database)
    with connected(postgres_url) as connection, ThreadPoolExecutor(1) as pool:
        add_attempts(connection, range(5))
        connection.execute("BEGIN")
        store.database.join(connection, store._clean("clean_attempts", 2**62, 100))
        registering = pool.submit(store.database.run, history.advance("lake", "lake", START, NOW))
        time.sleep(0.2)
        assert not registering.done(), "the registration waits for the deletes under way"
        connection.execute("COMMIT")
        registering.result(10)
    store.database.close()
