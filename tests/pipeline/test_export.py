"""The exporter writes every attempt to the lake exactly once, also after crashes and with several
exporters at once."""

from __future__ import annotations

import random
import shutil
import zlib
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK, to_datetime
from fairlead.core.ids import id_text
from fairlead.model.history import START, Position
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.warehouse.layout import HOUR_US as HOUR
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.builders import idle
from tests.pipeline.filling import (
    COLUMNS,
    add,
    add_attempts,
    attempt,
    connected,
    migrated,
    reader_of,
)
from tests.pipeline.filling import START as FIRST_END
from tests.pipeline.forks import KILLED, exit_code
from tests.pipeline.killed import EXPORT, ROWS, export_until
from tests.pipeline.test_warehouse import MINUTE, now
from tests.pipeline.warehouses import overtake
from tests.tiers import NIGHTLY


def exporter(history: SqlHistory, lake: Warehouse, rows: int = ROWS) -> Exporter:
    return Exporter(history, lake, SYSTEM_CLOCK, rows)


def column(lake: Warehouse, name: str, table: Any = ATTEMPTS) -> list[Any]:
    return list(lake.table(table).load(columns=[name])[name].to_pylist())


def exported(lake: Warehouse) -> list[int]:
    """Return the numbers of the attempts in the lake."""
    return sorted(int(task_id.replace("-", ""), 16) for task_id in column(lake, "task_id"))


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


def spread(url: str, count: int, hours: int = 3) -> None:
    """Add attempts 0 to count - 1, which end in several hours, in no order."""
    add(url, *range(count))
    chance = random.Random(7)
    with connected(url) as connection:
        for n in range(count):
            end = FIRST_END // HOUR * HOUR + chance.randrange(hours * HOUR)
            connection.execute(
                f"UPDATE fairlead_attempts SET finished_at = {end}, started_at = {end - 1000} WHERE task_id = '{id_text(n)}'"
            )


# exported rows ---------------------------------------------------------------------------------


def test_an_empty_store_registers_its_lake_and_exports_nothing(
    history: SqlHistory, lake: Warehouse
) -> None:
    done = exporter(history, lake).round()
    assert (done.attempts, done.events, done.files, done.more) == (0, 0, 0, False)
    names = {
        (each.name, each.kind, each.position)
        for each in history.database.read_now(history.readers())
    }
    assert names == {(lake.reader, "lake", START), (f"{lake.reader}/events", "events", START)}
    assert exported(lake) == []


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_every_attempt_is_exported_once_in_files_by_hour(
    store_url: str, history: SqlHistory, lake: Warehouse, rows: int
) -> None:
    spread(store_url, 20)
    assert exporter(history, lake, rows).round().attempts == 20
    assert exported(lake) == list(range(20))
    table = lake.table(ATTEMPTS)
    assert len({file.part for file in table.files()}) == 3
    for file in table.files():
        ends = table.load([file.part])["finished_at"].to_pylist()
        assert {end.strftime("%Y-%m-%d/%H") for end in ends} == {file.part}
    assert exporter(history, lake).round().attempts == 0
    add(store_url, 20)
    assert exporter(history, lake).round().attempts == 1
    assert exported(lake) == list(range(21))


def test_the_columns_of_an_attempt_in_the_lake_equal_those_in_the_store(
    store_url: str, history: SqlHistory, lake: Warehouse
) -> None:
    add(store_url, 3, 4)
    with connected(store_url) as connection:
        long_text = "trouble 17 " + "x" * 600
        connection.execute(
            f"UPDATE fairlead_attempts SET error_text = '{long_text}' WHERE task_id = '{id_text(3)}'"
        )
    exporter(history, lake).round()
    found = sorted(lake.table(ATTEMPTS).load().to_pylist(), key=lambda row: row["task_id"])
    assert {row["store_id"] for row in found} == {history.database.read_now(history.store_id())}
    for row, n in zip(found, (3, 4), strict=True):
        stored = dict(zip(COLUMNS, attempt(n), strict=True))
        unique_key = stored.pop("unique_key")
        assert row["unique_key_hash"] == zlib.crc32(unique_key.encode())
        stored.pop("error_text")
        for name, value in stored.items():
            is_instant = name.endswith("_at") and value is not None
            assert row[name] == (to_datetime(value) if is_instant else value), name
    failed, ran = found
    assert failed["error_text"] == long_text[:500]
    assert (ran["error_fp"], ran["error_text"]) == (None, None)


def test_errors_that_differ_in_numbers_only_have_one_fingerprint() -> None:
    from fairlead.pipeline.history_rows import fingerprint

    assert fingerprint("ValueError", "order 17 of 3\nmore") == fingerprint(
        "ValueError", "order 4711 of 12"
    )
    assert fingerprint("ValueError", "order 17") != fingerprint("KeyError", "order 17")
    assert fingerprint("ValueError", None) is not None
    assert fingerprint(None, None) is None


def test_an_export_loses_no_attempt_of_a_clock_that_jumped(
    store_url: str, history: SqlHistory, lake: Warehouse
) -> None:
    add(store_url, *range(4))
    with connected(store_url) as connection:
        for n, end in enumerate((-5, 2**62, 0)):
            connection.execute(
                f"UPDATE fairlead_attempts SET finished_at = {end} WHERE task_id = '{id_text(n)}'"
            )
    exporter(history, lake).round()
    assert exported(lake) == [0, 1, 2, 3]
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 4


def test_changes_by_people_and_submits_are_exported_once(store_url: str, lake: Warehouse) -> None:
    app = App(store_url)
    app.migrate()
    pay = idle(app, "pay")
    history = SqlHistory(app.store.database)
    due = datetime.now(UTC) + timedelta(days=1)
    handles = [pay.options(run_at=due).submit() for _ in range(10)]
    for handle in handles[:3]:
        app.management.reschedule(handle.id, due + timedelta(days=1))
    app.management.cancel(handles[0].id, actor="Ada")
    if store_url.startswith("postgresql"):
        with connected(store_url) as connection:  # as if the tasks had been submitted some time ago
            connection.execute(
                "UPDATE fairlead_tasks SET id = ('00000000' || substr(id::text, 9))::uuid"
            )
    for _ in range(2):
        exporter(history, lake, rows=4).round()
    kinds = Counter(column(lake, "kind", EVENTS))
    assert kinds == {"submitted": 9, "rescheduled": 3, "cancelled": 1}
    keys = list(zip(*(column(lake, name, EVENTS) for name in EVENTS.key), strict=True))
    assert len(set(keys)) == len(keys)
    assert set(filter(None, column(lake, "actor", EVENTS))) == {"Ada"}
    app.close()


# crashes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "times"),
    [(step, 1) for step in EXPORT]
    + [
        pytest.param(*later, marks=NIGHTLY("a long run"))
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
    assert exit_code(export_until, store_url, lake.location, step, times) == KILLED
    add(store_url, 18, 19)
    exporter(history, lake, rows=5).round()
    assert exported(lake) == list(range(20))
    is_clean(lake)
    assert reader_of(history, lake).position == Position(*_last(history)[:2])
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 20


def _last(history: SqlHistory) -> Any:
    return history.database.read_now(history.attempts(START, Position(2**62, 2**62), 1000))[-1]


# several at once ----------------------------------------------------------------------------------


def test_the_second_of_two_exporters_of_the_same_rows_continues_after_them(
    store_url: str, history: SqlHistory, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store_url, *range(10))
    other = exporter(history, lake)
    wrote = overtake(monkeypatch, lambda table, number: number == 1 and other.round())
    assert exporter(history, lake).round().attempts == 0, "no attempt was left"
    assert exported(lake) == list(range(10))
    assert not any(Path(file.file_path.removeprefix("file://")).exists() for file in wrote[0][1])


def test_an_attempt_that_commits_late_is_exported_once_after_its_commit(
    postgres_url: str, lake: Warehouse
) -> None:
    history = SqlHistory(migrated(postgres_url).database)
    with connected(postgres_url) as late:
        late.execute("BEGIN")
        add_attempts(late, [0])
        add(postgres_url, 1, 2)
        assert exporter(history, lake).round().attempts == 0, (
            "attempt 0 comes before the committed ones"
        )
        late.execute("COMMIT")
    assert exporter(history, lake).round().attempts == 3
    with connected(postgres_url) as late:
        late.execute("BEGIN")
        add_attempts(late, [3])
        add(postgres_url, 4)
        exporter(history, lake).round()
        late.execute("ROLLBACK")
    assert exporter(history, lake).round().attempts == 1
    assert exported(lake) == [0, 1, 2, 4]
    history.database.close()


def test_several_stores_share_a_lake(sqlite_url: str, tmp_path: Path, lake: Warehouse) -> None:
    other_url = f"sqlite:///{tmp_path / 'other.db'}"
    histories = [SqlHistory(migrated(url).database) for url in (sqlite_url, other_url)]
    add(sqlite_url, 1, 2)
    add(other_url, 2, 3)
    for history in histories:
        assert exporter(history, lake).round().attempts == 2
    assert exported(lake) == [1, 2, 2, 3]
    assert len(set(column(lake, "store_id"))) == 2
    for history in histories:
        assert reconcile(history, lake, SYSTEM_CLOCK).rows == 2
        history.database.close()


# stores and lakes that go back --------------------------------------------------------------------


def test_a_store_restored_from_a_backup_is_noticed_before_anything_is_exported(
    sqlite_url: str, lake: Warehouse
) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    store = migrated(sqlite_url)
    add(sqlite_url, 1, 2)
    store.database.close()
    shutil.copy(path, path.with_suffix(".backup"))
    add(sqlite_url, 3, 4)
    history = SqlHistory(migrated(sqlite_url).database)
    exporter(history, lake).round()
    history.database.close()
    for file in path.parent.glob("tasks.db*"):
        if file.is_file() and file.suffix != ".backup":
            file.unlink()
    shutil.copy(path.with_suffix(".backup"), path)
    restored = SqlHistory(migrated(sqlite_url).database)
    add(sqlite_url, 5)
    with pytest.raises(
        CheckFailed,
        match=r"has attempts up to 0\.4, but this store has attempts only up to 0\.4.*store_id",
    ):
        exporter(restored, lake).round()
    assert exported(lake) == [1, 2, 3, 4]
    assert restored.database.read_now(restored.readers()) == []
    with connected(sqlite_url) as connection:
        connection.execute("UPDATE fairlead_store SET store_id = 'restored'")
    exporter(restored, lake).round()
    assert Counter(column(lake, "store_id"))["restored"] == 3
    restored.database.close()


def test_a_lake_dropped_from_the_store_continues_and_compares_only_new_attempts(
    store_url: str, history: SqlHistory, lake: Warehouse
) -> None:
    add(store_url, *range(10))
    exporter(history, lake).round()
    history.database.run(history.drop_reader(lake.reader))
    with connected(store_url) as connection:
        connection.execute(
            f"DELETE FROM fairlead_attempts WHERE task_id <= '{id_text(4)}'"
        )  # as the cleaner may do
    add(store_url, 10, 11)
    with pytest.raises(CheckFailed, match="fairlead pipeline ingest"):
        reconcile(history, lake, SYSTEM_CLOCK)
    exporter(history, lake).round()
    assert exported(lake) == list(range(12))
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 2
