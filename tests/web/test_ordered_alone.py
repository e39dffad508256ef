"""The console of an application without a SQL database: every route responds, and says what this
application does not record."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cassandra", reason="needs the extra cassandra")
pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
pytest.importorskip("kazoo", reason="needs the extra zookeeper")

from fairlead import App, Draft  # noqa: E402
from fairlead.declare.options import Options  # noqa: E402
from fairlead.testing import running  # noqa: E402
from fairlead.web import Access  # noqa: E402
from tests.web.browsing import Browser, with_access  # noqa: E402
from tests.web.test_every_route import addresses, send  # noqa: E402

LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def app(kafka_url: str, migrated_cassandra_url: str, zookeeper_url: str) -> Iterator[App]:
    """An application without a SQL database, with a task in the log of the queue `mail`."""
    app = App(
        log=kafka_url, schedule=migrated_cassandra_url, coordinator=zookeeper_url, name="shop"
    )
    app.queue("mail", kind="ordered", partitions=2)
    app.migrate()

    @app.task(queue="mail")
    def send(to: str) -> None:
        """Send nothing."""

    send.options(ordering_key="acme").submit("a@example.org").result(60)
    yield app
    app.close()


async def test_every_route_responds_and_says_what_this_application_does_not_record(
    app: App,
) -> None:
    made = with_access(app, Access.full())
    given = {
        "ordered_queue": "?name=mail",
        "queue": "?name=mail",
        "sharded_queue": "?name=mail",
        "task": "?id=0197f9a2-0000-7000-8000-000000000000",
        "tenant": "?key=acme",
        "policy": "?version=1",
    }
    for method, path, route in addresses(made):
        response = await send(made, method, path + given.get(route.name, ""))
        assert response.status_code not in (500, 503), path
        if response.status_code == 501 and method != "HEAD":
            assert re.search(r"fairlead ordered tasks|SQL|there is no lake", response.text), path


async def test_the_screens_of_ordered_queues_nodes_and_one_task_are_shown(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    # The screens share what they read, for a second.
    for path in ("/sharded", "/queues", "/ordered?name=mail", "/nodes", "/doctor", "/incidents"):
        assert (await browser.get(path)).status_code == 200, path
    options = Options(ordering_key="acme", run_at=LATER)
    (handle,) = app.submit_many([Draft(app.handlers["send"], (), {"to": "b"}, options)])
    handle.result(60)
    async with running(app):
        while await app.management.ordered.unread():
            await asyncio.sleep(0.01)
    page = await browser.get(f"/tasks/task?id={handle.id}")
    assert page.status_code == 200 and "runs next" in page.text
    form = {"id": handle.id, "version": "1"}
    refused = await browser.post("/do/cancel_task", **form)
    assert refused.status_code == 409 and "fairlead ordered drop" in refused.text
