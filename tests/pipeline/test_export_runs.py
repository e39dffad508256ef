"""The exporter of ordered queues without a SQL database: each run is in the lake exactly once, also
after crashes and with several exporters at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cassandra", reason="needs the extra cassandra")

from pyiceberg.catalog.sql import SqlCatalog  # noqa: E402
from pyiceberg.manifest import ManifestListWriter  # noqa: E402

from fairlead.backends.cassandra.cluster import CassandraCluster  # noqa: E402
from fairlead.backends.cassandra.database import CassandraDatabase  # noqa: E402
from fairlead.backends.cassandra.run_history import CassandraRunHistory  # noqa: E402
from fairlead.backends.cassandra.schedule import CassandraScheduleStore  # noqa: E402
from fairlead.backends.cassandra.session import CassandraSession  # noqa: E402
from fairlead.backends.sql.sql_file import load  # noqa: E402
from fairlead.clock import SYSTEM_CLOCK  # noqa: E402
from fairlead.errors import StoreUnavailable  # noqa: E402
from fairlead.model import (  # noqa: E402
    PartitionKey,
    RunEnd,
    ScheduledTask,
    ScheduleRecord,
    TaskKey,
)
from fairlead.pipeline.errors import BrokenLake  # noqa: E402
from fairlead.pipeline.export_runs import RunExporter  # noqa: E402
from fairlead.pipeline.models import ATTEMPTS  # noqa: E402
from fairlead.pipeline.warehouse import data_files  # noqa: E402
from fairlead.pipeline.warehouse.table import WarehouseTable  # noqa: E402
from fairlead.ports.schedule_store import HOUR, Fenced  # noqa: E402
from fairlead.ports.statements import Statement  # noqa: E402
from tests import tiers  # noqa: E402
from tests.contract.test_schedule_store import NOW, again, ended, task  # noqa: E402
from tests.pipeline.killed import ROWS  # noqa: E402
from tests.pipeline.warehouses import lake_in  # noqa: E402

FIRST, SECOND = PartitionKey("reminders", 3), PartitionKey("reminders", 4)


class Kit:
    """An application without a SQL database: its store, schedules and histories."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.store = CassandraCluster(url)
        self.database = self.store.database
        self.schedules: list[CassandraScheduleStore] = []
        self.schedule = self.open()
        self.lake: Any = lake_in(folder)
        self.range_ids: dict[PartitionKey, int] = {}

    def open(self) -> CassandraScheduleStore:
        """Return another schedule on the same tables, as another node does."""
        self.schedules.append(CassandraScheduleStore(self.url, None))
        return self.schedules[-1]

    @property
    def history(self) -> CassandraRunHistory:
        return CassandraRunHistory(self.database)

    def exporter(self, rows: int = ROWS) -> RunExporter:
        return RunExporter(self.history, self.lake, SYSTEM_CLOCK, rows)

    async def take_over(self, *partitions: PartitionKey) -> None:
        for partition in partitions:
            self.range_ids[partition] = (await self.schedule.take_over(partition)).range_id

    async def run(
        self, partition: PartitionKey, ends: Sequence[RunEnd], raises_horizon: bool = True
    ) -> list[tuple[str, int]]:
        """Write ends, and raise the horizon; return the runs."""
        range_id = self.range_ids[partition]
        await self.schedule.finish(partition, range_id, ends)
        if raises_horizon:
            await self.schedule.move_attempts(partition, range_id)
        return [(end.scheduled.task.id, end.attempt) for end in ends]

    def exported(self) -> list[tuple[str, int]]:
        """Return the id and attempt of each run in the lake."""
        found = self.lake.table(ATTEMPTS).load()
        return sorted(zip(found["task_id"].to_pylist(), found["attempt"].to_pylist(), strict=True))


@pytest.fixture
async def kit(migrated_cassandra_url: str, tmp_path: Path) -> AsyncIterator[Kit]:
    kit = Kit(migrated_cassandra_url, tmp_path / "lake")
    await asyncio.to_thread(kit.store.migrate)
    await kit.take_over(FIRST, SECOND)
    yield kit
    for schedule in kit.schedules:
        await schedule.close()
    kit.database.close()  # type: ignore[attr-defined]


def end_at(at: int, due: int = NOW, partition: PartitionKey = FIRST, **changes: Any) -> RunEnd:
    """Return the end, at `at`, of a task that was due at `due`."""
    new = task(due, unique_key=f"{at}", partition=partition.partition)
    return ended(ScheduledTask.of(new), finished_at=at, **changes)


def ends(count: int, partition: PartitionKey = FIRST, first: int = 0) -> list[RunEnd]:
    """Return ends over several hours, of tasks that were due in several hours."""
    return [
        end_at(NOW + n * HOUR // 5, NOW + n % 3 * HOUR, partition)
        for n in range(first, first + count)
    ]


async def exports(kit: Kit, rows: int = ROWS, **options: Any) -> int:
    return (await asyncio.to_thread(kit.exporter(rows).round, **options)).attempts


async def test_each_run_is_exported_once_with_all_its_columns(kit: Kit) -> None:
    runs = await kit.run(FIRST, ends(30)) + await kit.run(SECOND, ends(20, SECOND))
    assert await exports(kit) == 50
    assert kit.exported() == sorted(runs)
    table = kit.lake.table(ATTEMPTS)
    row = min(table.load().to_pylist(), key=lambda row: row["finished_at"])
    first = ended(ScheduledTask.of(task(NOW)))
    assert row["store_id"] == kit.database.read_now(kit.history.store_id())
    assert (row["queue"], row["name"], row["ordering_key"], row["fairness_key"]) == (
        "reminders",
        "work",
        "a",
        "tenant",
    )
    assert (row["outcome"], row["next_state"], row["node"]) == ("done", "DONE", "node")
    assert (row["attempt"], row["tries"], row["version"], row["weight"]) == (1, 1, 1, 1.5)
    assert row["payload_bytes"] == len(first.scheduled.task.payload)
    assert row["trigger_path"] == "hook"
    assert row["seq"] == NOW
    assert await exports(kit) == 0


async def test_runs_are_exported_once_also_by_two_exporters(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = await kit.run(FIRST, ends(10)) + await kit.run(SECOND, ends(10, SECOND))
    other, write, wrote = kit.exporter(), WarehouseTable.write, []

    def overtaken(table: WarehouseTable, *args: Any) -> Any:
        written = write(table, *args)
        wrote.append(written)
        if len(wrote) == 1:
            other.round(batches=1)  # between the files and the commit of the first exporter
        return written

    monkeypatch.setattr(WarehouseTable, "write", overtaken)
    assert await exports(kit) == 20 - ROWS
    assert kit.exported() == sorted(runs)
    runs += await kit.run(FIRST, ends(6, first=10))
    assert await exports(kit) == 6
    assert kit.exported() == sorted(runs)


async def test_retries_of_one_task_are_runs_of_their_own(kit: Kit) -> None:
    scheduled = ScheduledTask.of(task(NOW))
    first = again(scheduled, NOW + HOUR)
    runs = await kit.run(FIRST, [first])
    runs += await kit.run(FIRST, [ended(first.again, finished_at=NOW + HOUR)])
    assert await exports(kit) == 2
    assert kit.exported() == [(scheduled.task.id, 1), (scheduled.task.id, 2)] == sorted(runs)


async def test_a_batch_may_end_within_an_hour_and_within_one_instant(kit: Kit) -> None:
    runs = await kit.run(FIRST, [end_at(NOW + 1, NOW + n) for n in range(40)])
    assert await exports(kit, rows=3) == 40
    assert kit.exported() == sorted(runs)


async def test_runs_that_are_above_the_horizon_wait(kit: Kit) -> None:
    before = await kit.run(FIRST, ends(10))
    later = await kit.run(FIRST, ends(10, first=10), raises_horizon=False)
    assert await exports(kit) == 10
    assert kit.exported() == sorted(before)
    await kit.schedule.move_attempts(FIRST, kit.range_ids[FIRST])
    assert await exports(kit) == 10
    assert kit.exported() == sorted(before + later)


async def test_a_task_that_runs_for_hours_holds_back_no_run_and_is_reported_as_late(
    kit: Kit,
) -> None:
    long = task(NOW, unique_key="long", partition=FIRST.partition)
    record = ScheduleRecord(low_water_mark=TaskKey(NOW - 1, "", ""))
    await kit.schedule.persist(FIRST, kit.range_ids[FIRST], [long], record)
    runs = await kit.run(FIRST, ends(30))
    await exports(kit, 100)
    assert kit.exported() == sorted(runs)
    # The doctor names such queues as a problem.
    status = (await kit.schedule.statuses("reminders", NOW + HOUR))[FIRST.partition]
    assert (status.unfinished, status.stale) == (1, 1)
    runs += await kit.run(FIRST, [ended(ScheduledTask.of(long), finished_at=NOW + 9 * HOUR)])
    await exports(kit, 100)
    assert kit.exported() == sorted(runs)


async def test_a_run_that_is_written_after_a_later_one_was_exported_is_exported_too(
    kit: Kit,
) -> None:
    runs = await kit.run(FIRST, [end_at(NOW + 5 * HOUR)])
    assert await exports(kit) == 1
    runs += await kit.run(FIRST, [end_at(NOW), end_at(NOW + 2 * HOUR)])
    assert await exports(kit) == 2
    assert kit.exported() == sorted(runs)


@pytest.mark.parametrize("has_landed", [False, True])
async def test_a_write_that_failed_holds_the_horizon_and_its_repetition_is_exported_once(
    kit: Kit, has_landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, later = end_at(NOW), end_at(NOW + HOUR)
    batch = CassandraSession.batch

    async def fail(session: CassandraSession, statements: Any) -> Any:
        if any(name == "append_run" for name, _ in statements):
            if has_landed:
                await batch(session, statements)
            raise StoreUnavailable("no response")
        return await batch(session, statements)

    with monkeypatch.context() as patch:
        patch.setattr(CassandraSession, "batch", fail)
        with pytest.raises(StoreUnavailable):
            await kit.run(FIRST, [failing])
    runs = await kit.run(FIRST, [later])
    assert await exports(kit) == 0
    await kit.take_over(FIRST)
    runs += await kit.run(FIRST, [failing])
    assert await exports(kit) == 2
    assert kit.exported() == sorted(runs)


async def test_the_next_owner_on_another_node_goes_on_after_the_horizon(kit: Kit) -> None:
    runs = await kit.run(FIRST, ends(5))
    former, kit.schedule = kit.schedule, kit.open()
    old = kit.range_ids[FIRST]
    await kit.take_over(FIRST)
    with pytest.raises(Fenced):
        await former.finish(FIRST, old, [end_at(NOW + 50 * HOUR)])
    runs += await kit.run(FIRST, [end_at(NOW), *ends(5, first=5)])
    assert await exports(kit) == 11
    assert kit.exported() == sorted(runs)


async def test_a_former_owner_cannot_raise_the_horizon(kit: Kit) -> None:
    await kit.run(FIRST, ends(3), raises_horizon=False)
    await kit.open().take_over(FIRST)
    with pytest.raises(Fenced):
        await kit.schedule.move_attempts(FIRST, kit.range_ids[FIRST])
    assert kit.database.read_now(kit.history.horizons()) == {}


class Killed(BaseException):
    """End of the process at this step."""


STEPS: dict[str, tuple[Any, str]] = {
    "read": (CassandraRunHistory, "page"),
    "file written": (data_files, "_write_one"),
    "files written": (WarehouseTable, "write"),
    "manifest list written": (ManifestListWriter, "__exit__"),
    "committed": (SqlCatalog, "commit_table"),
    "files count": (WarehouseTable, "append"),
    "position reported": (RunExporter, "_save"),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_after_any_step_loses_no_run_and_repeats_none(
    kit: Kit, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = STEPS[step]
    original = getattr(owner, name)
    left = 0

    def die(*args: Any, **options: Any) -> Any:
        nonlocal left
        result = original(*args, **options)
        left -= 1
        if left == 0:
            raise Killed
        return result

    runs: list[tuple[str, int]] = []
    for times in (1, 2):
        first = 20 * times
        runs += await kit.run(FIRST, ends(12, first=first))
        runs += await kit.run(SECOND, ends(8, SECOND, first))
        left = times
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, die)
            with pytest.raises(Killed):
                for _ in range(5):
                    await exports(kit)
        runs += await kit.run(FIRST, ends(4, first=first + 12))
        await exports(kit)
        assert kit.exported() == sorted(runs)


async def test_a_batch_is_bounded_and_more_is_said(kit: Kit) -> None:
    await kit.run(FIRST, ends(20))
    done = await asyncio.to_thread(kit.exporter().round, batches=1)
    assert (done.attempts, done.more) == (ROWS, True)
    assert await exports(kit) == 20 - ROWS


async def test_a_run_that_cannot_be_read_is_left_out_and_told_once(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    runs = await kit.run(FIRST, ends(3))
    (damaged,) = await kit.run(FIRST, [end_at(NOW + 9 * HOUR)], raises_horizon=False)
    await asyncio.to_thread(damage, kit, damaged[0])
    await kit.schedule.move_attempts(FIRST, kit.range_ids[FIRST])
    for _ in range(3):
        await exports(kit)
    assert kit.exported() == sorted(runs)
    assert [each.message for each in caplog.records].count(
        "a run cannot be read, and is left out"
    ) == 1


def damage(kit: Kit, task_id: str) -> None:
    with kit.schedule.session.make_cluster() as cluster:
        session = cluster.connect(kit.schedule.session.url.keyspace)
        key = "queue, partition, hour, ended_at, id, attempt"
        for row in session.execute(f"SELECT {key} FROM fairlead_history"):
            if row[4] == task_id:
                where = " AND ".join(f"{name} = %s" for name in key.split(", "))
                session.execute(
                    "UPDATE fairlead_history USING TIMESTAMP 9000000000000000000 SET row = 'no'"
                    f" WHERE {where}",
                    tuple(row),
                )


async def test_a_cursor_that_cannot_be_read_names_its_place_and_the_cure(kit: Kit) -> None:
    await kit.run(FIRST, ends(3))
    assert await exports(kit) == 3
    table = kit.lake.table(ATTEMPTS)
    ((name, text),) = table.state().cursors.items()
    assert table.append([], {name: "nonsense"}, table.state())
    await kit.run(FIRST, ends(3, first=3))
    with pytest.raises(BrokenLake, match="runs/reminders/3.*restore the catalog"):
        await exports(kit)


async def test_old_runs_are_deleted_once_every_reader_has_read_them(
    kit: Kit, tmp_path: Path
) -> None:
    range_id = kit.range_ids[FIRST]
    other = RunExporter(kit.history, lake_in(tmp_path / "other"), SYSTEM_CLOCK, ROWS)
    old = await kit.run(FIRST, ends(10))
    new = await kit.run(FIRST, [end_at(NOW + 20 * HOUR)])
    await exports(kit)
    await asyncio.to_thread(other.round)
    new += await kit.run(FIRST, ends(10, first=150))
    await exports(kit)
    await kit.schedule.keep(FIRST, range_id, ScheduleRecord())
    assert len(await stored(kit)) == 21
    while await kit.schedule.clean(FIRST, range_id, NOW + 50 * HOUR):
        pass
    assert sorted(await stored(kit)) == sorted(id for id, _ in new)
    while await kit.schedule.clean(FIRST, range_id, NOW + 200 * HOUR):
        pass
    # The other lake has not read these.
    assert sorted(await stored(kit)) == sorted(id for id, _ in new)
    await asyncio.to_thread(other.round)
    while await kit.schedule.clean(FIRST, range_id, NOW + 200 * HOUR):
        pass
    assert 0 < len(await stored(kit)) < 10  # the hour of the horizon is not over
    assert kit.exported() == sorted(old + new)


async def test_runs_without_a_reader_are_deleted_by_their_age(kit: Kit) -> None:
    range_id = kit.range_ids[FIRST]
    await kit.run(FIRST, [*ends(10), end_at(NOW + 100 * HOUR)])
    while await kit.schedule.clean(FIRST, range_id, NOW + 50 * HOUR):
        pass
    assert len(await stored(kit)) == 1


async def stored(kit: Kit) -> list[str]:
    """Return the ids of the tasks of the runs in Cassandra."""

    def read() -> list[str]:
        with kit.schedule.session.make_cluster() as cluster:
            found = cluster.connect(kit.schedule.session.url.keyspace).execute(
                "SELECT id FROM fairlead_history"
            )
            return [task_id for (task_id,) in found]

    return await asyncio.to_thread(read)


async def test_reading_takes_as_many_rows_as_there_are_runs_and_filters_nothing(kit: Kit) -> None:
    await kit.run(FIRST, ends(60))
    await exports(kit, 60)
    before = Counter[str]()
    execute = CassandraSession.execute_now

    def counted(session: CassandraSession, name: str, params: Any) -> Any:
        rows = execute(session, name, params)
        before.update({name: len(rows), "calls": 1})
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CassandraSession, "execute_now", counted)
        await exports(kit)
        idle = Counter(before)
        await kit.run(FIRST, ends(6, first=60))
        before.clear()
        await exports(kit)
    assert idle["runs"] == 0
    assert before["runs"] == 6
    assert before["run_hours"] <= 8
    texts = load("store.cql", CassandraSession.__module__.rpartition(".")[0]).values()
    assert not any("ALLOW FILTERING" in text for text in texts)


@pytest.mark.parametrize("seed", range(tiers.examples(10) // 10))
async def test_random_writes_horizons_take_overs_and_rounds_export_each_run_once(
    kit: Kit, seed: int
) -> None:
    chance = random.Random(f"{tiers.seed()} {seed}")
    runs: list[tuple[str, int]] = []
    now = NOW
    for number in range(40):
        partition = chance.choice([FIRST, SECOND])
        now += chance.choice([1, 1000, HOUR, -HOUR // 2])
        if chance.random() < 0.1:
            await kit.take_over(partition)
        due = NOW + chance.randrange(3) * HOUR
        some = [end_at(now + n, due + n, partition) for n in range(chance.randrange(1, 5))]
        runs += await kit.run(partition, some, raises_horizon=chance.random() < 0.5)
        if chance.random() < 0.4:
            await exports(kit, chance.choice([1, 3, 50]), batches=chance.choice([1, None]))
    for partition in (FIRST, SECOND):
        await kit.schedule.move_attempts(partition, kit.range_ids[partition])
    await exports(kit)
    assert kit.exported() == sorted(runs)


async def test_a_keyspace_keeps_its_id(kit: Kit) -> None:
    before = kit.database.read_now(kit.history.store_id())
    await asyncio.to_thread(kit.store.migrate)
    assert kit.database.read_now(kit.history.store_id()) == before
    other = CassandraDatabase(kit.url)
    assert other.read_now(CassandraRunHistory(other).store_id()) == before
    assert other.read_now(iter_of(Statement("store_id", ("other",)))) == []
    other.close()


def iter_of(statement: Statement) -> Any:
    return (yield statement)
