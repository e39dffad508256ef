"""Ordered queues on Kafka, Cassandra and ZooKeeper while the SQL database is away."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cassandra", reason="needs the extra cassandra")
pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
pytest.importorskip("kazoo", reason="needs the extra zookeeper")

from fairlead.ordered import tenure  # noqa: E402
from fairlead.testing import running  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402
from tests.conftest import own_server  # noqa: E402
from tests.integration.ordered_kit import SOON, Kit, keys_of_partitions, open_app  # noqa: E402
from tests.waiting import until

LEASE = 2.0
"""Seconds of the leases in these tests."""


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """Server of this test alone, which the test stops."""
    yield from own_server(PostgresServer)


@pytest.fixture
def kit(
    postgres: PostgresServer,
    kafka_url: str,
    cassandra_url: str,
    zookeeper_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Kit]:
    monkeypatch.setenv("FAIRLEAD_LOG", kafka_url)
    monkeypatch.setenv("FAIRLEAD_SCHEDULE", cassandra_url)
    monkeypatch.setenv("FAIRLEAD_COORDINATOR", zookeeper_url)
    monkeypatch.setattr(tenure, "MOVE_SECONDS", 1.0)
    kit = open_app(postgres.create_database())
    yield kit
    kit.app.close()


def _worker(kit: Kit, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a worker that notes its runs in `folder`."""
    (folder / "app.py").write_text(WORKER)
    (folder / "runs").touch()
    environment = {
        **os.environ,
        "FAIRLEAD_URL": kit.app.url or "",
        "RUNS": str(folder / "runs"),
        "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    return [sys.executable, "-m", "fairlead", "worker", "app:app"], environment


@pytest.mark.nightly("an outage")
async def test_tasks_run_and_end_without_the_database_and_are_in_its_history_when_it_is_back(
    kit: Kit, postgres: PostgresServer
) -> None:
    async with running(kit.app, lease_seconds=LEASE) as node:
        before = kit.submit("before")
        later = [kit.submit(f"later {n}", f"k{n}", at=kit.at(n)) for n in range(1, 15)]
        await kit.runs.until("before")
        await asyncio.to_thread(postgres.crash)
        during = [kit.submit(f"during {n}", "one key") for n in range(5)]
        await kit.runs.until(*(f"later {n}" for n in range(1, 15)))
        await kit.runs.until(*(f"during {n}" for n in range(5)))
        await until(lambda: not node.in_flight)
        schedule = kit.app.connections.schedule
        assert schedule is not None
        assert not await schedule.has_due("reminders", kit.clock.now())
        await asyncio.to_thread(postgres.start)
        async with asyncio.timeout(SOON):
            for handle in (before, *later, *during):
                while not (attempts := kit.app.management.attempts(handle.id)):
                    await asyncio.sleep(0.1)
                assert [attempt.outcome for attempt in attempts] == ["done"]
    assert len(kit.runs.names) == 20


WORKER = """
import os
import fairlead
from fairlead.ordered import tenure

tenure.MOVE_SECONDS = 1.0
app = fairlead.App()
app.queue("reminders", kind="ordered", partitions=8)


@app.task
async def mail(name: str) -> None:
    with open(os.environ["RUNS"], "a") as runs:
        runs.write(f"{name} {os.getpid()}\\n")


@app.task(queue="reminders")
async def remind(name: str) -> None:
    with open(os.environ["RUNS"], "a") as runs:
        runs.write(f"{name} {os.getpid()}\\n")
"""


@pytest.mark.nightly("an outage")
async def test_a_worker_takes_over_from_a_killed_one_without_the_database(
    kit: Kit, postgres: PostgresServer, tmp_path: Path
) -> None:
    command, environment = _worker(kit, tmp_path)
    runs = tmp_path / "runs"
    workers = [subprocess.Popen(command, env=environment) for _ in range(2)]
    keys = keys_of_partitions(8, 8)

    async def until_run(*names: str) -> dict[str, int]:
        """Wait until these tasks have run; return the process of each."""
        async with asyncio.timeout(SOON):
            while True:
                lines = [line.split() for line in runs.read_text().splitlines()]
                found = {name: int(pid) for name, pid in lines}
                if set(names) <= found.keys():
                    return found
                await asyncio.sleep(0.1)

    try:
        kit.submit("first")  # makes the queue known
        async with asyncio.timeout(SOON):  # until each worker has a partition
            owners: set[str] = set()
            while len(owners) < 2:
                await asyncio.sleep(0.1)
                views = await kit.app.management.ordered.status("reminders")
                owners = {view.owner for view in views if view.owner is not None}
        for number, key in enumerate(keys):
            kit.submit(f"before{number}", key)
        before = await until_run(*(f"before{number}" for number in range(8)))
        assert set(before.values()) == {worker.pid for worker in workers}
        await asyncio.to_thread(postgres.crash)
        workers[0].kill()
        workers[0].wait()
        for number, key in enumerate(keys):
            kit.submit(f"after{number}", key)
        after = await until_run(*(f"after{number}" for number in range(8)))
        assert {after[f"after{number}"] for number in range(8)} == {workers[1].pid}
        await asyncio.to_thread(postgres.start)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.nightly("an outage")
async def test_a_worker_starts_without_the_database_and_serves_all_else_when_it_is_back(
    kit: Kit, postgres: PostgresServer, tmp_path: Path
) -> None:
    command, environment = _worker(kit, tmp_path)
    runs, output = tmp_path / "runs", tmp_path / "output"

    async def until_run(name: str) -> None:
        async with asyncio.timeout(SOON):
            while f"{name} " not in runs.read_text():
                assert worker.poll() is None, output.read_text()
                await asyncio.sleep(0.1)

    async with running(kit.app, lease_seconds=LEASE):  # the prefix and the folder get an owner
        kit.submit("first")
        await kit.runs.until("first")
    mail = kit.app.task(name="mail")(_mail)
    await mail.submit_async(name="by another queue")
    await asyncio.to_thread(postgres.crash)
    with output.open("w") as file:
        worker = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        handles = [kit.submit(f"during {n}", key) for n, key in enumerate(keys_of_partitions(8, 8))]
        for number in range(8):
            await until_run(f"during {number}")
        assert "by another queue" not in runs.read_text()
        lines = output.read_text().splitlines()
        assert len([line for line in lines if "the task store is away" in line]) == 1, lines
        await asyncio.to_thread(postgres.start)
        await until_run("by another queue")
        async with asyncio.timeout(SOON):
            for handle in handles:
                while not (attempts := kit.app.management.attempts(handle.id)):
                    await asyncio.sleep(0.1)
                assert [attempt.outcome for attempt in attempts] == ["done"]
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait()


async def _mail(name: str) -> None:
    """Stand for the task of the worker."""
