"""The exporter writes every attempt to the lake exactly once, also after crashes and with several
exporters at once."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
import zlib
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
from fairlead.core.ids import id_text
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import HOUR, LakeTable
from fairlead.pipeline.reconcile import reconcile
from fairlead.ports.history import START, Position, Reader
from tests.pipeline.export_until import KILLED, ROWS, STEPS
from tests.pipeline.filling import START as FIRST_END
from tests.pipeline.filling import add_attempts, attempt, connected, migrated
from tests.tiers import FULL

ROOT = Path(__file__).parents[2]


@pytest.fixture
def history(store_url: str) -> Iterator[SqlHistory]:
    """Yield the history of a fresh store of each kind in turn."""
    store = migrated(store_url)
    yield SqlHistory(store.database)
    store.database.close()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def exporter(history: SqlHistory, lake: Lake, rows: int = ROWS) -> Exporter:
    return Exporter(history, lake, SYSTEM_CLOCK, rows)


def add(url: str, *numbers: int) -> None:
    """Add attempts, each in its own transaction."""
    with connected(url) as connection:
        for n in numbers:
            add_attempts(connection, [n])


def column(lake: Lake, name: str, table: Any = ATTEMPTS) -> list[Any]:
    here = lake.table(table)
    here.check(here.manifests.newest())
    return here.load(here.manifests.newest())[name].to_pylist()


def exported(lake: Lake) -> list[int]:
    """Return the numbers of the attempts in the lake."""
    return sorted(int(task_id.replace("-", ""), 16) for task_id in column(lake, "task_id"))


def reader(history: SqlHistory, lake: Lake) -> Reader:
    return next(
        each for each in history.database.read_now(history.readers()) if each.name == lake.reader
    )


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
    history: SqlHistory, lake: Lake
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
    store_url: str, history: SqlHistory, lake: Lake, rows: int
) -> None:
    spread(store_url, 20)
    batches: list[int] = []
    done = exporter(history, lake, rows).round(batches.append)
    assert (done.attempts, sum(batches)) == (20, 20)
    assert exported(lake) == list(range(20))
    manifest = lake.table(ATTEMPTS).manifests.newest()
    assert len(manifest.parts) == 3
    for name, part in manifest.parts.items():
        ends = [
            end.strftime("%Y-%m-%d/%H")
            for end in lake.table(ATTEMPTS).load(manifest, [name])["finished_at"].to_pylist()
        ]
        assert set(ends) == {name}
        assert part.rows == len(ends)
    assert exporter(history, lake).round().attempts == 0
    add(store_url, 20)
    assert exporter(history, lake).round().attempts == 1
    assert exported(lake) == list(range(21))


def test_an_export_round_can_be_split_into_batches(
    store_url: str, history: SqlHistory, lake: Lake
) -> None:
    add(store_url, *range(20))
    here = exporter(history, lake)
    rounds = [here.round(batches=1) for _ in range(3)]
    assert [(done.attempts, done.more) for done in rounds] == [(7, True), (7, True), (6, False)]
    assert exported(lake) == list(range(20))


def test_the_columns_of_an_attempt_in_the_lake_equal_those_in_the_store(
    store_url: str, history: SqlHistory, lake: Lake
) -> None:
    add(store_url, 3, 4)
    with connected(store_url) as connection:
        long_text = "trouble 17 " + "x" * 600
        connection.execute(
            f"UPDATE fairlead_attempts SET error_text = '{long_text}' WHERE task_id = '{id_text(3)}'"
        )
    exporter(history, lake).round()
    manifest = lake.table(ATTEMPTS).manifests.newest()
    found = sorted(lake.table(ATTEMPTS).load(manifest).to_pylist(), key=lambda row: row["task_id"])
    assert {row["store_id"] for row in found} == {history.database.read_now(history.store_id())}
    for row, n in zip(found, (3, 4), strict=True):
        (
            task_id,
            number,
            tries,
            queue,
            name,
            partition,
            priority,
            key,
            weight,
            ordering_key,
            unique_key,
            version,
            *instants,
            outcome,
            next_state,
            error_type,
            error_text,
            node,
            path,
            payload_bytes,
        ) = attempt(n)
        assert (row["task_id"], row["attempt"], row["tries"], row["queue"], row["name"]) == (
            task_id,
            number,
            tries,
            queue,
            name,
        )
        assert (row["partition"], row["priority"], row["fairness_key"], row["weight"]) == (
            partition,
            priority,
            key,
            weight,
        )
        assert (row["ordering_key"], row["version"], row["node"]) == (ordering_key, version, node)
        assert row["unique_key_hash"] == zlib.crc32(unique_key.encode())
        assert (row["outcome"], row["next_state"], row["trigger_path"]) == (
            outcome,
            next_state,
            path,
        )
        assert (row["error_type"], row["payload_bytes"]) == (error_type, payload_bytes)
        columns = (
            "submitted_at",
            "run_at",
            "ready_at",
            "triggered_at",
            "claimed_at",
            "started_at",
            "finished_at",
        )
        assert [row[column] for column in columns] == [
            None
            if instant is None
            else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant)
            for instant in instants
        ]
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
    store_url: str, history: SqlHistory, lake: Lake
) -> None:
    add(store_url, *range(4))
    with connected(store_url) as connection:
        for n, end in enumerate((-5, 2**62, 0)):
            connection.execute(
                f"UPDATE fairlead_attempts SET finished_at = {end} WHERE task_id = '{id_text(n)}'"
            )
    exporter(history, lake).round()
    assert exported_raw(lake) == [0, 1, 2, 3]
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 4


def exported_raw(lake: Lake) -> list[int]:
    here = lake.table(ATTEMPTS)
    ids = here.load(here.manifests.newest(), columns=["task_id"])["task_id"].to_pylist()
    return sorted(int(task_id.replace("-", ""), 16) for task_id in ids)


def test_changes_by_people_and_submits_are_exported_once(store_url: str, lake: Lake) -> None:
    app = App(store_url)
    app.migrate()

    @app.task
    async def pay() -> None: ...

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


def export_until(url: str, lake: Lake, step: str, times: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own interpreter
        [
            sys.executable,
            "-m",
            "tests.pipeline.export_until",
            url,
            str(lake.root),
            step,
            str(times),
        ],
        cwd=ROOT,
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )


def nothing_else_is_on_disk(table: LakeTable) -> None:
    """Check that after a long time only listed files are on disk."""
    from os import utime

    for path in table.folder.rglob("*"):
        utime(path, (1, 1))
    table.sweep(SYSTEM_CLOCK.now())
    there = sorted(str(path) for path in table.folder.glob("date=*/**/*") if path.is_file())
    assert there == sorted(table.paths(table.manifests.newest()))
    assert [path.name for path in table.manifests.folder.iterdir()] == [
        f"{table.manifests.newest().number:012}.json"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "times"),
    [(step, 1) for step in STEPS]
    + [
        pytest.param(*later, marks=FULL("a long run"))
        for later in [
            ("read", 3),
            ("temporary file written", 5),
            ("renamed", 4),
            ("manifest linked", 2),
            ("files count", 3),
            ("position reported", 4),
        ]
    ],
)
def test_an_export_killed_after_any_step_and_repeated_has_every_attempt_once(
    store_url: str, history: SqlHistory, lake: Lake, step: str, times: int
) -> None:
    spread(store_url, 18)
    killed = export_until(store_url, lake, step, times)
    assert killed.returncode == KILLED, killed.stderr
    add(store_url, 18, 19)
    exporter(history, lake, rows=5).round()
    assert exported(lake) == list(range(20))
    assert reader(history, lake).position == Position(*_last(history)[:2])
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 20
    nothing_else_is_on_disk(lake.table(ATTEMPTS))
    assert exported(lake) == list(range(20))


def _last(history: SqlHistory) -> Any:
    return history.database.read_now(history.attempts(START, Position(2**62, 2**62), 1000))[-1]


@pytest.mark.full("a long run")
def test_an_export_that_is_killed_repeatedly_still_finishes(
    store_url: str, history: SqlHistory, lake: Lake
) -> None:
    chance = random.Random(3)
    added = 0
    for _ in range(6):
        count = chance.randrange(5, 25)
        add(store_url, *range(added, added + count))
        added += count
        export_until(store_url, lake, chance.choice(sorted(STEPS)), chance.randrange(1, 4))
    exporter(history, lake).round()
    assert exported(lake) == list(range(added))
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == added


# several at once ----------------------------------------------------------------------------------


def wait_until_exported(lake: Lake, count: int) -> None:
    """Wait until other processes have exported `count` attempts, by polling the lake."""
    until = time.monotonic() + 60
    while len(exported(lake)) < count and time.monotonic() < until:
        time.sleep(0.05)


@pytest.mark.full("a long run")
def test_two_simultaneous_exporters_export_each_attempt_once(
    store_url: str, history: SqlHistory, lake: Lake
) -> None:
    add(store_url, *range(50))
    with ExitStack() as ending:
        exporters = [
            ending.enter_context(
                subprocess.Popen(  # noqa: S603 - our own interpreter
                    [
                        sys.executable,
                        "-m",
                        "tests.pipeline.export_until",
                        store_url,
                        str(lake.root),
                        "never",
                        "0",
                    ],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(2)
        ]
        for process in exporters:
            ending.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "exporting\n"
        chance, count = random.Random(1), 50
        with connected(store_url) as connection:
            while count < 500:
                more = chance.randrange(1, 12)
                add_attempts(connection, range(count, count + more))
                count += more
                wait_until_exported(lake, count - 60)  # rows arrive while both exporters work
        wait_until_exported(lake, count)
        assert all(process.poll() is None for process in exporters), "no exporter has failed"
    assert exported(lake) == list(range(count))
    exporter(history, lake).round()
    assert exported(lake) == list(range(count))
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == count
    nothing_else_is_on_disk(lake.table(ATTEMPTS))


def test_the_second_of_two_exporters_of_the_same_rows_continues_after_them(
    store_url: str, history: SqlHistory, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store_url, *range(10))
    other = exporter(history, lake)
    write, wrote = LakeTable.write, []

    def overtaken(table: LakeTable, *args: Any) -> Any:
        written = write(table, *args)
        wrote.append(written)
        if len(wrote) == 1:
            other.round()  # between the files and the manifest of the first exporter
        return written

    monkeypatch.setattr(LakeTable, "write", overtaken)
    assert exporter(history, lake).round().attempts == 0, "no attempt was left"
    assert exported(lake) == list(range(10))
    listed = {
        file
        for part in lake.table(ATTEMPTS).manifests.newest().parts.values()
        for file in part.files
    }
    assert not {file.file for file in wrote[0]} & listed, (
        "no listed file was written by both exporters"
    )


def test_an_attempt_that_commits_late_is_exported_once_after_its_commit(
    postgres_url: str, lake: Lake
) -> None:
    history = SqlHistory(migrated(postgres_url).database)
    with connected(postgres_url) as late:
        late.execute("BEGIN")
        add_attempts(late, [0])
        add(postgres_url, 1, 2)
        assert exporter(history, lake).round().attempts == 0, (
            "attempt 0 comes before the committed ones"
        )
        assert exporter(history, lake).behind() == 0
        late.execute("COMMIT")
    assert exporter(history, lake).behind() == 3
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


def test_several_stores_share_a_lake(sqlite_url: str, tmp_path: Path, lake: Lake) -> None:
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
    sqlite_url: str, lake: Lake
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


def test_a_lake_that_lost_its_newest_manifest_gets_each_attempt_of_it_once_more(
    store_url: str, history: SqlHistory, lake: Lake
) -> None:
    add(store_url, *range(10))
    exporter(history, lake).round()
    reconcile(history, lake, SYSTEM_CLOCK)
    table = lake.table(ATTEMPTS)
    (table.manifests.folder / f"{table.manifests.newest().number:012}.json").unlink()
    assert exported(lake) == list(range(7))
    exporter(history, lake).round()
    assert exported(lake) == list(range(10))
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 3, (
        "rows that were exported again are compared again"
    )


def test_a_lake_dropped_from_the_store_continues_and_compares_only_new_attempts(
    store_url: str, history: SqlHistory, lake: Lake
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
