"""Tables of a lake in Iceberg: one commit for rows and cursors, stale writers refused, and no file
removed that a snapshot lists."""

from __future__ import annotations

import errno
import os
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from psycopg import sql
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import snapshots

from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.schema import Column, Table
from fairlead.pipeline.warehouse import sweeping
from fairlead.pipeline.warehouse.builds import Build, Builds
from fairlead.pipeline.warehouse.location import CATALOG, Location
from fairlead.pipeline.warehouse.table import TableState, WarehouseTable, branch_name
from fairlead.pipeline.warehouse.warehouse import Warehouse
from services.postgres import PostgresServer
from tests import tiers
from tests.pipeline.forks import FORKS

HOUR = 3600 * 1_000_000
MINUTE = 60 * 1_000_000
START = 1_700_000_000 // 3600 * HOUR
"""An instant at the start of an hour."""

TRIES = Table(
    "bronze.tries",
    "Tries.",
    ("id",),
    "at",
    (
        Column("id", "bigint", "number"),
        Column("name", "string", "name"),
        Column("level", "smallint", "level", True),
        Column("at", "timestamp", "instant"),
    ),
)


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """Location of a new lake in a folder, with a catalog of each kind."""
    if request.param == "sqlite":
        return Location.of(tmp_path / "lake")
    return Location.of(tmp_path / "lake", request.getfixturevalue("postgres_url"))


@pytest.fixture
def table(lake: Warehouse) -> WarehouseTable:
    return lake.table(TRIES)


def rows(*ids: int, at: int = START) -> pa.Table:
    """Return one row an hour, from this instant on."""
    return pa.table(
        {
            "id": ids,
            "name": [f"name {n}" for n in ids],
            "level": [n % 3 for n in ids],
            "at": [at + n * HOUR for n in ids],
        },
        schema=TRIES.arrow(),
    )


def add(table: WarehouseTable, *ids: int, seen: TableState | None = None, **moves: str) -> bool:
    seen = table.state() if seen is None else seen
    return table.append(table.write(rows(*ids), "try", seen), moves, seen)


def ids(table: WarehouseTable, **how: Any) -> list[int]:
    return sorted(table.load(**how)["id"].to_pylist())


def metadata_of(table: WarehouseTable) -> Any:
    """Return what the catalog has of the table."""
    stored = table.state().stored
    assert stored is not None
    return stored.metadata


def commit_of_another_engine(lake: Warehouse, table: str) -> None:
    """Commit nothing to a table, by the library's own means, as a compaction does."""
    transaction = lake.catalog.load_table(f"fairlead.{table}").transaction()
    with transaction.update_snapshot().fast_append():
        pass
    transaction.commit_transaction()


def now() -> int:
    return time.time_ns() // 1000


# one commit -------------------------------------------------------------------------------------


def test_rows_and_cursors_change_in_one_commit(location: Location) -> None:
    table = Warehouse(location).table(TRIES)
    assert table.state().snapshot is None
    assert ids(table) == []
    assert add(table, 1, 2, store="7")
    assert add(table, 3, store="8", other="x/y")
    state = Warehouse(location).table(TRIES).state()
    assert state.cursors == {"store": "8", "other": "x/y"}
    assert ids(table) == [1, 2, 3]
    assert table.append([], {"other": None}, table.state())
    assert table.state().cursors == {"store": "8"}
    assert ids(table) == [1, 2, 3]


def test_a_stale_writer_is_refused_and_changes_nothing(location: Location) -> None:
    table = Warehouse(location).table(TRIES)
    stale = table.state()
    assert add(table, 1, seen=table.state(), store="1")
    assert not add(table, 1, seen=stale, store="1")  # the table did not exist
    stale = table.state()
    assert add(table, 2, store="2")
    assert not add(table, 2, seen=stale, store="2")
    assert ids(table) == [1, 2]
    assert table.state().cursors == {"store": "2"}


def test_a_writer_is_refused_after_a_change_of_properties_alone(table: WarehouseTable) -> None:
    assert add(table, 1)
    before = table.state()
    assert table.update(lambda seen: {"fairlead.erased.abc": "1"})
    assert not add(table, 2, seen=before)
    assert table.state().erased == ["abc"]
    before = table.state()
    assert table.append([], {"store": "1"}, before)
    assert not add(table, 2, seen=before)
    assert ids(table) == [1]
    assert not table.update(lambda seen: None)
    assert table.update(lambda seen: {"fairlead.erased.abc": None, "fairlead.erased.no": None})
    assert table.state().erased == []


def test_no_commit_is_repeated_on_a_table_that_asks_the_library_for_it(
    lake: Warehouse, table: WarehouseTable
) -> None:
    assert add(table, 1, store="1")
    stored = lake.catalog.load_table("fairlead.bronze_tries")
    stored.transaction().set_properties({"commit.retry.num-retries": "4"}).commit_transaction()
    seen, stale = table.state(), table.state()
    assert add(table, 2, seen=seen, store="2")
    assert not add(table, 2, seen=stale, store="2")
    assert ids(table) == [1, 2]


def _race(location: Location, go: Any, number: int, results: Any) -> None:
    """Append rows with one state, when all writers have read it."""
    table = Warehouse(location).table(TRIES)
    seen = table.state()
    written = table.write(rows(number), "try", seen)
    go.wait()
    results.put(number if table.append(written, {"winner": str(number)}, seen) else -1)


@pytest.mark.parametrize("first", [True, False], ids=["of a new table", "of a table with rows"])
def test_of_processes_that_saw_the_same_state_one_succeeds(location: Location, first: bool) -> None:
    count = 4
    table = Warehouse(location).table(TRIES)
    if not first:
        assert add(table, 100)
    go, results = FORKS.Barrier(count), FORKS.SimpleQueue()
    writers = [
        FORKS.Process(target=_race, args=(location, go, number, results)) for number in range(count)
    ]
    for writer in writers:
        writer.start()
    won = [number for _ in writers if (number := results.get()) >= 0]
    for writer in writers:
        writer.join()
    assert len(won) == 1
    assert table.state().cursors == {"winner": str(won[0])}
    assert ids(table) == sorted(won if first else [*won, 100])


def test_a_cursor_survives_a_commit_of_another_engine(
    lake: Warehouse, table: WarehouseTable
) -> None:
    assert add(table, 1, store="1")
    commit_of_another_engine(lake, "bronze_tries")
    assert table.state().cursors == {"store": "1"}


# reading ----------------------------------------------------------------------------------------


def test_rows_are_read_by_partition_column_and_condition(table: WarehouseTable) -> None:
    assert add(table, *range(6))
    snapshot = table.state().snapshot
    assert add(table, 6)
    names = [file.part for file in table.files()]
    assert len(set(names)) == 7
    assert ids(table, parts=names[2:4]) == [2, 3]
    assert ids(table, snapshot=snapshot) == list(range(6))
    assert [file.part for file in table.files(since=names[4])] == names[4:]
    assert [file.part for file in table.files(names[:6], snapshot, since=names[4])] == names[4:6]
    some = table.load(columns=["level", "id"], where=ds.field("id") > 4)
    assert some.schema == pa.schema([TRIES.arrow().field("level"), ("id", pa.int64())])
    assert some["id"].to_pylist() == [5, 6]
    file = table.files([names[0]])[0]
    assert (file.rows, file.span) == (1, {"at": (START, START)})
    assert file.bytes == Path(file.path.removeprefix("file://")).stat().st_size
    with pytest.raises(BrokenLake, match="no snapshot 5"):
        table.load(snapshot=5)


def test_a_stored_table_with_other_columns_is_refused(lake: Warehouse) -> None:
    assert add(lake.table(TRIES), 1)
    wider = TRIES._replace(columns=(*TRIES.columns, Column("more", "string", "more", True)))
    more = rows(2).append_column("more", pa.array(["x"]))
    with pytest.raises(BrokenLake, match="other columns than this Fairlead: 'more'"):
        lake.table(wider).write(more, "try")


def test_rows_of_a_wrong_clock_are_kept_and_count_in_the_first_partition(
    table: WarehouseTable,
) -> None:
    seen = table.state()
    odd = [-5, -HOUR, -(2**63), 0, 2**62, 2**63 - 1, START]
    wrong = pa.table(
        {"id": range(7), "name": ["x"] * 7, "level": [1] * 7, "at": odd}, schema=TRIES.arrow()
    )
    assert table.append(table.write(wrong, "try", seen), {}, seen)
    found = table.load()
    assert sorted(found["at"].cast(pa.int64()).to_pylist()) == sorted(odd)
    assert {file.part for file in table.files()} == {
        "1970-01-01/00",
        "2023-11-14/22",
        "9999-12-31/23",
    }
    assert table.load(["1970-01-01/00"]).num_rows + table.load(["9999-12-31/23"]).num_rows == 6
    seen = table.state()
    assert table.replace(["1970-01-01/00", "9999-12-31/23"], [], seen)
    assert table.load().num_rows == 1


# changes and replacement ------------------------------------------------------------------------


def test_partitions_are_replaced_whole_or_not_at_all(location: Location) -> None:
    table = Warehouse(location).table(TRIES)
    assert add(table, 0, 1, 2)
    parts = [file.part for file in table.files()]
    stale = table.state()
    assert add(table, 1)
    assert not table.replace(parts[1:2], table.write(rows(1), "try", stale), stale)
    seen = table.state()
    with pytest.raises(BrokenLake, match="outside the partitions"):
        table.replace(parts[1:2], table.write(rows(2), "try", seen), seen)
    assert table.replace(parts[1:2], table.write(rows(1), "try", seen), seen)
    assert ids(table) == [0, 1, 2]
    assert table.changed(seen.snapshot or 0) == {parts[1]}
    seen = table.state()
    assert table.replace(parts, [], seen)
    assert ids(table) == []
    assert table.changed(seen.snapshot or 0) == set(parts)


def test_changes_are_those_since_a_snapshot_also_when_snapshots_between_are_forgotten(
    lake: Warehouse,
    table: WarehouseTable,
) -> None:
    assert add(table, 0)
    seen = table.state()
    assert seen.snapshot is not None
    assert table.changed(seen.snapshot) == set()
    assert table.update(lambda state: {"fairlead.erased.abc": "1"})
    assert table.changed(seen.snapshot) == set()
    for number in (1, 2, 1):
        assert add(table, number)
    parts = sorted({file.part for file in table.files()})
    assert table.changed(seen.snapshot) == set(parts[1:])
    stored = lake.catalog.load_table("fairlead.bronze_tries")
    stored.manage_snapshots().create_tag(seen.snapshot, "build").commit()
    assert table.expire(now() + MINUTE) == 3
    assert table.changed(seen.snapshot) == set(parts[1:])
    assert table.changed(5) is None


# housekeeping -----------------------------------------------------------------------------------


def files_of(location: Location) -> set[Path]:
    folder = location.folder
    assert folder is not None
    return {path for path in (folder / "fairlead").rglob("*") if path.is_file()}


def test_files_of_forgotten_snapshots_are_removed_and_no_other(
    lake: Warehouse, table: WarehouseTable
) -> None:
    assert add(table, 0, 1)
    seen = table.state()
    assert table.replace(
        [file.part for file in table.files()], table.write(rows(0), "t", seen), seen
    )
    lost = table.write(rows(7), "lost", table.state())
    assert len(lost) == 1
    assert table.sweep(now() - MINUTE) == 0  # too new: another engine may still commit it
    assert table.sweep(now() + MINUTE) >= 1
    assert ids(table, snapshot=seen.snapshot) == [0, 1]
    assert table.expire_unneeded(now() + 120 * MINUTE) >= 1
    assert ids(table, snapshot=seen.snapshot) == [0, 1]  # its files were replaced just now
    assert table.expire(now() + MINUTE) >= 1
    assert table.sweep(now() + MINUTE) >= 4
    assert ids(table) == [0]
    assert len([path for path in files_of(lake.location) if path.suffix == ".parquet"]) == 1
    assert table.sweep(now() + MINUTE) == 0


def test_a_sweep_refuses_writers_that_have_begun_before_it(table: WarehouseTable) -> None:
    assert add(table, 0)
    seen = table.state()
    written = table.write(rows(1), "slow", seen)
    assert table.sweep(now() + MINUTE) == 1
    assert not table.append(written, {}, seen)
    assert ids(table) == [0]


def test_a_writer_whose_state_was_swept_is_refused(table: WarehouseTable) -> None:
    assert add(table, 0)
    seen = table.state()
    assert add(table, 1)
    written = table.write(rows(2), "slow", table.state())
    assert table.expire(now() + MINUTE) >= 1
    assert table.sweep(now() + MINUTE) >= 2
    assert not table.append(written, {}, seen)
    assert not table.append([], {"store": "1"}, seen)
    assert ids(table) == [0, 1]


def test_a_state_whose_list_of_files_is_missing_is_damaged(table: WarehouseTable) -> None:
    assert add(table, 0)
    seen = table.state()
    assert seen.stored is not None
    snapshot = seen.stored.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    with pytest.raises(BrokenLake, match="restore"):
        table.append([], {"store": "1"}, seen)


def test_a_commit_during_a_sweep_loses_no_file(
    table: WarehouseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert add(table, 0)
    seen = table.state()
    written = table.write(rows(1), "slow", seen)
    found = sweeping.unreachable

    def then_commits(*args: Any) -> set[str]:
        paths = found(*args)
        assert table.append(written, {}, seen)
        return paths

    monkeypatch.setattr(sweeping, "unreachable", then_commits)
    assert table.sweep(now() + MINUTE) == 0
    assert ids(table) == [0, 1]


def test_metadata_that_killed_commits_left_is_no_lost_history(
    table: WarehouseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes in a row died after their commit, before they removed the oldest metadata."""
    for number in range(12):
        assert add(table, number)
    with monkeypatch.context() as killed:
        killed.setattr(Catalog, "_delete_old_metadata", staticmethod(lambda *_: None))
        assert add(table, 12) and add(table, 13)
    for number in range(14, 30):
        assert add(table, number)
    assert table.expire_unneeded(now() + 2 * HOUR)
    assert table.sweep(now() + MINUTE)
    assert ids(table) == list(range(30))
    metadata = [path for path in files_of(table._location) if path.name.endswith(".metadata.json")]
    assert len(metadata) == 11


def test_an_exporter_forgets_old_snapshots_now_and_then(table: WarehouseTable) -> None:
    assert add(table, 0)
    for number in range(62):
        assert table.append([], {"store": str(number)}, table.state())
    before = table.state().snapshot
    table.tend(now())
    assert table.state().snapshot == before
    kept = metadata_of(table).snapshots
    assert len(kept) == 63
    table.tend(now() + HOUR - 10 * MINUTE)
    kept = metadata_of(table).snapshots
    assert len(kept) == 63, "a reader has an hour for its snapshot"
    table.tend(now() + 25 * HOUR)
    # The sweep makes snapshots, so that writers that began before it are refused.
    kept = metadata_of(table).snapshots
    assert len(kept) <= 3
    assert ids(table) == [0]
    table.tend(now() + 50 * HOUR)  # too few to forget
    again = metadata_of(table).snapshots
    assert len(again) == len(kept)


class Minutes:
    """A clock of snapshots, by which each commit of a table takes a minute."""

    def __init__(self, table: WarehouseTable, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = table
        self.at = now()
        clock = SimpleNamespace(time=lambda: self.at / 1_000_000)
        monkeypatch.setattr(snapshots, "time", clock)

    def pass_(self, minutes: int) -> int:
        """Commit once a minute, tend hourly, and return the bytes of the metadata."""
        for minute in range(minutes):
            self.at += MINUTE
            assert self.table.append([], {"store": str(minute)}, self.table.state())
            if minute % 60 == 59:
                self.table.tend(self.at)
        stored = self.table.state().stored
        assert stored is not None
        return Path(stored.metadata_location.removeprefix("file://")).stat().st_size


def test_an_hour_of_snapshots_is_kept_with_those_that_a_build_holds(
    lake: Warehouse, table: WarehouseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = Minutes(table, monkeypatch)
    assert add(table, 0, 1)
    held = table.state().snapshot
    assert held is not None
    Builds(lake).hold(TRIES, held, branch_name(minutes.at))
    reader = [Path(file.path.removeprefix("file://")) for file in table.files()]
    first, seen = minutes.pass_(60), table.state()
    [replaced] = [file.part for file in table.files() if reader[0].as_posix() in file.path]
    assert table.replace([replaced], table.write(rows(0), "t", seen), seen, is_housekeeping=True)
    assert minutes.pass_(120) < 1.2 * first
    assert len(metadata_of(table).snapshots) <= 65
    assert ids(table, snapshot=held) == [0, 1]
    assert all(path.exists() for path in reader), "a long query still reads"
    table.drop_branches(minutes.at)
    minutes.at += 25 * HOUR
    table.tend(minutes.at)
    with pytest.raises(BrokenLake, match="no snapshot"):
        table.load(snapshot=held)


def test_a_snapshot_stays_for_an_hour_after_the_next_one(
    table: WarehouseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers had this snapshot until then, whatever its age."""
    minutes = Minutes(table, monkeypatch)
    assert add(table, 0)
    read = table.state().snapshot
    minutes.at += 25 * HOUR
    minutes.pass_(59)
    table.expire_unneeded(minutes.at)
    assert ids(table, snapshot=read) == [0]
    minutes.pass_(3)
    assert table.expire_unneeded(minutes.at) >= 1
    with pytest.raises(BrokenLake, match="no snapshot"):
        table.load(snapshot=read)


def test_snapshots_since_the_last_build_stay_for_a_day_for_its_plan(
    lake: Warehouse, table: WarehouseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = Minutes(table, monkeypatch)
    assert add(table, 0)
    read, parts = table.state().snapshot, {file.part for file in table.files()}
    assert read is not None
    Builds(lake).finish(Build(sources={TRIES.name: read}))
    minutes.pass_(30)
    seen = table.state()
    assert table.replace(parts, table.write(rows(0), "t", seen), seen, is_housekeeping=True)
    minutes.pass_(60)
    assert table.changed(read) == set(), "a compaction changes nothing"
    minutes.at += 25 * HOUR
    table.tend(minutes.at)
    assert len(metadata_of(table).snapshots) <= 4
    assert table.changed(read) == parts  # a build after a day makes its hours again


class Killed(BaseException):
    """End of a process between two steps."""


STEPS = ("write", "append", "update", "replace", "expire", "sweep")


@pytest.mark.parametrize("seed", range(tiers.examples(30) // 10))
def test_random_operations_with_kills_between_any_two_steps_keep_the_rows(
    lake: Warehouse, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(f"{tiers.seed()} {seed}")
    table, expected, cursor = lake.table(TRIES), [], 0
    left = [10**9]
    """Calls of files and catalog until the process is killed."""

    def killing(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            result = real(*args, **kwargs)
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return result

        monkeypatch.setattr(owner, name, counted)

    for name in ("new_output", "new_input", "delete"):
        killing(type(lake.catalog._load_file_io({})), name)
    for name in ("commit_table", "load_table"):
        killing(lake.catalog, name)

    stale = table.state()
    for number in range(40):
        step = chance.choice(STEPS)
        left[0] = chance.choice([10**9, chance.randrange(1, 40)])
        seen, new = None, [number, number + 1]
        try:
            seen = chance.choice([table.state(), stale])
            if step == "append":
                written = table.write(rows(*new), "t", seen)
                table.append(written, {"store": str(number)}, seen)
            elif step == "write":
                table.write(rows(*new), "lost", seen)
            elif step == "update":
                table.update(lambda state: {"fairlead.erased.x": "1"})
            elif step == "replace":
                parts = {file.part for file in table.files()}
                part = chance.choice(sorted(parts)) if parts else ""
                same = table.load([part])
                table.replace([part], table.write(same, "r", seen), seen)
            elif step == "expire":
                table.expire(now() + MINUTE)
            else:
                table.sweep(now() + MINUTE)
        except Killed:
            pass
        left[0] = 10**9
        state = table.state()
        if step == "append" and state.cursors.get("store") == str(number):
            expected += new
            cursor = number
        assert state.cursors.get("store", "0") == str(cursor), (seed, number, step)
        assert ids(table) == sorted(expected), (seed, number, step)
        for snapshot in [] if state.stored is None else state.stored.metadata.snapshots:
            table.load(snapshot=snapshot.snapshot_id)
        stale = chance.choice([stale, state])
    table.expire(now() + MINUTE)
    table.sweep(now() + MINUTE)
    assert ids(table) == sorted(expected)
    assert table.sweep(now() + MINUTE) == 0


# catalogs ---------------------------------------------------------------------------------------


def test_processes_that_open_a_new_lake_at_once_agree_on_its_identity(location: Location) -> None:
    with FORKS.Pool(4) as pool:
        found = pool.map(_identity, [location] * 8)
    assert len(set(found)) == 1
    assert Warehouse(location).identity == found[0]


def _identity(location: Location) -> str:
    return Warehouse(location).identity


def test_an_outage_of_the_catalog_is_a_store_unavailable(
    tmp_path: Path, postgres_url: str, postgres_server: PostgresServer
) -> None:
    location = Location.of(tmp_path / "lake", postgres_url)
    table = Warehouse(location).table(TRIES)
    assert add(table, 1)
    database = location.catalog.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        name = sql.Identifier(database)
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        postgres_server.disconnect(location.catalog)
        with pytest.raises(StoreUnavailable):
            table.state()
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
    assert ids(table) == [1]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_no_file_is_a_store_unavailable_and_changes_nothing(
    table: WarehouseTable, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    assert table.append(table.write(rows(1), "a"), {"store": "1"}, table.state())
    seen = table.state()
    written = table.write(rows(2), "a", seen)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr("pyarrow.parquet.write_table", refuse)
        with pytest.raises(StoreUnavailable, match=os.strerror(number)):
            table.write(rows(3), "a")
    with monkeypatch.context() as patched:
        patched.setattr("pyiceberg.manifest.ManifestWriter.__exit__", refuse)
        with pytest.raises(StoreUnavailable, match=os.strerror(number)):
            table.append(written, {"store": "2"}, seen)
    assert table.state() == seen
    assert table.append(written, {"store": "2"}, seen)
    assert table.load().num_rows == 2


@pytest.mark.parametrize("name", ["ha#sh", "per%41cent", "new\nline"])
def test_a_folder_that_engines_read_differently_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="give a folder without"):
        Location.of(tmp_path / name)


def test_another_program_reads_the_same_table_by_the_settings(location: Location) -> None:
    assert add(Warehouse(location).table(TRIES), 1, 2)
    catalog = load_catalog(CATALOG, **location.pyiceberg())
    assert sorted(
        catalog.load_table("fairlead.bronze_tries").scan().to_arrow()["id"].to_pylist()
    ) == [1, 2]
