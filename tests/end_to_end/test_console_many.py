"""The console beside 100,000 fairness keys, in Chromium: pages and statements stay bounded, a tenant
is found, live updates go on, and nothing of a tenant's page is cut off."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fairlead import App
from fairlead.web import Access
from fairlead.web.live import Changes
from tests.web.api_kit import serving
from tests.web.browsing import with_access

pytest.importorskip("playwright", reason="needs playwright: pip install -e .[dev]")

from tests.browsers import Viewer, started

pytestmark = pytest.mark.system_time

KEYS = 100_000
MOST_BYTES = 300_000
"""Bound on the content of a page."""

# Each measures in one step, because a live update replaces what it measures.
RIGHT_OF_BUTTON = """name => [...document.querySelectorAll("summary")]
    .find(each => each.textContent.includes(name)).getBoundingClientRect().right"""
TABLE_FITS = """() => {
    const table = document.querySelector(".scroll");
    return table.scrollWidth <= table.clientWidth;
}"""


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Yield an application on a SQLite file with a task, a weight and a limit for each key."""
    path: Path = tmp_path_factory.mktemp("crowd") / "tasks.db"
    app = App(f"sqlite:///{path}", name="shop")
    app.migrate()
    send = app.task(queue="mail", name="send")(lambda: None)
    send.options(fairness_key="tenant-000000/eu").submit()
    asyncio.run(app.store.register_queues({"mail": 2}))
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TEMP TABLE more AS WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT"
            f" value + 1 FROM n WHERE value < {KEYS - 1}) SELECT value FROM n"
        )
        names = [row[1] for row in database.execute("PRAGMA table_info(fairlead_tasks)")]
        own = {
            "seq": "seq + value",
            "ready_seq": "ready_seq + value",
            "id": "substr(id, 1, 24) || printf('%012x', value)",
            "fairness_key": "printf('tenant-%06d/eu', value)",
        }
        database.execute(
            f"INSERT INTO fairlead_tasks ({', '.join(names)})"
            f" SELECT {', '.join(own.get(name, name) for name in names)} FROM fairlead_tasks, more"
        )
        database.execute(f"UPDATE fairlead_sequence SET value = {KEYS + 1}")
        for table, column in (("weights", "weight"), ("limits", "slots")):
            database.execute(
                f"INSERT INTO fairlead_{table} (queue, fairness_key, {column})"
                " SELECT 'mail', printf('tenant-%06d', value), 3 FROM more"
            )
        database.commit()
    yield app
    app.close()


def test_screens_and_live_updates_are_bounded_beside_many_keys(crowd: App) -> None:
    console = with_access(crowd, Access.full(name="ada"))
    console.parts.live.changes = Changes(rest=1.0, longest_rest=1.0)  # each second is a change
    with serving(console) as address, started() as browser:
        viewer = Viewer(browser, address)
        page = viewer.page
        for path in (
            "/tenants?rows=200",
            "/tenants?rows=200&order=name",
            "/queues/queue?name=mail",
        ):
            page.goto(f"{address}{path}")
            assert len(page.content()) < MOST_BYTES
        page.goto(f"{address}/tenants?search=tenant-05")
        page.get_by_role("link", name="Next").click()
        assert "after=50" in page.url and page.locator("tbody tr").count() == 50
        page.goto(f"{address}/tenants?search=tenant-099999")
        page.get_by_role("link", name="The tenant named tenant-099999").click()
        with page.expect_response(lambda response: "tenants/tenant" in response.url) as loaded:
            pass
        assert len(loaded.value.body()) < MOST_BYTES
        for name in ("Weight", "Limit"):
            assert 0 < page.evaluate(RIGHT_OF_BUTTON, name) <= 1280
        assert page.evaluate(TABLE_FITS)
        assert viewer.complaints == []
        console.parts.live.end()
