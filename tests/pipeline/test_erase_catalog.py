"""After `erase` in an Iceberg catalog no file of any table has the key, and a build restores no row."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.fairness import FAIRNESS
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.erase.wanted import ERASED
from fairlead.pipeline.iceberg import IcebergTables
from fairlead.pipeline.jobs.build import FolderJob
from fairlead.pipeline.jobs.build import build_folder as build
from fairlead.pipeline.jobs.check import check
from fairlead.pipeline.jobs.erase import erase
from fairlead.pipeline.lake.lake import Lake
from tests.pipeline.frames import attempt, event, frame
from tests.pipeline.tables_by_hand import row
from tests.pipeline.test_build import SETTINGS
from tests.pipeline.test_erase import files_with
from tests.pipeline.test_iceberg import export

KEY = "acme-corp"


@pytest.mark.slow
def test_no_file_of_the_catalog_has_an_erased_key_even_after_the_next_build(
    spark: SparkSession, catalog: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    job = FolderJob(spark, lake, catalog, SYSTEM_CLOCK)
    failing = {"outcome": "retried", "error_type": "NoCover", "error_fp": 7}
    rows = [
        *[
            attempt(fairness_key=key, finished_at=9 + n)
            for n, key in enumerate([KEY, "b", "acme-corp2", KEY])
        ],
        attempt(fairness_key=KEY, finished_at=30, error_text="card 4711 declined", **failing),
        attempt(fairness_key="b", finished_at=60, error_text=f"after {KEY}", **failing),
        attempt(fairness_key=KEY, finished_at=7200),  # in a separate file
        attempt(fairness_key=KEY, started_at=50, finished_at=40),  # an invalid row
    ]
    export(lake, ATTEMPTS, rows, "1")
    export(lake, EVENTS, [event(fairness_key=key, at=100) for key in (KEY, "b")], "1")
    build(job, SETTINGS)
    tables = IcebergTables(spark, catalog, lake, SYSTEM_CLOCK)
    tables.replace(
        TASKS, frame(spark, TASKS, [row(TASKS, fairness_key=KEY)]), None
    )  # left by a build that died
    fairness = spark.table(tables.name_of(FAIRNESS))
    noisy = fairness.where("noisy_key = 'acme-corp' or max_lag_key = 'acme-corp'").count()
    warehouse = Path(spark.conf.get("spark.sql.catalog.lake.warehouse")) / catalog.partition(".")[2]  # type: ignore[arg-type]
    assert len(files_with(warehouse, KEY)) > 10

    done = erase(lake, KEY, SYSTEM_CLOCK, catalog=(spark, catalog))

    assert done.is_clean and done.catalog[ATTEMPTS.name] == 5 and done.catalog[EVENTS.name] == 1
    assert files_with(warehouse, KEY) == [] == files_with(lake.root, KEY)
    assert not [
        path
        for path in warehouse.rglob("*.parquet")
        if "4711" in str(pq.read_table(path).to_pylist())
    ]
    kept = spark.table(tables.name_of(ATTEMPTS)).collect()
    assert sorted(r["fairness_key"] for r in kept) == ["acme-corp2", "b", "b"]
    assert {r["error_text"] for r in spark.table(tables.name_of(FAILURES)).collect()} == {None}
    blotted = spark.table(tables.name_of(FAIRNESS)).where(
        f"noisy_key = '{ERASED}' or max_lag_key = '{ERASED}'"
    )
    assert blotted.count() == noisy > 0

    assert build(job, SETTINGS).state == "done"
    assert all(found.holds for found in check(job).checks)
    assert files_with(warehouse, KEY) == []
    assert {r["error_text"] for r in spark.table(tables.name_of(FAILURES)).collect()} == {
        f"after {ERASED}"
    }
    assert erase(lake, KEY, SYSTEM_CLOCK, catalog=(spark, catalog)).catalog == {}


def test_an_erasure_accepts_empty_tables_and_tables_with_files_elsewhere(
    spark: SparkSession, catalog: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    tables = IcebergTables(spark, catalog, lake, SYSTEM_CLOCK)
    tables.replace(QUARANTINE, frame(spark, QUARANTINE, []), None)
    tables.replace(TASKS, frame(spark, TASKS, []), None)
    tables.publish()
    elsewhere = tmp_path / "elsewhere"
    spark.sql(
        f"ALTER TABLE {tables.name_of(TASKS)} SET TBLPROPERTIES ('write.data.path' = '{elsewhere}')"
    )
    rows = [row(TASKS, fairness_key=key, task_id=key) for key in (KEY, "b")]
    tables.replace(TASKS, frame(spark, TASKS, rows), None)
    tables.publish()
    assert len(files_with(elsewhere, KEY)) > 0

    done = erase(lake, KEY, SYSTEM_CLOCK, catalog=(spark, catalog))

    assert done.is_clean and done.catalog == {TASKS.name: 1}
    assert files_with(elsewhere, KEY) == [] and spark.table(tables.name_of(TASKS)).count() == 1
