"""A backfill (`build --since --until`) makes the same days as a build, shows differences
in a dry run, and continues after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.in_memory import LakeRows
from fairlead.pipeline.jobs import backfill as module
from fairlead.pipeline.jobs.backfill import backfill
from fairlead.pipeline.jobs.build import FolderJob
from fairlead.pipeline.jobs.build import build_folder as build
from fairlead.pipeline.lake.lake import Lake
from tests.pipeline.frames import T0, at, attempt
from tests.pipeline.test_build import SETTINGS, export, rounded, rows_of

HOUR, DAY = 3600.0, 86_400.0


def spoil(lake: Lake) -> None:
    """Change two tables of the first day, as if older code had made them."""
    tables = LakeRows(lake, SYSTEM_CLOCK)
    for table in (SERVICE, TENANT_SHARE):
        parts = [part for part in tables.parts(table) if part.startswith("2026-03-02")]
        rows = tables.load(table, parts, table.column_names)
        tables.replace(table, rows.slice(1), parts)


@pytest.mark.slow
def test_a_backfill_equals_a_build_and_continues_after_a_crash(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = FolderJob(spark, Lake(tmp_path / "lake"), None, SYSTEM_CLOCK)
    rows = [
        attempt(fairness_key=key, started_at=start, finished_at=start + 40, submitted_at=start)
        for key in "ab"
        for start in (10.0, 100.0, DAY)
    ]
    export(job.lake, ATTEMPTS, rows, "1.parquet", hours=30)
    build(job, SETTINGS)
    wanted = {name: list(map(rounded, rows)) for name, rows in rows_of(job.lake).items()}
    spoil(job.lake)

    shown = backfill(job, SETTINGS, T0, at(HOUR), dry_run=True)
    differences = {(d.table, d.day): (d.only_old, d.only_new) for d in shown.differences}
    assert differences == {
        (SERVICE.name, "2026-03-02"): (0, 1),
        (TENANT_SHARE.name, "2026-03-02"): (0, 1),
    }
    assert len(rows_of(job.lake)[SERVICE.name]) == len(wanted[SERVICE.name]) - 1, (
        "a dry run changes no table"
    )

    one_day, days = module._one_day, []

    def dies(job: FolderJob, settings: Any, day: str, *args: Any) -> Any:
        days.append(day)
        if len(days) == 2:
            raise KeyboardInterrupt
        return one_day(job, settings, day, *args)

    monkeypatch.setattr(module, "_one_day", dies)
    with pytest.raises(KeyboardInterrupt):
        backfill(job, SETTINGS, T0, at(DAY), compare=False)
    done = backfill(job, SETTINGS, T0, at(DAY), compare=False)
    assert (done.skipped, done.days) == (["2026-03-02"], ["2026-03-03"])
    assert {name: list(map(rounded, rows)) for name, rows in rows_of(job.lake).items()} == wanted
    assert not (job.lake.root / "_backfill.json").exists() and done.notes == []


def test_a_backfill_without_days_is_refused(tmp_path: Path) -> None:
    job = FolderJob(None, Lake(tmp_path / "lake"), None, SYSTEM_CLOCK)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="the day after the last"):
        backfill(job, SETTINGS, T0, T0)
