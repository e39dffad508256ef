"""The build on an object store (the server of moto) with a catalog in PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import attempt, event
from tests.pipeline.warehouses import export, jars, shift

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of a new bucket on a server of this test; the variables of AWS lead there."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    name = f"lake-{uuid.uuid4().hex[:8]}"
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=name)
    yield f"s3://{name}/lake"
    server.stop()


def test_a_build_on_s3_publishes_what_pyiceberg_reads(bucket: str, postgres_url: str) -> None:
    jars(on_s3=True)
    warehouse, by = Warehouse(Location.of(bucket, postgres_url)), shift()
    rows = [attempt(task_id=f"task-{n}", finished_at=100.0 * n) for n in range(80)]
    export(warehouse, ATTEMPTS, rows, "1", by)
    export(warehouse, EVENTS, [event(task_id="waits")], "1", by)
    script = Path(__file__).with_name("build_on_s3.py")
    ran = subprocess.run(
        [sys.executable, str(script), bucket, postgres_url, "local[2]"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), "src"])},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    wanted = sorted([*(row["task_id"] for row in rows), "waits"])
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "first": "done",
        "again": "nothing to do",
        "tasks": wanted,
    }
    build, _ = Builds(warehouse).newest()
    tasks = warehouse.table(TASKS).load(snapshot=build.snapshots[TASKS.name])
    assert sorted(tasks["task_id"].to_pylist()) == wanted
    assert warehouse.table(COST).load(snapshot=build.snapshots[COST.name]).num_rows > 0
    assert warehouse.table(ATTEMPTS).state().cursors == {"store": "1"}
