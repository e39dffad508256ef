"""A build of given days (`build --since --until`) makes the same days as any build, and shows what it
changes before it publishes."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.jobs.build import JobContext, build, build_again
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables
from tests.pipeline.frames import T0, at, attempt
from tests.pipeline.test_build import SETTINGS, assert_same_rows, made_in
from tests.pipeline.warehouses import export

HOUR, DAY = 3600.0, 86_400.0


def spoil(job: JobContext) -> None:
    """Change two tables of the first day, as if older code had made them."""
    tables = WarehouseTables(job.spark, job.warehouse, job.clock)
    for table in (SERVICE, TENANT_SHARE):
        parts = [part for part in tables.parts(table) if part.startswith("2026-03-02")]
        rows = tables.read(table, parts)
        kept = rows.where(rows["fairness_key"] != "a").localCheckpoint()
        tables.replace(table, kept, parts)
    tables.publish()


def test_days_built_again_equal_a_build_and_are_compared_first(
    on_warehouse: SparkSession, warehouse: Warehouse
) -> None:
    job = JobContext(on_warehouse, warehouse, SYSTEM_CLOCK)
    rows = [
        attempt(fairness_key=key, started_at=start, finished_at=start + 40, submitted_at=start)
        for key in "ab"
        for start in (10.0, 100.0, DAY)
    ]
    export(warehouse, ATTEMPTS, rows, hours=30)
    build(job, SETTINGS)
    wanted = made_in(warehouse)
    spoil(job)
    spoilt = made_in(warehouse)
    assert len(spoilt[SERVICE.name]) < len(wanted[SERVICE.name])

    shown = build_again(job, SETTINGS, T0, at(HOUR), publish=False)
    assert {each.table for each in shown.differences} == {SERVICE.name, TENANT_SHARE.name}
    missing = len(wanted[SERVICE.name]) - len(spoilt[SERVICE.name])
    [difference] = [each for each in shown.differences if each.table == SERVICE.name]
    assert (difference.only_old, difference.only_new) == (0, missing)
    assert (shown.days, shown.notes) == (["2026-03-02"], [])
    assert_same_rows(made_in(warehouse), spoilt)

    done = build_again(job, SETTINGS, T0, at(DAY), publish=True)
    assert done.days == ["2026-03-02", "2026-03-03"]
    assert_same_rows(made_in(warehouse), wanted)
    assert build(job, SETTINGS).state == "nothing to do"


def test_a_build_of_no_days_is_refused(warehouse: Warehouse) -> None:
    job = JobContext(None, warehouse, SYSTEM_CLOCK)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="the day after the last"):
        build_again(job, SETTINGS, T0, T0, publish=False)
