"""Workers record their slots and versions, and show those of workers that do not."""

from __future__ import annotations

import json
import platform
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import psycopg
import pytest
from typer.testing import CliRunner

from fairlead import App
from fairlead.cli.main import app as command
from fairlead.model.reading import json_reader
from fairlead.operate.doctor import examine
from fairlead.operate.nodes import nodes
from fairlead.ports.cluster_state import NO_FACTS, NodeFacts, NodeRecord
from fairlead.testing import running
from fairlead.version import VERSION
from fairlead.web import Access
from tests.web.browsing import Browser, with_access

HERE = NodeFacts(7, VERSION, platform.python_version())


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.stores)])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty SQL database."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App(url, name="shop")
    app.migrate()

    @app.task(queue="mail")
    def send() -> None:
        """Send nothing."""

    yield app
    app.close()


def execute(url: str, *statements: str) -> None:
    """Execute statements as another program does."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        return
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def register_older(url: str, at: int) -> None:
    """Register a node as a version does that records no facts."""
    if url.startswith("sqlite"):
        execute(
            url,
            "INSERT INTO fairlead_nodes (node, started_at, heartbeat_at, queues, names, digest)"
            f" VALUES ('older', {at}, {at}, '[\"mail\"]', '[]', 'd')",
        )
        return
    execute(
        url,
        "INSERT INTO fairlead_nodes (node, started_at, queues, names, digest)"
        f" VALUES ('older', {at}, '[\"mail\"]', '[]', 'd')",
        f"INSERT INTO fairlead_heartbeats (node, heartbeat_at) VALUES ('older', {at})",
    )


def keep_alive(url: str) -> None:
    """Set the heartbeats ahead, so that no node is silent however long the test takes."""
    table = "fairlead_nodes" if url.startswith("sqlite") else "fairlead_heartbeats"
    execute(url, f"UPDATE {table} SET heartbeat_at = heartbeat_at + 3600000000")


async def test_a_worker_records_its_slots_and_versions(app: App) -> None:
    async with running(app, concurrency=7):
        [found] = await nodes(app.operate_context)
        assert (found.slots, found.version, found.python) == tuple(msgspec.structs.astuple(HERE))
    app.close()


async def test_a_mixed_fleet_is_shown_as_it_is(app: App, url: str) -> None:
    """The screen, the JSON API, the command and the doctor say which facts are unknown."""
    now = app.clock.now()
    await app.store.register_node("newer", ["mail"], [], now, HERE)
    register_older(url, now)
    keep_alive(url)
    found = {each.node: each for each in await nodes(app.operate_context)}
    assert (found["older"].slots, found["older"].version, found["older"].python) == (None,) * 3
    assert found["newer"].slots == 7
    browser = Browser(with_access(app, Access.read()))
    page = (await browser.get("/nodes")).text
    assert page.count("unknown") == 2 and f"Python {HERE.python}" in page
    given = (await browser.get("/api/v1/nodes")).json()["nodes"]
    assert {each["node"]: (each["slots"], each["version"], each["python"]) for each in given} == {
        "older": (None, None, None),
        "newer": (7, VERSION, HERE.python),
    }
    said = [each for each in await examine(app.operate_context) if "versions of" in each.what]
    assert [each.severity for each in said] == ["note"]
    assert f"{VERSION} (1), unknown (1)" in said[0].what
    await app.connections.close_async()


async def test_the_doctor_says_nothing_of_workers_of_one_version(app: App, url: str) -> None:
    for name in ("one", "two"):
        await app.store.register_node(name, ["mail"], [], app.clock.now(), HERE)
    keep_alive(url)
    assert not [one for one in await examine(app.operate_context) if "versions of" in one.what]
    await app.connections.close_async()


def test_the_command_lists_workers(app: App, url: str) -> None:
    run = CliRunner().invoke
    assert "last heartbeat" in run(command, ["nodes", "--url", url]).stdout
    app.store.database.run(
        app.store._register_node("newer", '["mail"]', "[]", app.clock.now(), HERE)
    )
    register_older(url, app.clock.now())
    table = run(command, ["nodes", "--url", url], env={"COLUMNS": "200"}).stdout
    assert table.count("unknown") == 3 and VERSION in table
    listed = json.loads(run(command, ["nodes", "--url", url, "--json"]).stdout)
    assert {each["node"]: (each["slots"], each["version"]) for each in listed} == {
        "older": (None, None),
        "newer": (7, VERSION),
    }


@pytest.mark.parametrize("given", [{}, {"facts": {}}, {"facts": {"cores": 3}}])
def test_a_record_of_another_version_is_read(given: dict[str, Any]) -> None:
    """Cassandra keeps a node as JSON: facts may be missing, or be more than we know."""
    record = {"node": "n", "started_at": 1, "heartbeat_at": 2, "queues": ["mail"], **given}
    found = json_reader(NodeRecord)(json.dumps(record))
    assert (found.names, found.facts) == ([], NO_FACTS)


def test_an_older_version_reads_a_record_with_facts() -> None:
    class Older(msgspec.Struct, frozen=True):
        """The record of a node before it had facts."""

        node: str
        queues: list[str]
        names: list[str] = []

    record = NodeRecord("n", 1, 2, ["mail"], ["send"], HERE)
    found = json_reader(Older)(msgspec.json.encode(record))
    assert (found.node, found.names) == ("n", ["send"])
