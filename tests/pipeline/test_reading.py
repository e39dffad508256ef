"""The tables of a lake by their names, without Spark: what a query sees, and what it cannot reach."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fairlead.pipeline
from fairlead.cli.main import app as fairlead_command
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.model import tenant_of
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.jobs.erase import erase
from fairlead.pipeline.models import ATTEMPTS, COST, INCIDENTS, RUNS, SERVICE, TABLES
from fairlead.pipeline.reading.engine import file_name
from fairlead.pipeline.reading.object_files import ObjectFiles
from fairlead.pipeline.reading.query import connect, open_views, select
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.warehouse.builds import Build, Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import T0
from tests.pipeline.tables_by_hand import put, row
from tests.pipeline.warehouses import lake_in


def a_lake(folder: str | Path, catalog: str | None = None) -> Warehouse:
    """Return a lake with three rows of silver.service and two of gold.cost."""
    lake = Warehouse(Location.of(folder, catalog))
    put(lake, SERVICE, [row(SERVICE, window_start=T0, fairness_key=k) for k in ("a/1", "a/2", "b")])
    put(
        lake,
        COST,
        [row(COST, day=T0.replace(hour=0), queue=q, amount=Decimal("0.1")) for q in "xy"],
    )
    return lake


def selected(lake: Warehouse, query: str) -> list[tuple[Any, ...]]:
    with open_views(lake) as connection:
        return list(select(connection, query).rows)


def test_every_table_of_the_dictionary_can_be_read_with_its_columns(tmp_path: Path) -> None:
    lake = Warehouse(Location.of(tmp_path / "o'lake; -- [a-b]"))
    rows = {table: row(table) for table in TABLES}
    for table, made in rows.items():
        put(lake, table, [made])
    with fairlead.pipeline.connect(str(lake.location.folder)) as connection:
        for table, made in rows.items():
            result = connection.execute(f"SELECT * FROM {table.name}")
            assert [column[0] for column in result.description] == table.column_names
            assert result.fetchall() == [tuple(made.values())], table.name


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    lake = lake_in(tmp_path / "lake")
    put(lake, COST, [])
    with open_views(lake) as connection:
        found = select(connection, "SELECT * FROM gold.cost")
        assert found.columns == COST.column_names and list(found.rows) == []


def test_only_listed_files_are_read(tmp_path: Path) -> None:
    lake = a_lake(tmp_path / "lake")
    unlisted = [row(SERVICE, window_start=T0 + timedelta(hours=1))]
    lake.table(SERVICE).write(pa.Table.from_pylist(unlisted, SERVICE.arrow()), "x")
    assert selected(lake, "SELECT count(*) FROM silver.service") == [(3,)]


def test_readers_see_one_build_and_the_present_bronze(tmp_path: Path) -> None:
    lake = a_lake(tmp_path / "lake")
    builds = Builds(lake)
    before, seen = builds.newest()
    snapshots = {t.name: lake.table(t).state().snapshot for t in (SERVICE, COST)}
    assert builds.publish(before.after({k: v for k, v in snapshots.items() if v}), seen, 1)
    for table in (SERVICE, COST):
        here, state = lake.table(table), lake.table(table).state()
        later = pa.Table.from_pylist([row(table, queue="later")], table.arrow())
        assert here.append(here.write(later, "later", state), {}, state)  # not published yet
    put(lake, ATTEMPTS, [row(ATTEMPTS)])
    put(lake, INCIDENTS, [row(INCIDENTS)])
    counts = (
        "SELECT (SELECT count(*) FROM silver.service), (SELECT count(*) FROM gold.cost),"
        " (SELECT count(*) FROM bronze.attempts), (SELECT count(*) FROM gold.incidents)"
    )
    with open_views(lake) as connection:
        assert list(select(connection, counts).rows) == [(3, 2, 1, 1)]
        before, seen = builds.newest()
        snapshots = {t.name: lake.table(t).state().snapshot for t in (SERVICE, COST)}
        assert builds.publish(before.after({k: v for k, v in snapshots.items() if v}), seen, 2)
        assert list(select(connection, counts).rows) == [(3, 2, 1, 1)]  # as when it was opened
    assert selected(lake, counts) == [(4, 3, 1, 1)]


def test_a_build_whose_snapshot_was_forgotten_meanwhile_is_read_in_its_next_edition(
    tmp_path: Path, monkeypatch: Any
) -> None:
    lake, read = a_lake(tmp_path / "lake"), Builds.newest
    gone = Build(id="old", snapshots={SERVICE.name: 5})
    answers = [gone]

    def newest(builds: Builds) -> Any:
        build, seen = read(builds)
        return (answers.pop() if answers else build), seen

    monkeypatch.setattr(Builds, "newest", newest)
    assert selected(lake, "SELECT count(*) FROM silver.service") == [(3,)]
    answers += [gone, gone]
    with pytest.raises(BrokenLake, match="no snapshot 5"):
        connect(str(lake.location.folder))


@pytest.mark.parametrize("key", ["", "/", "a", "a/b/c", "/a/b", "//", "ü/x", "a\nb/c", "😀/\0"])
def test_the_tenant_of_a_key_is_the_same_in_a_query(tmp_path: Path, key: str) -> None:
    with open_views(a_lake(tmp_path / "lake")) as connection:
        found = connection.execute("SELECT tenant_of($1)", [key]).fetchone()
    assert found == (tenant_of(key),)


def test_a_query_writes_nothing_and_reaches_nothing_outside_the_lake(tmp_path: Path) -> None:
    lake = a_lake(tmp_path / "lake")
    secret = tmp_path / "secret.parquet"
    secret.write_text("password")
    [cost] = lake.table(COST).files()
    listed = file_name(cost.path)
    before = Path(listed).read_bytes()
    put_over = f"COPY (SELECT 1 AS x) TO '{listed}' (FORMAT parquet, USE_TMP_FILE false)"
    with open_views(lake) as connection:
        for query in (
            put_over,
            f"WITH x AS ({put_over}) FROM x",
            f"FROM query('{put_over.replace(chr(39), chr(39) * 2)}')",
            f"EXPLAIN ANALYZE {put_over}",
            f"SELECT 1; {put_over}",
            f"FROM read_parquet('{secret}')",
            f"FROM read_text('{secret}')",
            f"FROM glob('{tmp_path}/*')",
            f"ATTACH '{lake.location.catalog_file}'",
            "FROM arrow_scan(1, 2, 3)",
            f"ATTACH '{tmp_path / 'new.db'}'",
            "INSTALL httpfs",
            "SET enable_external_access = true",
            "SET memory_limit = '100GB'",
            "RESET lock_configuration",
            "CREATE TABLE x (a INT)",
            "PRAGMA database_list",
            "",
        ):
            with pytest.raises(ConfigurationError, match="the query failed"):
                select(connection, query)
        assert list(select(connection, "SELECT count(*) FROM gold.cost").rows) == [(2,)]
        for closed in ("SET enable_external_access = true", "SET memory_limit = '100GB'"):
            with pytest.raises(duckdb.Error, match="locked"):
                connection.execute(closed)
        with pytest.raises(duckdb.PermissionException):
            connection.execute(f"FROM read_text('{secret}')")
    assert Path(listed).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "secret.parquet"]


def test_a_variable_of_python_is_no_table(tmp_path: Path) -> None:
    local = pa.table({"a": [1]})
    with open_views(a_lake(tmp_path / "lake")) as connection:
        with pytest.raises(ConfigurationError, match="local does not exist"):
            select(connection, "SELECT * FROM local")
    assert local.num_rows == 1


def test_memory_is_bounded_and_nothing_is_spilled(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with open_views(a_lake(tmp_path / "lake"), memory="50MB") as connection:
        with pytest.raises(ConfigurationError, match="more memory than 50MB"):
            list(select(connection, "SELECT list(range) FROM range(100000000)", "50MB").rows)
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]
    with pytest.raises(ConfigurationError, match="memory 'much'"):
        connect(tmp_path / "lake", memory="much")


def test_no_lake_no_table_and_a_damaged_file_name_the_cure(tmp_path: Path) -> None:
    for nothing in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigurationError, match="fairlead pipeline ingest"):
            connect(nothing)
    assert list(tmp_path.iterdir()) == []  # reading makes no folder
    with pytest.raises(ConfigurationError, match="object store needs a catalog"):
        connect("s3://bucket/lake")
    lake = a_lake(tmp_path / "lake")
    with pytest.raises(ConfigurationError, match="gold.fairness.*fairlead pipeline build"):
        selected(lake, 'SELECT * FROM "gold"."Fairness"')
    with pytest.raises(ConfigurationError, match="gold.incidents.*fairlead pipeline incidents"):
        selected(lake, "SELECT * FROM gold.incidents")
    with pytest.raises(ConfigurationError, match="bronze.attempts.*fairlead pipeline ingest"):
        selected(lake, "SELECT * FROM bronze.attempts JOIN gold.cost USING (queue)")
    with pytest.raises(ConfigurationError, match="costs does not exist"):
        selected(lake, "SELECT * FROM gold.costs")
    with open_views(lake) as connection:
        for file in lake.table(SERVICE).files():
            Path(file_name(file.path)).unlink()
        with pytest.raises(BrokenLake, match="pipeline check"):
            select(connection, "SELECT * FROM silver.service")
    stored = lake.table(COST).state().stored
    assert stored is not None
    for manifest in stored.current_snapshot().manifests(stored.io):  # type: ignore[union-attr]
        Path(file_name(manifest.manifest_path)).unlink()
    with pytest.raises(BrokenLake, match="list of files is missing.*gold_cost"):
        connect(str(lake.location.folder))


def test_a_folder_in_which_everybody_may_replace_files_is_refused(tmp_path: Path) -> None:
    a_lake(tmp_path / "lake")
    (tmp_path / "lake").chmod(0o777)
    with pytest.raises(ConfigurationError, match="every user may replace files"):
        connect(tmp_path / "lake")


def test_an_open_connection_still_reads_what_was_replaced(tmp_path: Path) -> None:
    lake = lake_in(tmp_path / "lake")
    put(lake, ATTEMPTS, [row(ATTEMPTS, task_id=str(n), finished_at=T0) for n in range(3)])
    with open_views(lake) as connection:
        here, seen = lake.table(ATTEMPTS), lake.table(ATTEMPTS).state()
        rows = here.load()
        assert here.replace(["2026-03-02/10"], here.write(rows, "one", seen), seen)
        here.tend(SYSTEM_CLOCK.now())
        assert list(select(connection, "SELECT count(*) FROM bronze.attempts").rows) == [(3,)]
    assert selected(lake, "SELECT count(*) FROM bronze.attempts") == [(3,)]


def test_an_erased_key_is_seen_by_no_reader(tmp_path: Path) -> None:
    lake = a_lake(tmp_path / "lake")
    builds = Builds(lake)
    before, seen = builds.newest()
    snapshot = lake.table(SERVICE).state().snapshot
    assert snapshot is not None
    assert builds.publish(before.after({SERVICE.name: snapshot}), seen, 1)
    count = "SELECT count(*) FROM silver.service WHERE fairness_key = 'a/1'"
    with open_views(lake) as connection:
        assert list(select(connection, count).rows) == [(1,)]
        erase(lake, "a/1", SYSTEM_CLOCK)
        with pytest.raises(BrokenLake):
            list(select(connection, count).rows)
    assert selected(lake, count) == [(0,)]
    assert selected(lake, "SELECT count(*) FROM silver.service") == [(2,)]


def test_a_lake_on_an_object_store_is_read_and_nothing_beside_it(
    s3_lake: str, tmp_path: Path
) -> None:
    location = Location(s3_lake, f"sqlite:///{tmp_path}/catalog.db", os.environ)
    lake = Warehouse(location)
    for table in (SERVICE, COST):
        put(lake, table, [row(table, queue=name) for name in "xyz"])
    bucket = s3_lake.removeprefix("s3://").partition("/")[0]
    boto3.client("s3").put_object(Bucket=bucket, Key="secret.parquet", Body=b"password")
    with open_views(lake) as connection:
        query = "SELECT queue, count(*) FROM silver.service WHERE queue > 'x' GROUP BY 1 ORDER BY 1"
        assert list(select(connection, query).rows) == [("y", 1), ("z", 1)]
        for reaches_out in (
            f"FROM read_text('s3://{bucket}/secret.parquet')",
            f"FROM read_parquet('{s3_lake}/fairlead/*/*/*.parquet')",
            f"FROM glob('s3://{bucket}/*')",
            f"FROM read_text('{tmp_path}/catalog.db')",
            f"COPY (SELECT 1 AS x) TO '{lake.table(COST).files()[0].path}' (FORMAT parquet)",
        ):
            with pytest.raises(ConfigurationError, match="the query failed"):
                list(select(connection, reaches_out).rows)
        with pytest.raises(duckdb.Error):
            path = lake.table(COST).files()[0].path
            connection.execute(f"COPY (SELECT 1 AS x) TO '{path}' (FORMAT parquet)")
    assert selected(lake, "SELECT count(*) FROM gold.cost") == [(3,)]


def test_each_file_on_an_object_store_is_asked_for_twice_only(s3_lake: str, tmp_path: Path) -> None:
    lake = Warehouse(Location(s3_lake, f"sqlite:///{tmp_path}/catalog.db", os.environ))
    hours = [T0 + timedelta(hours=n) for n in range(5)]
    put(lake, SERVICE, [row(SERVICE, window_start=at, queue="q") for at in hours])
    asked: list[str] = []

    class Counted(ObjectFiles):
        def open(self, path: str, mode: str = "rb", **given: Any) -> Any:
            asked.append(path)
            return super().open(path, mode, **given)

    with open_views(lake) as connection:
        store = Counted()
        for table, at in Snapshots(lake).read([SERVICE]).tables.items():
            store.replace(table.name, at)
        connection.unregister_filesystem("s3")
        connection.register_filesystem(store)
        sums = "SELECT sum(busy_us) FROM silver.service WHERE queue = 'q'"
        assert list(select(connection, sums).rows) == [(5,)]
    assert len(asked) <= 2 * len(hours)


def test_commands_that_read_the_lake_need_no_spark_and_no_java(tmp_path: Path) -> None:
    lake = a_lake(tmp_path / "lake")
    commands = ["check"], ["report", "--out", "page.html"], ["sql", "SELECT * FROM gold.cost"]
    program = (
        "import sys; from fairlead.cli.main import app\n"
        f"for command in {commands!r}:\n"
        "    try: app(['pipeline', *command])\n"
        "    except SystemExit as ended: assert not ended.code\n"
        "print([m for m in ('pyspark', 'py4j', 'matplotlib') if m in sys.modules])"
    )
    places = {"FAIRLEAD_LAKE": str(lake.location.folder), "JAVA_HOME": "/nowhere", "PATH": ""}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0 and ran.stdout.endswith("\n[]\n"), ran.stderr
    assert (tmp_path / "page.html").exists()


def run_sql(lake: Warehouse, *arguments: str) -> Any:
    return CliRunner().invoke(
        fairlead_command, ["pipeline", "sql", "--lake", str(lake.location.folder), *arguments]
    )


def test_the_command_prints_a_table_json_or_csv(tmp_path: Path) -> None:
    lake = a_lake(tmp_path / "lake")
    query = (
        "SELECT queue, amount, day, 1e400 AS e, 9223372036854775807::HUGEINT * 100 AS big,"
        " NULL AS nothing, [1, 2] AS list FROM gold.cost ORDER BY queue LIMIT 1"
    )
    expected = {
        "queue": "x",
        "amount": "0.100000",
        "day": T0.replace(hour=0).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "e": None,
        "big": str((2**63 - 1) * 100),
        "nothing": None,
        "list": [1, 2],
    }
    assert json.loads(run_sql(lake, query, "--json").stdout) == [expected]
    rows = list(csv.DictReader(io.StringIO(run_sql(lake, query, "--format", "csv").stdout)))
    assert (rows[0]["queue"], rows[0]["amount"], rows[0]["nothing"]) == ("x", "0.100000", "")
    shown = run_sql(lake, "SELECT DISTINCT tenant_of(fairness_key) AS tenant FROM silver.service")
    assert shown.exit_code == 0 and "tenant" in shown.stdout


def test_a_table_for_people_is_cut_and_says_so(tmp_path: Path) -> None:
    found = run_sql(a_lake(tmp_path / "lake"), "SELECT range FROM range(1500)")
    assert "first 1,000 rows" in found.stderr and "1500" not in found.stdout
    rows = run_sql(a_lake(tmp_path / "two"), "FROM range(1500)", "--format", "csv").stdout.split()
    assert len(rows) == 1501


def test_the_command_refuses_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    lake = a_lake(tmp_path / "lake")
    put(lake, RUNS, [row(RUNS)])
    for query in ("SELEC", "SELECT * FROM gold.slo", "DROP VIEW gold.cost"):
        found = run_sql(lake, query)
        assert found.exit_code == 2 and found.stderr.startswith("fairlead: "), found.output
    nothing = CliRunner().invoke(
        fairlead_command, ["pipeline", "sql", "--lake", str(tmp_path / "no"), "SELECT 1"]
    )
    assert nothing.exit_code == 2 and "fairlead pipeline ingest" in nothing.stderr
