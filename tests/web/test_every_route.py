"""Every route of the console is guarded: the routes come from the console itself."""

from __future__ import annotations

import httpx
import pytest

from fairlead import App
from fairlead.web import Access, console
from fairlead.web.application import Console
from fairlead.web.routing import ScreenRoute
from tests.web.browsing import SAME_ORIGIN, Browser, with_access


def addresses(made: Console) -> list[tuple[str, str, ScreenRoute]]:
    """Return method, path and route of every route, parameters filled in."""
    found = []
    for route in made.screens:
        path = route.path
        for name in route.param_convertors:
            path = path.replace(f"{{{name}}}", "x").replace(f"{{{name}:path}}", "x")
        found += [(method, path, route) for method in sorted(route.methods or ())]
    assert found
    return found


async def send(
    made: Console, method: str, path: str, headers: dict[str, str] | None = None
) -> httpx.Response:
    """Send a request with a valid CSRF token and origin, unless the headers say otherwise."""
    made.parts.live.end()  # a stream of events would never end
    browser = Browser(made)
    first = await browser.get("/")
    while first.is_redirect:
        first = await browser.get(first.headers["location"])
    return await browser.client.request(
        method,
        path,
        data={"csrf_token": browser.csrf} if method == "POST" else None,
        headers=SAME_ORIGIN if headers is None else headers,
    )


async def test_without_a_token_every_route_leads_to_the_login(app: App) -> None:
    made = console(app)
    for method, path, _ in addresses(made):
        response = await Browser(made).client.request(method, path, headers=SAME_ORIGIN)
        is_login = response.headers.get("location", "").startswith("/login")
        assert response.status_code == 401 or (response.status_code == 303 and is_login), path


async def test_without_access_every_route_is_refused(app: App) -> None:
    made = with_access(app, Access.none())
    for method, path, _ in addresses(made):
        assert (await send(made, method, path)).status_code == 403, path


@pytest.mark.parametrize("read_only", [False, True])
async def test_who_may_only_read_can_do_no_action(app: App, read_only: bool) -> None:
    access = Access.full() if read_only else Access.read()
    made = with_access(app, access, read_only=read_only)
    for method, path, route in addresses(made):
        status = (await send(made, method, path)).status_code
        if route.action is not None or method not in ("GET", "HEAD"):
            assert status == 403, path


async def test_a_tenants_viewer_sees_no_route_that_shows_all_tenants(app: App) -> None:
    made = with_access(app, Access.full(tenants={"acme"}))
    for method, path, route in addresses(made):
        if not route.scoped:
            assert (await send(made, method, path)).status_code in (403, 404), path


async def test_no_action_is_done_for_another_origin(app: App) -> None:
    made = with_access(app, Access.full())
    for method, path, _ in addresses(made):
        if method not in ("GET", "HEAD"):
            response = await send(made, method, path, {"origin": "http://evil.example"})
            assert response.status_code == 403 and "another site" in response.text, path


async def test_no_action_is_done_without_the_csrf_token(app: App) -> None:
    made = with_access(app, Access.full())
    for method, path, _ in addresses(made):
        if method in ("GET", "HEAD"):
            continue
        for token in (None, "", "0" * 64, "é"):
            browser = Browser(made)
            await browser.get("/")
            form = {} if token is None else {"csrf_token": token}
            response = await browser.client.request(method, path, data=form, headers=SAME_ORIGIN)
            assert response.status_code == 403 and "expired" in response.text, (path, token)


async def test_every_response_has_the_headers_that_bound_a_browser(app: App) -> None:
    made = with_access(app, Access.full())
    for method, path, _ in addresses(made):
        headers = (await send(made, method, path)).headers
        assert "'unsafe" not in headers["content-security-policy"], path
        assert headers["content-security-policy"].startswith("default-src 'none'"), path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
