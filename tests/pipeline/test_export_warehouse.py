"""The exporter writes every attempt to Iceberg tables exactly once, also after crashes, with
several exporters at once, and beside another engine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.lake import ledger
from fairlead.pipeline.lake.tombstones import tombstone
from fairlead.pipeline.landing import LEDGER
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import ERASED, WarehouseTable
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import Position
from tests.pipeline.export_until import KILLED, ROWS
from tests.pipeline.filling import add_attempts, attempt, connected, migrated
from tests.pipeline.test_export import add, spread
from tests.pipeline.test_warehouse import MINUTE, files_of, now
from tests.pipeline.warehouse_until import STEPS
from tests.tiers import FULL

ROOT = Path(__file__).parents[2]


@pytest.fixture
def history(store_url: str) -> Iterator[SqlHistory]:
    """Yield the history of a fresh store of each kind in turn."""
    store = migrated(store_url)
    yield SqlHistory(store.database)
    store.database.close()


@pytest.fixture
def lake(tmp_path: Path) -> Warehouse:
    return Warehouse(Location.of(tmp_path / "lake"))


@pytest.fixture
def on_s3(s3_lake: str, postgres_url: str) -> Warehouse:
    """Lake on an object store, with its catalog in PostgreSQL."""
    return Warehouse(Location.of(s3_lake, postgres_url))


def exporter(history: SqlHistory, lake: Warehouse, rows: int = ROWS) -> Exporter:
    return Exporter(history, lake, SYSTEM_CLOCK, rows)


def exported(lake: Warehouse) -> list[int]:
    """Return the numbers of the attempts in the lake."""
    ids = lake.table(ATTEMPTS).load(columns=["task_id"])["task_id"].to_pylist()
    return sorted(int(task_id.replace("-", ""), 16) for task_id in ids)


def is_clean(lake: Warehouse) -> None:
    """Check that after a sweep only files of the present snapshots are in the folder, and that the
    newest one has the same files."""
    table = lake.table(ATTEMPTS)
    before = table.files()
    table.expire(now() + MINUTE)
    table.sweep(now() + MINUTE)
    folder = lake.location.folder
    assert folder is not None
    on_disk = {f"file://{path}" for path in (folder / "fairlead/bronze_attempts/data").glob("*")}
    assert on_disk == {file.path for file in before}
    assert table.files() == before


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_every_attempt_is_exported_once_in_files_by_hour(
    store_url: str, history: SqlHistory, lake: Warehouse, rows: int
) -> None:
    spread(store_url, 20)
    done = exporter(history, lake, rows).round()
    assert done.attempts == 20
    assert exported(lake) == list(range(20))
    table = lake.table(ATTEMPTS)
    assert len({file.part for file in table.files()}) == 3
    for file in table.files():
        ends = table.load([file.part])["finished_at"].to_pylist()
        assert {end.strftime("%Y-%m-%d/%H") for end in ends} == {file.part}
    assert exporter(history, lake).round().attempts == 0
    add(store_url, 20)
    assert exporter(history, lake).behind() == 1
    assert exporter(history, lake).round().attempts == 1
    assert exported(lake) == list(range(21))


def test_the_columns_in_iceberg_equal_those_of_the_lake_in_parquet(
    store_url: str, history: SqlHistory, lake: Warehouse, tmp_path: Path
) -> None:
    from fairlead.pipeline.lake.lake import Lake

    add(store_url, *range(10))
    parquet = Lake(tmp_path / "parquet")
    exporter(history, lake).round()
    Exporter(history, parquet, SYSTEM_CLOCK, ROWS).round()
    old = parquet.table(ATTEMPTS)
    mine = [lake.table(ATTEMPTS).load(), old.load(old.manifests.newest())]
    first, second = (rows.drop_columns(["exported_at"]).sort_by("task_id") for rows in mine)
    assert first.num_rows == 10
    assert first.to_pylist() == second.to_pylist()


def test_changes_by_people_and_submits_are_exported_once(sqlite_url: str, lake: Warehouse) -> None:
    app = App(sqlite_url)
    app.migrate()

    @app.task
    async def pay() -> None: ...

    history = SqlHistory(app.store.database)
    due = datetime.now(UTC) + timedelta(days=1)
    handles = [pay.options(run_at=due).submit() for _ in range(10)]
    for handle in handles[:3]:
        app.management.reschedule(handle.id, due + timedelta(days=1))
    for _ in range(2):
        exporter(history, lake, rows=4).round()
    kinds = Counter(lake.table(EVENTS).load()["kind"].to_pylist())
    assert kinds == {"submitted": 10, "rescheduled": 3}
    app.close()


# crashes ------------------------------------------------------------------------------------------


def until(url: str, lake: Warehouse, step: str, times: int) -> list[str]:
    """Return the command that exports until a step was done a number of times."""
    here = lake.location
    module = "tests.pipeline.warehouse_until"
    return [sys.executable, "-m", module, url, here.lake, here.catalog, step, str(times)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "times"),
    [(step, 1) for step in STEPS]
    + [
        pytest.param(*later, marks=FULL("a long run"))
        for later in [
            ("read", 3),
            ("file written", 5),
            ("manifest list written", 2),
            ("metadata written", 3),
            ("committed", 2),
            ("committed", 3),
            ("position reported", 4),
        ]
    ],
)
def test_an_export_killed_after_any_step_and_repeated_has_every_attempt_once(
    store_url: str, history: SqlHistory, lake: Warehouse, step: str, times: int
) -> None:
    spread(store_url, 18)
    killed = subprocess.run(  # noqa: S603 - our own interpreter
        until(store_url, lake, step, times),
        cwd=ROOT,
        check=False,
        timeout=240,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == KILLED, killed.stderr
    add(store_url, 18, 19)
    exporter(history, lake, rows=5).round()
    assert exported(lake) == list(range(20))
    is_clean(lake)
    readers = history.database.read_now(history.readers())
    [position] = [each.position for each in readers if each.name == lake.reader]
    store_id = history.database.read_now(history.store_id())
    cursor = lake.table(ATTEMPTS).state().cursors[f"{store_id}/attempts"]
    assert position == Position.of(cursor)
    assert exporter(history, lake).behind() == 0


# several at once ----------------------------------------------------------------------------------


@pytest.mark.full("a long run")
def test_two_simultaneous_exporters_export_each_attempt_once(
    store_url: str, history: SqlHistory, lake: Warehouse
) -> None:
    add(store_url, *range(50))
    with ExitStack() as ending:
        exporters = [
            ending.enter_context(
                subprocess.Popen(  # noqa: S603 - our own interpreter
                    until(store_url, lake, "never", 0), cwd=ROOT, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(2)
        ]
        for process in exporters:
            ending.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "exporting\n"
        with connected(store_url) as connection:
            for first in range(50, 250, 10):
                add_attempts(connection, range(first, first + 10))
        deadline = time.monotonic() + 120
        while len(exported(lake)) < 250 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert all(process.poll() is None for process in exporters), "no exporter has failed"
    exporter(history, lake).round()
    assert exported(lake) == list(range(250))
    is_clean(lake)


def test_the_second_of_two_exporters_of_the_same_rows_continues_after_them(
    store_url: str, history: SqlHistory, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store_url, *range(10))
    other = exporter(history, lake)
    write, wrote = WarehouseTable.write, []

    def overtaken(table: WarehouseTable, *args: Any) -> Any:
        written = write(table, *args)
        wrote.append(written)
        if len(wrote) == 1:
            other.round()  # between the files and the commit of the first exporter
        return written

    monkeypatch.setattr(WarehouseTable, "write", overtaken)
    assert exporter(history, lake).round().attempts == 0, "no attempt was left"
    assert exported(lake) == list(range(10))
    assert not any(Path(file.path.removeprefix("file://")).exists() for file in wrote[0])


def test_a_commit_of_another_engine_moves_no_cursor_and_repeats_no_row(
    store_url: str, history: SqlHistory, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store_url, *range(10))
    write, wrote = WarehouseTable.write, []

    def overtaken(table: WarehouseTable, *args: Any) -> Any:
        written = write(table, *args)
        wrote.append(written)
        if table.table is ATTEMPTS and len(wrote) == 2:
            # The library's own commit, as a compaction makes one.
            stored = lake.catalog.load_table("fairlead.bronze_attempts")
            transaction = stored.transaction()
            with transaction.update_snapshot().fast_append():
                pass
            transaction.commit_transaction()
        return written

    monkeypatch.setattr(WarehouseTable, "write", overtaken)
    assert exporter(history, lake).round().attempts == 10
    assert len(wrote) == 3, "the second batch was refused once"
    assert exported(lake) == list(range(10))


def test_rows_of_a_key_that_is_erased_during_an_export_are_left_out_and_noted(
    store_url: str, history: SqlHistory, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store_url, *range(6))
    key = attempt(0)[7]
    write, wrote = WarehouseTable.write, []

    def overtaken(table: WarehouseTable, *args: Any) -> Any:
        written = write(table, *args)
        wrote.append(table.table.name)
        if len(wrote) == 1:
            table.update(lambda seen: {ERASED + tombstone(lake, key): "1"})
        return written

    monkeypatch.setattr(WarehouseTable, "write", overtaken)
    exporter(history, lake).round()
    gone = [n for n in range(6) if attempt(n)[7] == key]
    assert exported(lake) == [n for n in range(6) if n not in gone]
    assert wrote == ["bronze.attempts", "bronze.ledger", "bronze.attempts"]
    noted = lake.table(LEDGER).load()
    assert noted.num_rows == len(gone) > 0
    assert sorted(noted.column_names) == sorted(ledger.COLUMNS)
    is_clean(lake)
    found = [path for path in files_of(lake.location) if key.encode() in path.read_bytes()]
    assert found == []


# on an object store -------------------------------------------------------------------------------


def keys_of(lake: Warehouse) -> dict[str, bytes]:
    """Return the objects in the bucket of a lake."""
    import boto3

    client = boto3.client("s3", region_name="us-east-1")
    bucket = lake.location.lake.removeprefix("s3://").partition("/")[0]
    found = client.list_objects_v2(Bucket=bucket).get("Contents", [])
    assert len(found) < 1000
    return {
        each["Key"]: client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read()
        for each in found
    }


def test_an_object_store_has_every_attempt_once_and_no_byte_of_an_erased_key(
    sqlite_url: str, on_s3: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = SqlHistory(migrated(sqlite_url).database)
    spread(sqlite_url, 20)
    assert exporter(history, on_s3).round().attempts == 20
    add(sqlite_url, 20)
    assert exporter(history, on_s3).round().attempts == 1
    assert exported(on_s3) == list(range(21))
    key = attempt(0)[7]
    assert any(key.encode() in data for data in keys_of(on_s3).values())
    table = on_s3.table(ATTEMPTS)
    table.update(lambda seen: {ERASED + tombstone(on_s3, key): "1"})
    seen = table.state()
    rows = table.load()
    kept = rows.filter([name != key for name in rows["fairness_key"].to_pylist()])
    parts = {file.part for file in table.files()}
    assert table.replace(parts, table.write(kept, "erased", seen), seen)
    table.expire(now() + MINUTE)
    assert table.sweep(now() + 60 * MINUTE) > 0
    assert [path for path, data in keys_of(on_s3).items() if key.encode() in data] == []
    assert exported(on_s3) == [n for n in range(21) if attempt(n)[7] != key]
    history.database.close()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["file written", "metadata written", "committed"])
def test_an_export_to_an_object_store_that_is_killed_and_repeated_has_every_attempt_once(
    sqlite_url: str, on_s3: Warehouse, step: str
) -> None:
    history = SqlHistory(migrated(sqlite_url).database)
    spread(sqlite_url, 18)
    killed = subprocess.run(  # noqa: S603 - our own interpreter
        until(sqlite_url, on_s3, step, 1),
        cwd=ROOT,
        check=False,
        timeout=240,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == KILLED, killed.stderr
    exporter(history, on_s3, rows=5).round()
    assert exported(on_s3) == list(range(18))
    history.database.close()


# hashed keys --------------------------------------------------------------------------------------


def test_a_lake_with_hashed_keys_needs_its_secret(
    sqlite_url: str, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.pipeline.hashing import SECRET, start_hashing

    history = SqlHistory(migrated(sqlite_url).database)
    add(sqlite_url, 1)
    monkeypatch.setenv(SECRET, "a secret of sixteen bytes")
    start_hashing(lake)
    exporter(history, lake).round()
    assert attempt(1)[7] not in lake.table(ATTEMPTS).load()["fairness_key"].to_pylist()
    monkeypatch.delenv(SECRET)
    with pytest.raises(ConfigurationError, match="there is no secret"):
        exporter(history, lake).round()
    history.database.close()
