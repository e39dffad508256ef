"""The console of an application whose tasks live in Redis alone: every route responds, and says what
this store does not record."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from fairlead import App
from fairlead.web import Access
from tests.web.browsing import Browser, with_access
from tests.web.conftest import _register
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
    asyncio.run(_register(app))
    yield app
    app.close()


async def test_every_route_responds_and_says_what_this_store_does_not_record(app: App) -> None:
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
            assert "does not have that" in response.text, path
            assert re.search(r"sqlite://|SQL database|there is no lake", response.text), path


async def test_the_first_screen_shows_the_queues_and_what_is_missing(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    response = await browser.get("/")
    assert response.headers["location"] == "/sharded"
    page = await browser.get("/sharded")
    assert page.status_code == 200 and "mail" in page.text and "no audit log" in page.text
    for path in ("/queues", "/tasks?state=ERROR&order=oldest", "/nodes", "/doctor", "/incidents"):
        assert (await browser.get(path)).status_code == 200, path


async def test_a_weight_is_set_and_a_limit_is_refused_with_the_cure(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    await browser.get("/queues")
    form = {"key": "acme", "queue": "mail"}
    assert (await browser.post("/tenants/weight", **form, weight="2")).status_code == 303
    assert app.management.weights("mail") == {"acme": 2.0}
    response = await browser.post("/tenants/limit", **form, limit="2")
    assert response.status_code == 501 and "per=&#39;fairness_key&#39;" in response.text


async def test_dead_letters_of_a_sharded_queue_are_changed_without_an_audit_log(
    app: App, redis_url: str
) -> None:
    from fairlead.sharded import SyncShardedQueue

    with SyncShardedQueue(redis_url, "images", max_deliveries=1) as images:
        images.write({"n": 1})
        images.read("g", "gone")
        images.reclaim("g", "ann", min_idle=0)
        (letter,) = images.dead_letter_heads()
        browser = Browser(with_access(app, Access.full(), sharded=[images]))
        page = await browser.get("/sharded/queue?name=images")
        assert "has no audit log" in page.text
        page = await browser.post("/sharded/confirm/delete", name="images", id=letter.id)
        assert "this is not recorded" in page.text
        response = await browser.post("/sharded/delete", name="images", id=letter.id)
        assert response.status_code == 303 and images.dead_letter_heads() == []
