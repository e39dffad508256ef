"""The lake: complete files only, manifests with many concurrent writers, and errors that name the file."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlead.clock import to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline import durable
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.manifest import Manifest, Manifests
from fairlead.pipeline.lake.table import DAY, GRACE, HOUR, LakeTable, part_from
from fairlead.pipeline.schema import SCHEMA_VERSION, Column, Table
from tests.pipeline.frames import T0, attempt

NOW = to_micros(T0) + DAY
PAST_ALL = time.time_ns() // 1000 + HOUR
"""Later than the time of any file."""


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return Lake(tmp_path / "lake").table(ATTEMPTS)


def rows_of(*rows: Mapping[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=ATTEMPTS.arrow())


def ended(*seconds: float) -> pa.Table:
    """Return one attempt for each of these ends (seconds after T0)."""
    return rows_of(*(attempt(finished_at=second, submitted_at=T0) for second in seconds))


def add(table: LakeTable, rows: pa.Table, name: str = "a.parquet") -> None:
    while table.append(table.write(rows, "0", name), {}, NOW) is None:
        pass  # a sweep removed the file before it was listed


def ids(table: LakeTable, parts: Iterable[str] | None = None) -> list[str]:
    return sorted(table.load(table.manifests.newest(), parts)["task_id"].to_pylist())


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


# files --------------------------------------------------------------------------------------------


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.write(path, lambda temporary: temporary.write_text("first"))

    def breaks(temporary: Path) -> None:
        temporary.write_text("sec")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        durable.write(path, breaks)
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"
    durable.write(path, lambda temporary: temporary.write_text("second"))
    assert path.read_text() == "second"


def test_one_of_many_writers_creates_a_file_and_no_reader_sees_half_of_it(tmp_path: Path) -> None:
    for n in range(20):
        path, start = tmp_path / str(n), threading.Barrier(4)
        seen: list[bytes] = []

        def create(
            content: bytes,
            path: Path = path,
            start: threading.Barrier = start,
            seen: list[bytes] = seen,
        ) -> bool:
            start.wait()
            done = durable.create(path, content)
            seen.append(path.read_bytes())
            return done

        contents = [bytes([letter]) * 100_000 for letter in b"abcd"]
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(create, contents))
        assert done.count(True) == 1
        assert set(seen) == {contents[done.index(True)]}
    assert len(list(tmp_path.iterdir())) == 20


def test_a_link_that_was_created_despite_an_error_counts_as_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def answered_twice(source: Any, target: Any) -> None:
        link(source, target)
        raise FileExistsError(target)  # as NFS does after it has repeated a request

    monkeypatch.setattr(os, "link", answered_twice)
    assert durable.create(tmp_path / "file", b"ours")
    monkeypatch.undo()
    assert not durable.create(tmp_path / "file", b"theirs")


# manifests ----------------------------------------------------------------------------------------


def count_up(folder: Path, name: str, times: int) -> None:
    """Increment a shared counter `times` times."""
    manifests = Manifests(folder)
    for n in range(times):

        def change(before: Manifest, n: int = n) -> Manifest:
            total = int(before.cursors.get("total", "0"))
            return msgspec.structs.replace(
                before, cursors=before.cursors | {"total": str(total + 1), name: str(n + 1)}
            )

        assert manifests.update(change, NOW) is not None


def test_no_concurrent_change_of_many_threads_is_lost(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: count_up(tmp_path, f"w{n}", 15), range(6)))
    newest = Manifests(tmp_path).newest()
    assert newest.cursors == {"total": "90"} | {f"w{n}": "15" for n in range(6)}
    assert newest.number == 90


def test_no_concurrent_change_of_many_processes_is_lost(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count_up, args=(tmp_path, f"p{n}", 20)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    newest = Manifests(tmp_path).newest()
    assert newest.cursors == {"total": "60"} | {f"p{n}": "20" for n in range(3)}


def test_superseded_manifests_are_removed_after_ten_minutes(tmp_path: Path) -> None:
    manifests = Manifests(tmp_path)
    count_up(tmp_path, "w", 5)
    for number in (1, 2, 3):
        age(manifests.folder / f"{number:012}.json", 700)
    count_up(tmp_path, "w", 1)
    assert manifests.numbers() == [3, 4, 5, 6], "manifest 3 was the newest a moment ago"
    age(manifests.folder / f"{6:012}.json", 1e6)
    assert manifests.drop_superseded() == 0
    assert manifests.newest().number == 6, "the newest stays, however old"


def test_a_writer_that_was_suspended_until_its_number_was_free_again_is_refused(
    tmp_path: Path,
) -> None:
    sleeper, others = Manifests(tmp_path), Manifests(tmp_path)
    count_up(tmp_path, "w", 3)
    asked: list[int] = []

    def change(before: Manifest) -> Manifest:
        asked.append(before.number)
        if len(asked) == 1:
            count_up(tmp_path, "w", 3)
            assert others.drop_superseded(kept=-1) == 6
        return msgspec.structs.replace(before, cursors=before.cursors | {"sleeper": "was here"})

    after = sleeper.update(change, NOW)
    assert asked == [3, 6], "its first try was refused"
    assert after is not None
    assert others.newest() == after
    assert after.number == 7
    assert others.numbers() == [6, 7]


def test_a_reader_finds_the_table_while_manifests_are_written_and_removed(tmp_path: Path) -> None:
    ends = threading.Event()

    def churn() -> None:
        while not ends.is_set():
            count_up(tmp_path, "w", 1)
            Manifests(tmp_path).drop_superseded(kept=-1)

    thread = threading.Thread(target=churn)
    count_up(tmp_path, "w", 1)
    thread.start()
    try:
        seen = [Manifests(tmp_path).newest().number for _ in range(2000)]
    finally:
        ends.set()
        thread.join()
    assert seen == sorted(seen)
    assert seen[0] > 0


def test_the_error_about_an_unreadable_manifest_names_it_and_the_cure(tmp_path: Path) -> None:
    count_up(tmp_path, "w", 2)
    path = tmp_path / "_manifest" / f"{2:012}.json"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(
        BrokenLake, match=r"000000000002.json cannot be read.*restore it, or remove it"
    ):
        Manifests(tmp_path).newest()
    path.unlink()
    assert Manifests(tmp_path).newest().number == 1


def test_a_manifest_of_a_newer_fairlead_asks_for_an_upgrade_and_is_not_touched(
    tmp_path: Path,
) -> None:
    manifests = Manifests(tmp_path)
    count_up(tmp_path, "w", 1)
    newer = msgspec.structs.replace(manifests.newest(), number=2, schema_version=SCHEMA_VERSION + 1)
    durable.create(manifests.folder / f"{2:012}.json", msgspec.json.encode(newer))
    with pytest.raises(ConfigurationError, match="upgrade"):
        manifests.newest()
    with pytest.raises(ConfigurationError, match="upgrade"):
        count_up(tmp_path, "w", 1)
    assert manifests.numbers()[-1] == 2


# tables -------------------------------------------------------------------------------------------


def test_rows_are_stored_in_the_hours_of_their_ends(table: LakeTable) -> None:
    add(table, ended(0, 1, 3599.999999, 3600, 7200.5))
    manifest = table.manifests.newest()
    assert {name: part.rows for name, part in manifest.parts.items()} == {
        "2026-03-02/10": 3,
        "2026-03-02/11": 1,
        "2026-03-02/12": 1,
    }
    assert manifest.parts["2026-03-02/11"].span["finished_at"] == (
        to_micros(T0) + HOUR,
        to_micros(T0) + HOUR,
    )
    assert len(ids(table)) == manifest.rows == 5
    assert len(ids(table, ["2026-03-02/10"])) == 3
    table.check(manifest)


def test_a_row_whose_instant_is_no_date_is_not_lost(table: LakeTable) -> None:
    plain = ended(5)
    odd = [-1, -(2**62), 2**62, 253_402_300_800 * 1_000_000]
    index = plain.schema.get_field_index("finished_at")
    columns = [
        plain.set_column(
            index,
            plain.schema.field(index),
            pa.array([instant]).cast(plain.schema.field(index).type),
        )
        for instant in odd
    ]
    add(table, pa.concat_tables([plain, *columns]))
    manifest = table.manifests.newest()
    assert {name: part.rows for name, part in manifest.parts.items()} == {
        "1970-01-01/00": 4,
        "2026-03-02/10": 1,
    }
    found = table.load(manifest)["finished_at"].cast(pa.int64()).to_pylist()
    assert sorted(found) == sorted([*odd, to_micros(T0) + 5_000_000])


def test_a_table_by_date_has_a_partition_a_day(tmp_path: Path) -> None:
    daily = Table(
        "t",
        "",
        ("n",),
        "at",
        (Column("n", "int", ""), Column("at", "timestamp", "")),
        by="date",
    )
    table = Lake(tmp_path).table(daily)
    rows = pa.table(
        {"n": pa.array([1, 2], pa.int32()), "at": [T0, datetime(2026, 3, 3, tzinfo=UTC)]},
        daily.arrow(),
    )
    add(table, rows)
    assert sorted(table.manifests.newest().parts) == ["2026-03-02", "2026-03-03"]
    assert table.load(table.manifests.newest(), ["2026-03-03"])["n"].to_pylist() == [2]


def test_a_cursor_and_its_files_are_published_together_or_not_at_all(table: LakeTable) -> None:
    written = table.write(ended(1), "0", "a.parquet")
    assert table.append(written, {"s": (None, "5")}, NOW) is not None
    again = table.write(ended(1), "0", "b.parquet")
    assert table.append(again, {"s": (None, "5")}, NOW) is None, (
        "another writer has moved the cursor"
    )
    assert table.append(again, {"s": ("4", "6")}, NOW) is None
    manifest = table.manifests.newest()
    assert (manifest.rows, manifest.cursors) == (1, {"s": "5"})
    assert table.append(again, {"s": ("5", "6")}, NOW) is not None
    assert (table.manifests.newest().rows, table.manifests.newest().cursors) == (2, {"s": "6"})


def test_one_of_many_writers_moves_a_cursor_from_one_position(table: LakeTable) -> None:
    written = [table.write(ended(n), "0", f"{n}.parquet") for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(lambda files: table.append(files, {"s": (None, "1")}, NOW), written)
        )
    assert sum(answer is not None for answer in answers) == 1
    assert table.manifests.newest().rows == 1


def test_a_file_removed_meanwhile_is_not_listed(table: LakeTable) -> None:
    written = table.write(ended(1), "0", "a.parquet")
    (table.folder / written[0].file).unlink()
    assert table.append(written, {"s": (None, "5")}, NOW) is None
    part = part_from(written, NOW)
    assert table.replace({"2026-03-02/10": part}, {}, NOW) is None
    assert table.manifests.newest() == Manifest() or not table.manifests.newest().parts


def test_a_partition_changed_since_it_was_read_is_not_replaced(table: LakeTable) -> None:
    add(table, ended(1))
    seen = table.manifests.newest().parts["2026-03-02/10"]
    new = part_from([table.write_part(ended(2), "2026-03-02/10", "1", "x.parquet")], NOW)
    add(table, ended(3), "late.parquet")
    assert table.replace({"2026-03-02/10": new}, {"2026-03-02/10": seen}, NOW) is None
    assert table.manifests.newest().rows == 2
    now_seen = table.manifests.newest().parts["2026-03-02/10"]
    assert table.replace({"2026-03-02/10": new}, {"2026-03-02/10": now_seen}, NOW) is not None
    assert table.manifests.newest().rows == 1
    assert table.replace({"2026-03-02/10": None}, {"2026-03-02/10": new}, NOW) is not None
    assert table.manifests.newest().parts == {}


# errors ------------------------------------------------------------------------------------


def damaged(table: LakeTable) -> Path:
    (path,) = table.paths(table.manifests.newest())
    return Path(path)


def test_the_error_about_a_truncated_or_missing_file_names_it(table: LakeTable) -> None:
    add(table, ended(*range(100)))
    path = damaged(table)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BrokenLake, match=f"{path} is no whole Parquet file.*restore it"):
        table.check(table.manifests.newest())
    path.write_bytes(b"")
    with pytest.raises(BrokenLake, match="is no whole Parquet file"):
        table.check(table.manifests.newest())
    path.unlink()
    with pytest.raises(BrokenLake, match=f"{path} is listed .* not there"):
        table.check(table.manifests.newest())


def test_the_error_about_a_missing_or_changed_column_names_it(table: LakeTable) -> None:
    rows = ended(1, 2)
    add(table, rows)
    path = damaged(table)
    pq.write_table(rows.drop_columns(["queue"]), path)
    with pytest.raises(BrokenLake, match=f"{path}: column 'queue' of bronze.attempts is missing"):
        table.check(table.manifests.newest())
    index = rows.schema.get_field_index("version")
    pq.write_table(rows.set_column(index, "version", rows["version"].cast(pa.string())), path)
    with pytest.raises(
        BrokenLake, match="column 'version' of bronze.attempts is string, not int32"
    ):
        table.check(table.manifests.newest())


def test_a_column_added_later_is_null_in_older_files(table: LakeTable) -> None:
    rows = ended(1, 2)
    add(table, rows)
    pq.write_table(rows.drop_columns(["policy_version", "error_text"]), damaged(table))
    table.check(table.manifests.newest())
    found = table.load(table.manifests.newest())
    assert found.schema.names == ATTEMPTS.column_names
    assert found["policy_version"].null_count == 2


def test_missing_rows_in_a_readable_file_are_noticed(table: LakeTable) -> None:
    rows = ended(1, 2, 3)
    add(table, rows)
    pq.write_table(rows.slice(1), damaged(table))
    with pytest.raises(
        BrokenLake, match=r"partition 2026-03-02/10: 2 rows in its files, 3 in manifest 1"
    ):
        table.check(table.manifests.newest())


@pytest.mark.parametrize("url", ["s3://bucket/lake", "gs://bucket", "hdfs://name/lake"])
def test_an_object_store_is_refused_with_the_alternative(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Iceberg"):
        Lake(url)


def test_the_error_about_an_unusable_folder_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="give a folder"):
        Lake(tmp_path / "file" / "lake")

    def no_links(source: Any, target: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(ConfigurationError, match="hard links"):
        _ = Lake(tmp_path / "lake").identity


def test_a_lake_keeps_its_name_when_its_folder_is_moved(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "here")
    name = lake.reader
    assert Lake(str(tmp_path / "here")).reader == name
    (tmp_path / "here").rename(tmp_path / "there")
    assert Lake(f"file://{tmp_path / 'there'}").reader == name
    assert Lake(tmp_path / "other").reader != name


# sweeping -----------------------------------------------------------------------------------------


def test_unlisted_files_are_removed_after_some_time_and_listed_ones_stay(
    table: LakeTable,
) -> None:
    add(table, ended(1, 2))
    orphan = table.folder / table.write(ended(3), "0", "orphan.parquet")[0].file
    temporary = orphan.with_name(".x.parquet.abc")
    half = table.manifests.folder / ".000000000009.json.abc"
    alone = table.folder / table.write(ended(99_999), "7", "alone.parquet")[0].file
    for path in (temporary, half):
        path.write_bytes(b"half")
    for path in (orphan, temporary, half, alone, damaged(table)):
        age(path, 3600)
    assert table.sweep(PAST_ALL - 3 * HOUR) == (0, 0), (
        "unlisted files may belong to a write under way"
    )
    assert orphan.exists()
    assert table.sweep(PAST_ALL - HOUR - 1)[1] == 4
    assert [path for path in (orphan, temporary, half, alone) if path.exists()] == []
    assert len(ids(table)) == 2
    for folder in table.folder.glob("date=*/**/"):
        age(folder, 3600)
    table.sweep(PAST_ALL - HOUR - 1)
    table.sweep(PAST_ALL)
    assert not alone.parent.exists(), "empty folders are removed"


def test_replaced_files_stay_for_readers_that_still_use_them(table: LakeTable) -> None:
    now = time.time_ns() // 1000
    add(table, ended(1, 2))
    old = damaged(table)
    age(old, 1e6)
    seen = table.manifests.newest()
    new = part_from([table.write_part(ended(3), "2026-03-02/10", "1", "x.parquet")], now)
    assert table.replace({"2026-03-02/10": new}, {}, now) is not None
    table.sweep(now - 1)
    assert len(table.load(seen)) == 2, "a reader that opened the table before can read on"
    assert table.manifests.newest().dropped == {str(old.relative_to(table.folder)): now}
    table.sweep(now + 1)
    assert not old.exists()
    # The manifest no longer lists a file that was dropped more than GRACE ago.
    later = part_from([table.write_part(ended(4), "2026-03-02/10", "2", "x.parquet")], now)
    assert table.replace({"2026-03-02/10": later}, {}, now + GRACE + 1) is not None
    assert new is not None
    assert list(table.manifests.newest().dropped) == new.files


def test_concurrent_appends_replacements_and_sweeps_lose_no_row(table: LakeTable) -> None:
    chance = random.Random(5)
    ends = threading.Event()

    def sweep() -> None:
        while not ends.is_set():
            table.sweep(to_micros(datetime.now(UTC)) - 3_000_000)

    def rewrite() -> None:
        while not ends.is_set():
            manifest = table.manifests.newest()
            for name, part in manifest.parts.items():
                if len(part.files) > 1:
                    rows = table.load(manifest, [name])
                    new = part_from(
                        [table.write_part(rows, name, os.urandom(4).hex(), "x.parquet")], NOW
                    )
                    table.replace({name: new}, {name: part}, to_micros(datetime.now(UTC)))

    threads = [threading.Thread(target=work) for work in (sweep, rewrite)]
    for thread in threads:
        thread.start()
    expected: Counter[str] = Counter()
    try:
        for n in range(30):
            rows = ended(*(chance.uniform(0, 3 * 3600) for _ in range(3)))
            expected.update(rows["task_id"].to_pylist())
            add(table, rows, f"{n}.parquet")
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    table.check(table.manifests.newest())
    assert Counter(ids(table)) == expected
