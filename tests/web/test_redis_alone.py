"""The console of an application whose tasks live in Redis alone: every route responds, and says what
this store does not record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fairlead import App
from fairlead.web import Access
from tests.web.browsing import Browser, with_access
from tests.web.conftest import register
from tests.web.test_every_route import addresses, send

pytest.importorskip("redis", reason="needs the extra redis")


@pytest.fixture
def app(redis_url: str) -> Iterator[App]:
    """An application on Redis alone, with one waiting task in the queue `mail`."""
    app = App(redis_url, name="shop")
    app.migrate()

    @app.task(queue="mail")
    def send(to: str) -> None:
        """Send nothing."""

    send.options(fairness_key="acme").submit("a@example.org")
    asyncio.run(register(app))
    yield app
    app.close()


async def test_every_route_responds(app: App) -> None:
    made = with_access(app, Access.full())
    given = {
        "queue": "?name=mail",
        "tenant": "?key=acme",
        "task": "?id=0197f9a2-0000-7000-8000-000000000000",
        "policy": "?version=1",
    }
    seen = {}
    for method, path, route in addresses(made):
        response = await send(made, method, path + given.get(route.name, ""))
        seen[method, path] = response.status_code
        print(method, path, response.status_code)
        if response.status_code == 501 and method != "HEAD":
            assert "redis://" in response.text or "Redis" in response.text, path
    assert not {where: status for where, status in seen.items() if status in (500, 503)}


async def test_the_screens_of_the_menu_show_something(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    for path in ("/queues", "/queues/queue?name=mail", "/tasks?state=ERROR", "/nodes"):
        page = await browser.get(path)
        assert page.status_code == 200, (path, page.text[-3000:])
