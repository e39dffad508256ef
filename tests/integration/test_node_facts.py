"""Workers record their slots and versions, which people see."""

from __future__ import annotations

import json
import platform
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
from typer.testing import CliRunner

from fairlead import App
from fairlead.cli.main import app as command
from fairlead.operate.doctor import examine
from fairlead.operate.nodes import nodes
from fairlead.ports.cluster import NodeFacts
from fairlead.testing import running
from fairlead.version import VERSION
from fairlead.web import Access
from tests.builders import idle
from tests.web.browsing import Browser, with_access

HERE = NodeFacts(7, VERSION, platform.python_version())


@pytest.fixture
def app(sqlite_url: str) -> Iterator[App]:
    app = App(sqlite_url, name="shop")
    app.migrate()
    idle(app, "send", queue="mail")
    yield app
    app.close()


def keep_alive(url: str) -> None:
    """Set the heartbeats ahead, so that no node is silent however long the test takes."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE fairlead_nodes SET heartbeat_at = heartbeat_at + 3600000000")


async def test_a_worker_records_its_slots_and_versions(app: App) -> None:
    async with running(app, concurrency=7):
        [found] = await nodes(app.operate_context)
        assert (found.slots, found.version, found.python) == tuple(msgspec.structs.astuple(HERE))
    app.close()


async def test_a_mixed_fleet_is_shown_as_it_is(app: App, sqlite_url: str) -> None:
    """The screen, the JSON API and the doctor show the facts of each node."""
    older = NodeFacts(3, "0.0.9", "3.11.1")
    for name, facts in (("newer", HERE), ("older", older)):
        await app.store.register_node(name, ["mail"], [], app.clock.now(), facts)
    keep_alive(sqlite_url)
    page = (await Browser(with_access(app, Access.read())).get("/nodes")).text
    assert f"Python {HERE.python}" in page and f"Python {older.python}" in page
    given = (await Browser(with_access(app, Access.read())).get("/api/v1/nodes")).json()
    assert {each["node"]: (each["slots"], each["version"], each["python"]) for each in given} == {
        "older": (3, "0.0.9", "3.11.1"),
        "newer": (7, VERSION, HERE.python),
    }
    said = [each for each in await examine(app.operate_context) if "versions of" in each.what]
    assert [each.severity for each in said] == ["note"]
    assert f"0.0.9 (1), {VERSION} (1)" in said[0].what
    await app.connections.close_async()


async def test_the_doctor_says_nothing_of_workers_of_one_version(app: App, sqlite_url: str) -> None:
    for name in ("one", "two"):
        await app.store.register_node(name, ["mail"], [], app.clock.now(), HERE)
    keep_alive(sqlite_url)
    assert not [one for one in await examine(app.operate_context) if "versions of" in one.what]
    await app.connections.close_async()


def test_the_command_lists_workers(app: App, sqlite_url: str) -> None:
    run = CliRunner().invoke
    assert run(command, ["nodes", "--url", sqlite_url]).stdout == "none\n"
    app.store.database.run(
        app.store._register_node("newer", '["mail"]', "[]", app.clock.now(), HERE)
    )
    table = run(command, ["nodes", "--url", sqlite_url], env={"COLUMNS": "200"}).stdout
    assert VERSION in table and HERE.python in table
    listed = json.loads(run(command, ["nodes", "--url", sqlite_url, "--json"]).stdout)
    assert {each["node"]: (each["slots"], each["version"]) for each in listed} == {
        "newer": (7, VERSION)
    }
