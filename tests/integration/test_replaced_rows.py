"""Beside a transaction that stays open, PostgreSQL keeps the rows that were deleted or replaced. No
frequent statement of nodes and of ordered queues passes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fairlead.backends.postgres.backlog import PostgresBacklogStore
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.schedule import PostgresScheduleStore
from fairlead.backends.postgres.task_log import PostgresTaskLog
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql.coordinator import DatabaseCoordinator
from fairlead.backends.sql.history import SqlHistory
from fairlead.backends.sql.migrate import migrate
from fairlead.backends.sql.periodic import PeriodicDeclaration, PeriodicStore
from fairlead.clock import SYSTEM_CLOCK
from fairlead.model import (
    LaneKey,
    LaneRecord,
    NewTask,
    PartitionKey,
    RunEnd,
    ScheduledTask,
    ScheduleRecord,
    TaskKey,
)
from fairlead.model.history import Position
from fairlead.ports.task_log import MOST_BYTES, Submit
from fairlead.testing.contract.tasks import FACTS, NOW, SECOND, make
from tests.contract.test_schedule_store import ended
from tests.databases import beside_an_open_transaction
from tests.integration.plans import Explainer, beside_a_backup, do

ROUNDS = 8
MOST_MORE = 5
"""Pages that a statement may touch more after many rounds than after the first: an index may have
another level."""

PARTITION = PartitionKey("letters", 1)
FREE = PartitionKey("letters", 0)


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresTaskStore]:
    """Return a store on tables of its own: a TRUNCATE between tests would take their pages."""
    database = PostgresDatabase(postgres_url)
    migrate(database, levels=True)
    store = PostgresTaskStore(database)
    database.run(store.registration({"letters": 2}))
    yield store
    database.close()


def check(pages: list[list[int]], most_more: int = MOST_MORE) -> None:
    """Check that the last round touched as many pages as the first, and at most `most_more`."""
    first, last = pages[0], pages[-1]
    assert len(first) == len(last)
    assert all(n <= before + most_more for before, n in zip(first, last, strict=True)), pages


def rounds(store: PostgresTaskStore, most_more: int = MOST_MORE) -> Iterator[tuple[int, Explainer]]:
    """Yield the numbers of the rounds from 1 on, beside a backup, each with what explains its
    statements; then check the pages of all rounds."""
    with beside_a_backup(store) as connection:
        explain, pages = Explainer(connection), []
        for number in range(1, ROUNDS + 1):
            yield number, explain
            pages.append(buffers(explain))
    check(pages, most_more)


def buffers(explain: Explainer) -> list[int]:
    """Return the pages that each statement has touched since the last call."""
    pages = [finding.buffers for finding in explain.findings]
    explain.findings = []
    return pages


def test_nodes_read_and_send_heartbeats_without_a_read_of_earlier_ones(
    store: PostgresTaskStore,
) -> None:
    nodes = ["one", "two"]
    for node in nodes:
        store.database.run(store._register_node(node, "[]", "[]", NOW, FACTS))
    for _, explain in rounds(store):
        for _ in range(200):
            for node in nodes:
                assert store.database.run(store._heartbeat(node, NOW))
        assert [found.node for found in do(store.nodes(), explain)] == nodes
        assert do(store._silent_nodes(NOW, 3600 * SECOND), explain) == []
        assert do(store._heartbeat("one", NOW), explain)


def test_leases_are_renewed_and_read_without_a_read_of_earlier_renewals(
    store: PostgresTaskStore,
) -> None:
    leases = DatabaseCoordinator(store)
    renew = "UPDATE fairlead_holders SET expires_at = %s"
    # Each round replaces two rows that have not expired.
    for number, explain in rounds(store, 2 * ROUNDS):
        assert store.database.run(leases._acquire([f"letters/{number}"], "one", 60))
        for n in range(600):  # renewals that have expired since
            explain.connection.execute(renew, [NOW + 1000 * number + n])
        assert store.database.run(leases._acquire([f"mail/{number}"], "one", 60))
        assert do(leases._renew("one", 60), explain)
        do(leases._read_changes(), explain)


def test_a_permit_ledger_is_read_and_written_without_a_read_of_earlier_versions(
    store: PostgresTaskStore,
) -> None:
    leases = DatabaseCoordinator(store)
    ledger, version = ("limit", ""), 0
    for _, explain in rounds(store):
        for _ in range(300):
            assert store.database.run(leases._write_ledger(ledger, f"{version}", version))
            version += 1
        assert do(leases._read_ledger(*ledger), explain) == (b"%d" % (version - 1), version)
        assert do(leases._write_ledger(ledger, f"{version}", version), explain)
        version += 1


def test_two_nodes_that_register_a_periodic_task_at_the_same_time_share_one_record(
    store: PostgresTaskStore,
) -> None:
    one = PeriodicDeclaration("one", "one", "mail", "* * * * *", "UTC", "last")
    register = PeriodicStore(store).register
    beside_an_open_transaction(
        store.database, register([one], "first", NOW), register([one], "second", NOW)
    )
    (record,) = store.database.run(PeriodicStore(store).records())
    assert (record.declared_by, record.version) == ("second", 2)


def test_two_processes_that_add_a_reader_at_the_same_time_share_one_row(
    store: PostgresTaskStore,
) -> None:
    first, second = SqlHistory(store.database), SqlHistory(store.database)
    beside_an_open_transaction(
        store.database,
        first.advance("lake", "lake", Position(1, 5), NOW),
        second.advance("lake", "lake", Position(1, 3), NOW + 1),
    )
    (reader,) = store.database.run(first.readers())
    assert (reader.position, reader.updated_at) == (Position(1, 5), NOW + 1)


def test_the_record_of_a_lane_is_kept_without_a_read_of_earlier_ones(
    store: PostgresTaskStore,
) -> None:
    backlog, lane = PostgresBacklogStore(store), LaneKey("letters", 0, 5)
    key = PartitionKey(lane.queue, lane.partition)
    range_id = asyncio.run(backlog.take_over([key]))[key].range_id
    for number, explain in rounds(store):
        record = LaneRecord(read_seq=number)
        write = backlog._write(lane, range_id, [], record)
        for _ in range(300):
            store.database.run(backlog._write(lane, range_id, [], record))
        do(write, explain)
    found = asyncio.run(backlog.take_over([key]))[key]
    assert [each.read_seq for each in found.lanes.values()] == [ROUNDS]


# ordered queues -----------------------------------------------------------------------------------


def test_entries_of_the_task_log_are_read_without_a_read_of_those_before(
    store: PostgresTaskStore,
) -> None:
    log = PostgresTaskLog(store, SYSTEM_CLOCK)
    for _, explain in rounds(store):
        store.database.run(log.appending([Submit(task) for task in ordered(300)]))
        (batch,) = asyncio.run(log.receive([PARTITION], 300))
        assert len(batch.entries) == 300
        asyncio.run(log.commit(batch))
        settle(store, log)
        assert not do(log._receive([PARTITION, FREE], 20, MOST_BYTES), explain)
        assert not do(log._has_entries("letters"), explain)


def settle(store: PostgresTaskStore, log: PostgresTaskLog) -> None:
    """Read until all positions are settled and the low-water marks are raised."""
    for _ in range(3):
        log._snapshots.late_at = 0.0
        store.database.run(log._receive([PARTITION, FREE], 20, MOST_BYTES))


async def keep_often(schedule: PostgresScheduleStore, range_id: int, mark: ScheduleRecord) -> None:
    """Replace the record of a partition a hundred times, in one loop and so by one connection."""
    for _ in range(100):
        await schedule.keep(PARTITION, range_id, mark)


def test_due_tasks_of_an_ordered_queue_are_found_without_a_read_of_completed_ones(
    store: PostgresTaskStore,
) -> None:
    schedule = PostgresScheduleStore(store)
    range_id = asyncio.run(schedule.take_over(PARTITION)).range_id
    for number, explain in rounds(store):
        run_at = NOW + number * SECOND
        tasks = ordered(300, run_at)
        asyncio.run(schedule.persist(PARTITION, range_id, tasks, ScheduleRecord()))
        assert do(schedule._has_due("letters", run_at), explain)
        asyncio.run(schedule.finish(PARTITION, range_id, ends_of(tasks)))
        mark = ScheduleRecord(TaskKey(run_at, "~", ""))
        asyncio.run(keep_often(schedule, range_id, mark))
        explain.findings = []
        do(schedule._keep(PARTITION, range_id, mark), explain)
        assert not do(schedule._has_due("letters", run_at), explain)


def test_completed_keys_are_cleaned_without_a_read_of_those_that_were_deleted_before(
    store: PostgresTaskStore,
) -> None:
    schedule = PostgresScheduleStore(store)
    range_id = asyncio.run(schedule.take_over(PARTITION)).range_id
    for number, explain in rounds(store):
        tasks = ordered(300, NOW + number * SECOND)
        asyncio.run(schedule.finish(PARTITION, range_id, ends_of(tasks)))
        before = NOW + (number + 1) * SECOND
        assert asyncio.run(schedule.clean(PARTITION, range_id, before)) == 300
        assert do(schedule._clean(PARTITION, range_id, before), explain) == 0


def test_a_key_completed_long_after_its_time_is_cleaned_later(store: PostgresTaskStore) -> None:
    schedule = PostgresScheduleStore(store)
    range_id = asyncio.run(schedule.take_over(PARTITION)).range_id
    soon, late = ordered(1, NOW), ordered(1, NOW - SECOND)
    for tasks, cleaned in ((soon, 1), (late, 0)):
        asyncio.run(schedule.finish(PARTITION, range_id, ends_of(tasks)))
        assert asyncio.run(schedule.clean(PARTITION, range_id, NOW + SECOND)) == cleaned
    schedule._all_keys_at = 0.0  # an hour later
    assert asyncio.run(schedule.clean(PARTITION, range_id, NOW + SECOND)) == 1


def ordered(count: int, run_at: int = NOW) -> list[NewTask]:
    return [
        make(
            1, queue="letters", partition=1, ordering_key=f"{n:03}", unique_key="u", run_at=run_at
        )[0]
        for n in range(count)
    ]


def ends_of(tasks: list[NewTask]) -> list[RunEnd]:
    """Return the ends of the only runs of the tasks, each at the time of its task."""
    return [ended(ScheduledTask.of(task), finished_at=task.run_at) for task in tasks]
