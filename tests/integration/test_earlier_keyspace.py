"""A keyspace of an earlier version: each command says what to run, and its rows stay."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cassandra", reason="needs the extra cassandra")
pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
pytest.importorskip("kazoo", reason="needs the extra zookeeper")

from fairlead.backends.cassandra.session import CassandraSession, CassandraUrl  # noqa: E402
from fairlead.errors import SchemaMismatch  # noqa: E402
from fairlead.testing import running  # noqa: E402
from tests.integration.ordered_kit import SOON, Kit, open_app  # noqa: E402

LATER = {
    "fairlead_keyspace": None,
    "fairlead_schedule_ids": None,
    "fairlead_history": None,
    "fairlead_history_hours": None,
    "fairlead_history_readers": None,
    "fairlead_schedule_owners": "horizon",
}
"""Tables, or columns of tables, that an earlier version did not have."""

MODULE = """
from fairlead import App

app = App()
app.queue("reminders", kind="ordered", partitions=2)

@app.task(queue="reminders")
async def remind(name: str) -> None: ...
"""


@pytest.fixture(params=["sqlite", "alone"])
def url(
    request: pytest.FixtureRequest,
    kafka_url: str,
    cassandra_url: str,
    zookeeper_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str | None]:
    """URL of the task store; None without a SQL database."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "log": kafka_url,
        "schedule": cassandra_url,
        "coordinator": zookeeper_url,
    }.items():
        monkeypatch.setenv(f"FAIRLEAD_{name.upper()}", value)
    if request.param == "sqlite":
        monkeypatch.setenv("FAIRLEAD_URL", f"sqlite:///{tmp_path / 'shop.db'}")
    yield os.environ.get("FAIRLEAD_URL")


def go_back(url: str) -> None:
    """Drop what an earlier version did not have."""
    session = CassandraSession(CassandraUrl.parse(url), "schedule.cql", ())
    with session.make_cluster() as cluster:
        connection, keyspace = cluster.connect(), session.url.keyspace
        for table, column in LATER.items():
            change = f"ALTER TABLE {keyspace}.{table} DROP {column}"
            if column is None:
                change = f"DROP TABLE {keyspace}.{table}"
            connection.execute(change, timeout=60.0)


def said(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    found = subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments], capture_output=True, text=True, check=False
    )
    return found.returncode, found.stdout + found.stderr


async def test_a_keyspace_of_an_earlier_version_asks_for_migrate_and_keeps_its_tasks(
    url: str | None, cassandra_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = open_app(url, partitions=2)
    waiting = kit.at(3600)
    async with running(kit.app) as node:
        kit.submit("done", "a")
        kit.submit("waiting", "b", waiting)
        await kit.runs.until("done")
        async with asyncio.timeout(SOON):
            while node.in_flight or await stored(kit) != 1:
                await asyncio.sleep(0.02)
    kit.app.close()
    await asyncio.to_thread(go_back, cassandra_url)

    with pytest.raises((SchemaMismatch, ExceptionGroup)) as caught:
        await asyncio.wait_for(open_without_migrate(url, kit).app.node().run(), SOON)
    assert isinstance(caught.value, SchemaMismatch), repr(caught.value)
    assert "run `fairlead migrate`" in str(caught.value)
    (tmp_path / "earlier.py").write_text(MODULE)
    for command in (
        ["worker", "earlier:app"],
        ["doctor", "earlier:app"],
        ["ordered", "status", "reminders"],
    ):
        code, output = await asyncio.to_thread(said, *command)
        assert code != 0 and "fairlead migrate" in output, (command, code, output)
        assert "Traceback" not in output, output

    kit.clock.ahead = 3600.0
    again = open_app(url, kit.clock, partitions=2)  # migrates
    async with running(again.app):
        again.submit("new", "a")
        await again.runs.until("waiting", "new")
    assert sorted(again.runs.names) == ["new", "waiting"]
    again.app.close()


def open_without_migrate(url: str | None, kit: Kit) -> Kit:
    from fairlead import App

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(App, "migrate", lambda app: [])
        return open_app(url, kit.clock, partitions=2)


async def stored(kit: Kit) -> int:
    """Return the number of unfinished tasks in the schedule."""
    found: Any = await kit.app.management.ordered.status("reminders")
    return sum(each.unfinished for each in found)
