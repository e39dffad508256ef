"""`erase` removes every row of a key from all tables and files, no row of another key, and later
exports do not bring rows back."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.jobs.build_plan import plan
from fairlead.pipeline.jobs.erase import erase, readmit_key
from fairlead.pipeline.ledger import LEDGER
from fairlead.pipeline.models import (
    ATTEMPTS,
    EVENTS,
    FAILURES,
    FAIRNESS,
    INCIDENTS,
    LATENCY,
    QUARANTINE,
    RUNS,
    TABLES,
    TENANT_SHARE,
)
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.runs import last_runs
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import PipelineSettings
from fairlead.pipeline.warehouse.builds import PUBLISHED, Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import BRANCH
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables
from tests.pipeline.filling import add, migrated
from tests.pipeline.forks import KILLED, exit_code
from tests.pipeline.frames import T0, attempt, event
from tests.pipeline.killed import ERASE, erase_until
from tests.pipeline.tables_by_hand import put, row, rows_of
from tests.pipeline.warehouses import MadeOnce, export, lake_in, overtake, root_of
from tests.tiers import NIGHTLY

KEY = "acme-corp"
OTHERS = ("acme-corp2", "not-acme-corp0", "b", "")


FEW = (ATTEMPTS, EVENTS, QUARANTINE, FAILURES, TENANT_SHARE)
"""Tables of a lake that is erased quickly."""


def fill(lake: Warehouse, tables: Collection[Table] = FEW) -> None:
    """Add three hours of a day to these tables: rows of the key and of other keys."""
    for number in range(3):
        rows = [
            attempt(
                fairness_key=key,
                finished_at=3600 * number + n,
                outcome=outcome,
                error_type=kind,
                error_text=text,
            )
            for n, (key, outcome, kind, text) in enumerate(
                [
                    (KEY, "done", None, None),
                    (KEY, "retried", "NoCover", "card 4711 declined"),
                    *((other, "done", None, None) for other in OTHERS),
                    ("b", "retried", "Busy", "after acme-corp2"),
                ]
            )
        ]
        put(lake, ATTEMPTS, rows, f"export-{number}")
    bad = [attempt(fairness_key=key, started_at=9, finished_at=1) for key in (KEY, "b")]
    raws = [json.dumps(r, default=str) for r in bad]
    texts = [
        ("work", 1950285553, "card 4711 declined"),
        ("other", 1950285553, "card 1 declined"),
        ("work", 8, f"told of '{KEY}'"),
    ]
    lags = [("x", KEY, "b"), ("y", "b", KEY), ("z", "b", "acme-corp2")]
    made: dict[Table, list[dict[str, Any]]] = {
        EVENTS: [
            event(fairness_key=key, at=60, details=json.dumps({"of": key}))
            for key in (KEY, *OTHERS)
        ],
        QUARANTINE: [row(QUARANTINE, ordinal=str(n), raw=text) for n, text in enumerate(raws)],
        FAIRNESS: [row(FAIRNESS, queue=q, max_lag_key=a, noisy_key=b) for q, a, b in lags],
        FAILURES: [
            row(FAILURES, hour=T0, queue="q", name=name, error_fp=fp, error_text=text)
            for name, fp, text in texts
        ],
        RUNS: [row(RUNS, run_id="1", job="build", params="{}", checks="[]", error="a broken row")],
        INCIDENTS: [
            row(INCIDENTS, incident_id=subject, kind="flood", subject=subject)
            for subject in (KEY, *OTHERS, "*")
        ],
    }
    for table in tables:
        if table is not ATTEMPTS and "fairness_key" in table.column_names:
            made.setdefault(table, [row(table, fairness_key=key) for key in (KEY, *OTHERS, "*")])
        if table in made:
            put(lake, table, made[table])
    built = {
        table.name: snapshot
        for table in TABLES
        if table.name.startswith(("silver", "gold"))
        and (snapshot := lake.table(table).state().snapshot) is not None
    }
    sources = {
        table.name: snapshot
        for table in (ATTEMPTS, EVENTS)
        if (snapshot := lake.table(table).state().snapshot) is not None
    }
    builds = Builds(lake)
    before, seen = builds.newest()
    build = msgspec.structs.replace(before.after(built), sources=sources, settings="s")
    assert builds.publish(build, seen, SYSTEM_CLOCK.now())
    builds.finish(build)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    return MadeOnce(tmp_path_factory.mktemp("made"), fill)


@pytest.fixture
def lake(made: MadeOnce) -> Warehouse:
    """Lake with few tables."""
    return made.again()


def erased(lake: Warehouse, key: str = KEY, **more: Any) -> Any:
    return erase(lake, key, SYSTEM_CLOCK, **more)


def all_rows(lake: Warehouse, tables: Iterable[Table] = TABLES) -> dict[str, list[dict[str, Any]]]:
    return {table.name: rows_of(lake, table) for table in tables if table is not RUNS}


def files_with(folder: Path, key: str) -> list[str]:
    """Return every file below a folder with the key in its bytes or in the text of a column, without
    using the code under test."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file() or path.suffix == ".crc":
            continue
        text = path.read_bytes().decode("latin-1")
        if path.suffix == ".parquet":
            text = "\n".join(str(r) for r in pq.read_table(path, partitioning=None).to_pylist())
        words = text.replace("'", " ").replace('"', " ").replace(",", " ").split()
        if key in words:
            found.append(str(path.relative_to(folder)))
    return found


# what is erased -----------------------------------------------------------------------------------


def test_an_erasure_removes_every_row_of_the_key_and_no_row_of_another(
    tmp_path: Path,
) -> None:
    lake = lake_in(tmp_path / "lake")
    fill(lake, TABLES)
    before = all_rows(lake)
    done = erased(lake)
    assert files_with(root_of(lake), KEY) == [] and done.left == {}
    after = all_rows(lake)
    for table in TABLES:
        if table is RUNS or table is QUARANTINE or "fairness_key" not in table.column_names:
            continue
        kept = [r["fairness_key"] for r in after[table.name]]
        assert kept == [
            r["fairness_key"] for r in before[table.name] if r["fairness_key"] != KEY
        ], table.name
        assert done.rows[table.name] == len(before[table.name]) - len(kept) > 0
    assert [r["ordinal"] for r in after[QUARANTINE.name]] == ["1"]
    assert [r["subject"] for r in after[INCIDENTS.name]] == [*OTHERS, "*"]
    assert [r["queue"] for r in after[FAIRNESS.name]] == ["z"]
    assert after[ATTEMPTS.name] == [r for r in before[ATTEMPTS.name] if r["fairness_key"] != KEY]


def test_texts_of_errors_that_may_come_from_the_key_are_removed(lake: Warehouse) -> None:
    later = row(FAILURES, hour=T0 + timedelta(days=2), error_fp=8, error_text="card 1 declined")
    put(lake, FAILURES, [later], "later")
    before = rows_of(lake, FAILURES)
    erased(lake)
    after = rows_of(lake, FAILURES)
    assert [each["error_fp"] for each in after] == [each["error_fp"] for each in before]
    assert [each["error_text"] for each in after] == [None, None, None, "card 1 declined"]


@pytest.mark.parametrize("key", ["", "*", "\ud800"])
def test_a_word_that_names_no_single_key_is_refused(lake: Warehouse, key: str) -> None:
    with pytest.raises(ConfigurationError, match="key"):
        erased(lake, key)


@pytest.mark.parametrize("key", ["Müller & Söhne", 'a "b" <c>', "C:\\x", "名前", "tenant/7", "50%"])
def test_a_key_with_special_characters_is_erased(tmp_path: Path, key: str) -> None:
    lake = lake_in(tmp_path / "lake")
    put(lake, ATTEMPTS, [attempt(fairness_key=key), attempt(fairness_key="b")])
    raws = ["no JSON", *(json.dumps({"fairness_key": each}) for each in (key, "b"))]
    put(lake, QUARANTINE, [row(QUARANTINE, ordinal=str(n), raw=raw) for n, raw in enumerate(raws)])
    done = erased(lake, key)
    assert done.rows == {ATTEMPTS.name: 1, QUARANTINE.name: 1} and done.left == {}
    assert keys(lake) == {"b"}
    assert [each["ordinal"] for each in rows_of(lake, QUARANTINE)] == ["0", "2"]


def test_a_dry_run_of_an_erasure_counts_the_rows_and_changes_nothing(lake: Warehouse) -> None:
    before = {path: path.read_bytes() for path in root_of(lake).rglob("*") if path.is_file()}
    done = erased(lake, dry_run=True)
    assert done.rows[ATTEMPTS.name] == 6 and done.left == done.rows
    assert done.days == ["2026-03-02"]
    after = {path: path.read_bytes() for path in root_of(lake).rglob("*") if path.is_file()}
    assert after == before


def test_the_next_build_rebuilds_the_days_that_counted_the_key(lake: Warehouse) -> None:
    put(
        lake,
        ATTEMPTS,
        [attempt(fairness_key=KEY, ready_at=-3 * 86_400, finished_at=-86_400)],
        "long ago",
    )
    erased(lake)
    build, _ = Builds(lake).newest()
    assert {hour[:10] for hour in build.again} == {
        f"2026-{day}" for day in ("02-27", "02-28", "03-01", "03-02")
    }
    assert lake.table(ATTEMPTS).changed(build.sources[ATTEMPTS.name]) == set()
    todo = plan(WarehouseTables(cast(Any, None), lake, SYSTEM_CLOCK), "s", full=False)
    assert not todo.full and todo.again == set(build.again)
    assert todo.changed_attempts == {f"2026-03-02/{hour}" for hour in (10, 11, 12)}


def test_the_record_of_an_erasure_does_not_reveal_the_key(lake: Warehouse) -> None:
    erased(lake)
    run = last_runs(lake)["erase"]
    assert run["state"] == "done" and run["rows_out"] > 0
    assert KEY not in json.dumps(run, default=str)
    assert len(lake.table(ATTEMPTS).state().erased) == 1


# unlisted files --------------------------------------------------------------------------


def test_unlisted_files_with_the_key_are_removed_too(lake: Warehouse) -> None:
    table = lake.table(ATTEMPTS)
    left = table.write(table.load(), "dead")
    half = root_of(lake) / "fairlead/bronze_attempts/data/half.parquet"
    half.write_bytes(b"PAR1 half of a file with acme-corp")
    assert erased(lake).left == {} and not half.exists()
    assert not any(Path(each.file_path.removeprefix("file://")).exists() for each in left)
    assert files_with(root_of(lake), KEY) == []


def test_branches_of_dead_builds_are_removed(lake: Warehouse) -> None:
    stored = lake.catalog.load_table("fairlead.gold_tenant_share")
    before = stored.current_snapshot()
    assert before is not None
    stored.manage_snapshots().create_branch(before.snapshot_id, f"{BRANCH}dead").commit()
    stored.append(stored.scan().to_arrow(), branch=f"{BRANCH}dead")
    assert erased(lake).left == {} and files_with(root_of(lake), KEY) == []
    refs = lake.catalog.load_table("fairlead.gold_tenant_share").metadata.refs
    assert set(refs) == {"main", PUBLISHED}


def test_a_build_that_has_read_the_key_cannot_publish_after_the_erasure(lake: Warehouse) -> None:
    builds = Builds(lake)
    before, seen = builds.newest()
    erased(lake)
    assert not builds.publish(before.after({}), seen, SYSTEM_CLOCK.now())
    newest, _ = builds.newest()
    assert newest.id != before.id and newest.snapshots.keys() == before.snapshots.keys()
    builds.finish(newest)


def test_a_lake_without_builds_has_its_bronze_erased(tmp_path: Path) -> None:
    lake = lake_in(tmp_path / "lake")
    assert erased(lake).rows == {}
    put(lake, ATTEMPTS, [attempt(fairness_key=KEY), attempt(fairness_key="b")])
    assert erased(lake).rows[ATTEMPTS.name] == 1
    assert files_with(root_of(lake), KEY) == [] and not Builds(lake).newest()[0].id


# later exports ---------------------------------------------------------------------------------


@pytest.fixture
def exported(store_url: str, history: SqlHistory) -> tuple[str, SqlHistory]:
    """Return a store with attempts of tenant-0 to tenant-6."""
    add(store_url, *range(20))
    return store_url, history


def keys(lake: Warehouse) -> set[str]:
    return {r["fairness_key"] for r in rows_of(lake, ATTEMPTS)}


def test_a_late_export_restores_no_erased_row_and_the_store_may_still_clean(
    exported: tuple[str, SqlHistory], tmp_path: Path
) -> None:
    url, history = exported
    lake = lake_in(tmp_path / "lake")
    exporter = Exporter(history, lake, SYSTEM_CLOCK, rows=6)
    exporter.round()
    assert erased(lake, "tenant-3").rows[ATTEMPTS.name] == 3
    assert lake.table(LEDGER).load().num_rows == 3
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 20, "erased rows count as compared"
    assert lake.table(LEDGER).load().num_rows == 0, (
        "after the comparison, the ledger of erased rows is empty"
    )
    add(url, *range(20, 41))
    assert exporter.round().attempts == 21
    assert keys(lake) == {f"tenant-{n}" for n in range(7) if n != 3}
    assert files_with(root_of(lake), "tenant-3") == []
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 21
    assert erased(lake, "tenant-3").left == {}


def test_an_erased_key_can_be_admitted_again(
    exported: tuple[str, SqlHistory], tmp_path: Path
) -> None:
    url, history = exported
    lake = lake_in(tmp_path / "lake")
    exporter = Exporter(history, lake, SYSTEM_CLOCK)
    exporter.round()
    erased(lake, "tenant-3")
    assert readmit_key(lake, "tenant-3") and not readmit_key(lake, "tenant-3")
    add(url, *range(20, 27))
    exporter.round()
    assert [r["fairness_key"] for r in rows_of(lake, ATTEMPTS)].count("tenant-3") == 1
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 27


def test_an_export_that_began_before_the_erasure_restores_nothing(
    exported: tuple[str, SqlHistory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, history = exported
    lake = lake_in(tmp_path / "lake")
    wrote = overtake(monkeypatch, lambda table, number: number == 1 and erased(lake, "tenant-3"))
    assert Exporter(history, lake, SYSTEM_CLOCK).round().attempts == 20
    assert [name for name, _ in wrote].count(ATTEMPTS.name) == 2, "the export was repeated"
    assert "tenant-3" not in keys(lake) and files_with(root_of(lake), "tenant-3") == []
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 20


# kill -9 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "times"),
    [(step, 1) for step in ERASE]
    + [
        pytest.param(*later, marks=NIGHTLY("a long run"))
        for later in [
            ("file written", 5),
            ("committed", 5),
            ("committed", 12),
            ("partition replaced", 4),
            ("table done", 14),
            ("snapshots forgotten", 3),
            ("file removed", 3),
        ]
    ],
)
def test_an_erasure_killed_after_any_step_and_repeated_leaves_nothing_of_the_key(
    lake: Warehouse, step: str, times: int
) -> None:
    before = all_rows(lake, FEW)
    assert exit_code(erase_until, lake.location, KEY, step, times) == KILLED
    all_rows(lake, FEW)  # a reader at this moment gets complete tables
    done = erased(lake)
    assert done.left == {} and files_with(root_of(lake), KEY) == []
    after = all_rows(lake, FEW)
    for table in (ATTEMPTS, EVENTS, TENANT_SHARE):
        others = [r["fairness_key"] for r in before[table.name] if r["fairness_key"] != KEY]
        assert [r["fairness_key"] for r in after[table.name]] == others
    positions = rows_of(lake, LEDGER)
    assert len({(each["xid"], each["seq"]) for each in positions}) == 6, (
        "each erased attempt is in the ledger"
    )
    assert {hour[:10] for hour in Builds(lake).newest()[0].again} == {f"{T0:%Y-%m-%d}"}


# on an object store -------------------------------------------------------------------------------


def test_an_object_store_has_no_byte_of_an_erased_key(
    sqlite_url: str, s3_lake: str, postgres_url: str
) -> None:
    import boto3

    lake = Warehouse(Location.of(s3_lake, postgres_url))
    history = SqlHistory(migrated(sqlite_url).database)
    add(sqlite_url, *range(20))
    exporter = Exporter(history, lake, SYSTEM_CLOCK)
    exporter.round()
    client = boto3.client("s3", region_name="us-east-1")
    bucket = s3_lake.removeprefix("s3://").partition("/")[0]

    def with_key() -> list[str]:
        found = []
        for each in client.list_objects_v2(Bucket=bucket)["Contents"]:
            data = client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read()
            if each["Key"].endswith(".parquet"):
                data = str(pq.read_table(pa.BufferReader(data)).to_pylist()).encode()
            found += [each["Key"]] if b"tenant-3" in data else []
        return found

    assert with_key()
    done = erased(lake, "tenant-3")
    assert done.rows[ATTEMPTS.name] == 3 and done.left == {} and with_key() == []
    add(sqlite_url, *range(20, 41))
    exporter.round()
    assert "tenant-3" not in keys(lake) and with_key() == []
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 41
    history.database.close()


# after a build by Spark ---------------------------------------------------------------------------


def test_no_file_has_an_erased_key_after_builds_by_spark(
    tmp_path: Path, spark_on: Callable[[Warehouse], SparkSession]
) -> None:
    from fairlead.pipeline.jobs.build import JobContext, build

    lake = lake_in(tmp_path / "lake")
    job = JobContext(spark_on(lake), lake, SYSTEM_CLOCK)

    rows = [attempt(fairness_key=key, finished_at=600.0 * n) for n, key in enumerate((KEY, "b"))]
    failed = attempt(fairness_key="b", outcome="failed", error_type="E", error_text="no cover")
    export(lake, ATTEMPTS, [*rows, failed], hours=2)
    export(lake, EVENTS, [event(fairness_key=KEY, at=60)], hours=2)
    assert build(job, PipelineSettings()).state == "done"
    assert KEY in {each["fairness_key"] for each in rows_of(lake, LATENCY)}
    assert files_with(root_of(lake), KEY)

    assert erased(lake).left == {} and files_with(root_of(lake), KEY) == []
    assert build(job, PipelineSettings()).state == "done"
    assert files_with(root_of(lake), KEY) == []
    assert {each["fairness_key"] for each in rows_of(lake, LATENCY)} == {"b", "*"}
