"""The whole pipeline on an object store (the server of moto) with a catalog in PostgreSQL, on one
machine and on clusters whose machines share no folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import App, NoRetry
from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline import connect
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.jobs.erase import erase
from fairlead.pipeline.jobs.report import report
from fairlead.pipeline.models import COST, TASKS
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.testing import running, settled
from services.spark import SparkMaster, SparkWorker
from tests.pipeline.warehouses import jars
from tests.tiers import NIGHTLY

pytestmark = [pytest.mark.spark, NIGHTLY("a slow start")]


def built(lake: str, catalog: str, master: str, *options: str) -> dict[str, Any]:
    """Build the lake in another process."""
    script = Path(__file__).with_name("build_on_s3.py")
    ran = subprocess.run(
        [sys.executable, str(script), lake, catalog, master, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), "src"])},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


async def exported(app: App, lake: Warehouse) -> None:
    """Run 40 tasks of three keys, of which ten fail, and export their attempts."""
    app.migrate()

    @app.task(queue="payouts", retry=NoRetry())
    async def pay(partner: str, amount: int) -> None:
        if amount % 4 == 0:
            raise ValueError(f"no cover for {partner}")

    async with running(app) as node:
        for amount in range(40):
            pay.options(fairness_key=f"key-{amount % 3}").submit(partner="p", amount=amount)
        await settled(app, node)
    history = SqlHistory(app.store.database)
    assert Exporter(history, lake, SYSTEM_CLOCK).round().attempts == 40
    assert reconcile(history, lake, SYSTEM_CLOCK).rows == 40


KEYS = {"key-0": 14, "key-1": 13, "key-2": 13}


async def test_history_is_exported_built_read_and_erased_on_an_object_store(
    s3_lake: str, postgres_url: str, sqlite_url: str, tmp_path: Path
) -> None:
    jars(on_s3=True)
    lake, app = Warehouse(Location.of(s3_lake, postgres_url)), App(sqlite_url)
    await exported(app, lake)
    found = built(s3_lake, postgres_url, "local[2]")
    assert {key: found["keys"].count(key) for key in KEYS} == KEYS
    assert (found["first"], found["again"], found["checks"]) == ("done", "nothing to do", True)

    build, _ = Builds(lake).newest()
    tasks = lake.table(TASKS).load(snapshot=build.snapshots[TASKS.name])
    assert sorted(tasks["fairness_key"].to_pylist()) == found["keys"]
    assert lake.table(COST).load(snapshot=build.snapshots[COST.name]).num_rows > 0
    with connect(s3_lake, postgres_url) as connection:
        rows = connection.execute("SELECT sum(attempts_started) FROM silver.service").fetchall()
    assert rows == [(40,)]
    page = tmp_path / "report.html"
    report(lake, SYSTEM_CLOCK, page)
    assert "no cover for" in page.read_text()

    erasure = erase(lake, "key-2", SYSTEM_CLOCK)
    assert erasure.left == {} and erasure.rows[TASKS.name] == 13
    assert set(built(s3_lake, postgres_url, "local[2]")["keys"]) == {"key-0", "key-1"}
    app.close()


@pytest.fixture(params=["local-cluster", "standalone"])
def cluster(request: pytest.FixtureRequest, s3_lake: str) -> Iterator[str]:
    """URL of a master with two workers of one core, which reach the object store."""
    if request.param == "local-cluster":
        yield "local-cluster[2,1,2048]"
        return
    with SparkMaster() as master, SparkWorker(master), SparkWorker(master):
        yield master.url


async def test_a_build_on_a_cluster_survives_the_death_of_an_executor(
    s3_lake: str, postgres_url: str, sqlite_url: str, cluster: str
) -> None:
    jars(on_s3=True)
    lake, app = Warehouse(Location.of(s3_lake, postgres_url)), App(sqlite_url)
    await exported(app, lake)
    found = built(s3_lake, postgres_url, cluster, "kill")
    assert {key: found["keys"].count(key) for key in KEYS} == KEYS
    assert (found["first"], found["again"], found["checks"]) == ("done", "nothing to do", True)
    assert found["killed"] == 1
    app.close()
