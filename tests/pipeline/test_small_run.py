"""One small run of the pipeline from end to end: tasks of SQLite are exported, built on a real Spark,
checked and shown on a page.

All other tests that need Spark are marked `spark`; this one starts its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import App, NoRetry
from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.jobs.build import JobContext, build
from fairlead.pipeline.jobs.checks import check
from fairlead.pipeline.jobs.report import report
from fairlead.pipeline.reading.history import History
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.report.data import Selection
from fairlead.pipeline.runs import JobRun, last_runs
from fairlead.pipeline.session import session
from fairlead.pipeline.settings import PipelineSettings
from fairlead.ports.lake_history import Question
from fairlead.testing import running, settled
from tests.pipeline.warehouses import jars, lake_in, root_of

# One partition, no generated code, no optimising compiler, no verification of classes: with tiny
# tables, planning, loading and compiling take most of the time.
QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-Xss16m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobContext]:
    """Yield a job with its own Spark session and a lake."""
    lake = lake_in(tmp_path / "lake")
    settings = QUICK | {"spark.jars": ",".join(map(str, jars()))}
    spark = session("local[1]", "fairlead small run", settings, lake)
    yield JobContext(spark, lake, SYSTEM_CLOCK)
    spark.stop()


async def run_tasks(app: App) -> None:
    """Run 40 tasks of three keys, of which ten fail."""

    @app.task(queue="payouts", retry=NoRetry())
    async def pay(partner: str, amount: int) -> None:
        if amount % 4 == 0:
            raise ValueError(f"no cover for {partner}")

    async with running(app) as node:
        for amount in range(40):
            pay.options(fairness_key=f"key-{amount % 3}").submit(partner="p", amount=amount)
        await settled(app, node)


def adds_up(run: JobRun) -> bool:
    """Return whether the run has checks and all of them hold."""
    return bool(run.checks) and all(each.found == each.expected for each in run.checks)


async def test_runs_on_sqlite_are_exported_built_checked_and_shown(
    sqlite_url: str, tmp_path: Path, job: JobContext
) -> None:
    app = App(sqlite_url)
    app.migrate()
    await run_tasks(app)
    history = SqlHistory(app.store.database)
    exported = Exporter(history, job.warehouse, SYSTEM_CLOCK).round()
    assert (exported.attempts, exported.more) == (40, False)
    assert reconcile(history, job.warehouse, SYSTEM_CLOCK).rows == 40

    built = build(job, PipelineSettings())
    assert adds_up(built)
    assert (built.rows_in, built.tables["silver.tasks"], built.quarantined) == (40, 40, 0)
    assert adds_up(check(job.warehouse, job.clock))

    by_tenant = History(root_of(job.warehouse)).runs(Question(by="tenant", points=1)).rows
    assert {(row.part, row.started, row.failed) for row in by_tenant} == {
        ("key-0", 14, 4),
        ("key-1", 13, 3),
        ("key-2", 13, 3),
    }

    page = tmp_path / "report.html"
    report(job.warehouse, job.clock, page, Selection(unexported=0))
    text = page.read_text()
    assert "no cover for" in text and "key-2" in text
    assert last_runs(job.warehouse).keys() == {"build", "check", "report"}
    app.close()
