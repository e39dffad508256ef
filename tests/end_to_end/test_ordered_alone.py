"""Ordered queues of an application without a SQL database, in worker processes, one of them killed:
from the submit to the lake, by commands only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("cassandra", reason="needs the extra cassandra")
pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
pytest.importorskip("kazoo", reason="needs the extra zookeeper")
pytest.importorskip("pyarrow", reason="needs the extra pipeline")

from fairlead.pipeline.models import ATTEMPTS  # noqa: E402
from tests.end_to_end.test_command_line import environment, fairlead, fairlead_here, pause  # noqa: E402
from tests.end_to_end.test_ordered import SHOP as SQL_SHOP  # noqa: E402
from tests.end_to_end.test_ordered import log_of, worker_killed_after  # noqa: E402
from tests.pipeline.warehouses import lake_in  # noqa: E402

TASKS, KEYS = 120, 10

MOVES_SOON = "from fairlead.ordered import tenure\ntenure.MOVE_SECONDS = 0.2\n"
SHOP = MOVES_SOON + SQL_SHOP.replace('"sqlite:///shop.db"', "")


@pytest.fixture
def shop(
    tmp_path: Path,
    kafka_url: str,
    cassandra_url: str,
    zookeeper_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.setenv("FAIRLEAD_LOG", kafka_url)
    monkeypatch.setenv("FAIRLEAD_SCHEDULE", cassandra_url)
    monkeypatch.setenv("FAIRLEAD_COORDINATOR", zookeeper_url)
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    return tmp_path


def submit(folder: Path, tasks: int) -> list[str]:
    """Submit tasks of ten keys as another program does; return their ids."""
    return subprocess.run(
        [sys.executable, "shop.py", str(tasks)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()


def lake_of(folder: Path) -> Counter[tuple[str, int]]:
    """Return how often the lake has each run that ended with success, by task and attempt."""
    table = lake_in(folder / "lake").table(ATTEMPTS)
    found = table.load()
    assert set(found["outcome"].to_pylist()) <= {"done"}
    return Counter(zip(found["task_id"].to_pylist(), found["attempt"].to_pylist(), strict=True))


def test_without_any_sql_each_task_of_a_killed_worker_ends_once_and_is_in_the_lake_once(
    shop: Path,
) -> None:
    assert "up to date" in fairlead_here(shop, "migrate")
    submitted = submit(shop, TASKS)
    killed = worker_killed_after(shop, TASKS // 2)
    assert len(log_of(shop)) < 2 * TASKS
    fairlead_here(shop, "pipeline", "ingest", "--lake", "lake")
    fairlead(shop, "worker", "shop:app", "--until-empty")
    fairlead_here(shop, "pipeline", "ingest", "--lake", "lake")

    lines = log_of(shop)
    for key in (f"k{n}" for n in range(KEYS)):
        of_key = [line for line in lines if line[1] == key]
        ends = [int(line[2]) for line in of_key if line[0] == "end" and line[3] != killed]
        both = {int(line[2]) for line in of_key if line[0] == "end"}
        assert both == set(range(int(key[1:]), TASKS, KEYS))
        assert ends == sorted(ends)
        # At most the task that ran at the kill ran again.
        starts = Counter(line[2] for line in of_key if line[0] == "start")
        assert sum(starts.values()) - len(starts) <= 1
    assert lake_of(shop) == Counter(dict.fromkeys(((id, 1) for id in submitted), 1))
    assert {*os.listdir(shop)} - {"__pycache__"} == {"lake", "runs.log", "shop.py"}

    (view,) = json.loads(fairlead_here(shop, "ordered", "--queue", "reminders", "--json"))
    assert sum(each["unfinished"] + each["lag"] for each in view["partitions"]) == 0
    assert "0 tasks in the schedule" in fairlead_here(shop, "doctor")
    assert not json.loads(fairlead_here(shop, "ordered", "tasks", "reminders", "--json"))
    assert "DONE" in fairlead_here(shop, "tasks", "show", submitted[0])
    refused = {
        ("tasks",): "fairlead ordered tasks",
        ("tenants", "weight", "reminders", "2", "acme"): "FAIRLEAD_URL",
        ("periodic",): "FAIRLEAD_URL",
        ("migrate", "--print"): "FAIRLEAD_URL",
    }
    for command, cure in refused.items():
        said = fairlead_here(shop, *command, exits=1)
        assert len(said.splitlines()) == 1, said
        assert "without a SQL database" in said
        assert cure in said, said
    said = fairlead_here(shop, "pipeline", "maintain", "--skip", "check", exits=1)
    assert "reconcile: " in said and "without a SQL database" in said and "FAIRLEAD_URL" in said
    assert "nobody" in fairlead_here(shop, "ordered", "--queue", "reminders")
    assert "reminders" in fairlead_here(shop, "queues")


def test_a_worker_with_a_lake_exports_its_runs_without_any_sql(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_LAKE", str(shop / "lake"))
    fairlead_here(shop, "migrate")
    submitted = submit(shop, 40)
    code = (
        "import asyncio; from shop import app; from fairlead.engine.settings import Intervals\n"
        "node = app.node(intervals=Intervals(export=0.1)); asyncio.run(node.run())"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=shop, env=environment())
    try:
        wanted = Counter(dict.fromkeys(((id, 1) for id in submitted), 1))
        while lake_of(shop) != wanted:
            pause(worker)
    finally:
        worker.kill()
        worker.wait()
