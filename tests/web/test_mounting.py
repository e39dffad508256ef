"""The console under a prefix of another application, and its links there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from fairlead import App
from fairlead.web import Access, console
from tests.web.browsing import Browser, with_access


def in_starlette(made: Any, prefix: str) -> Any:
    return Starlette(routes=[Mount(prefix, made)])


def behind_a_proxy(made: Any, prefix: str) -> Any:
    """A server whose proxy takes the prefix away: uvicorn --root-path."""

    async def server(scope: Any, receive: Any, send: Any) -> None:
        await made({**scope, "root_path": prefix}, receive, send)

    return server


@pytest.mark.parametrize("mount", [in_starlette, behind_a_proxy])
async def test_every_address_of_a_page_is_under_the_prefix(app: App, mount: Any) -> None:
    made = console(app)
    outer = mount(made, "/admin/tasks")
    browser = Browser(outer)
    response = await browser.get("/admin/tasks/queues")
    assert response.headers["location"] == "/admin/tasks/login?next=%2Fqueues"
    await browser.log_in(made.token, "/admin/tasks")
    page = (await browser.get("/admin/tasks/queues")).text
    found = re.findall(r'(?:href|src|action|hx-get|data-live-source)="([^"#]+)"', page)
    assert len(found) > 8 and all(each.startswith("/admin/tasks/") for each in found), found
    for address in found:
        if "/static/" in address:
            response = await browser.get(address)
            assert response.status_code == 200
            assert "immutable" in response.headers["cache-control"]
    response = await browser.post("/admin/tasks/do/pause_queue", queue="mail")
    assert response.headers["location"] == "/admin/tasks/queues"
    assert "pause queue (queue mail)" in (await browser.get("/admin/tasks/queues")).text
    response = await browser.post("/admin/tasks/do/resume_queue", queue="mail", back="/other")
    assert response.headers["location"] == "/admin/tasks/"
    cookie = next(each for each in browser.client.cookies.jar)
    assert cookie.path == "/admin/tasks/"


async def test_a_prefix_with_odd_characters_is_written_as_in_addresses(app: App) -> None:
    outer = in_starlette(with_access(app, Access.read()), "/a b/ü")
    page = (await Browser(outer).get("/a%20b/%C3%BC/queues")).text
    assert 'href="/a%20b/%C3%BC/queues"' in page


async def test_two_consoles_of_one_server_have_sessions_of_their_own(app: App) -> None:
    one, two = console(app), console(app)
    outer = Starlette(routes=[Mount("/one", one), Mount("/two", two)])
    browser = Browser(outer)
    await browser.log_in(one.token, "/one")
    assert (await browser.get("/one/queues")).status_code == 200
    assert (await browser.get("/two/queues")).status_code == 303
    await browser.log_in(two.token, "/two")
    for path in ("/one/queues", "/two/queues"):
        assert (await browser.get(path)).status_code == 200


async def test_a_websocket_is_refused(app: App) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await console(app)({"type": "websocket", "path": "/queues", "headers": []}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
