"""A browser without a screen: requests to a console, with the cookies and headers of a browser."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx

from fairlead import App
from fairlead.operate.caller import Caller
from fairlead.web import Access, console
from fairlead.web.application import Console
from fairlead.web.waiting import ReadLoop

HOST = "http://localhost:8350"
PAGE = {"accept": "text/html"}
SAME_ORIGIN = {"origin": HOST, "sec-fetch-site": "same-origin"}


class Browser:
    """One viewer of a console."""

    def __init__(self, app: Any, *, base: str = HOST, client: str = "127.0.0.1") -> None:
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, client=(client, 50000), raise_app_exceptions=True),
            base_url=base,
            headers=PAGE,
        )
        self.csrf = self.back = ""

    async def get(self, path: str, **given: Any) -> httpx.Response:
        """Open an address; keep the CSRF token of the page, and the address in its forms."""
        response = await self.client.get(path, **given)
        if found := re.search(r'data-csrf="([0-9a-f]*)"', response.text):
            self.csrf = found[1]
        if found := re.search(r'name="back" value="([^"]*)"', response.text):
            self.back = unescape(found[1])
        return response

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        """Send a form of the page that was opened last."""
        return await self.client.post(
            path, data={"csrf_token": self.csrf, "back": self.back, **fields}, headers=SAME_ORIGIN
        )

    async def send(self, path: str, body: object = None) -> httpx.Response:
        """Send an action of the JSON API, with the CSRF token of the page that was opened last."""
        headers = {**SAME_ORIGIN, "x-csrf-token": self.csrf}
        return await self.client.post(f"/api/v1{path}", json=body, headers=headers)

    async def log_in(self, token: str, prefix: str = "") -> None:
        """Exchange the token for a session."""
        response = await self.get(f"{prefix}/login", params={"token": token})
        assert response.status_code == 303, response.text


def with_access(app: App, access: Access, **settings: Any) -> Console:
    """Return a console whose viewers all have this access."""
    return console(app, authorize=lambda _request: access, **settings)


def assistant(app: App, tenants: set[str] | None = None, mask: Any = None) -> Caller:
    """Return the caller that an assistant is: it may change nothing, and sees arguments through a
    mask only."""
    return Caller(
        context=app.operate_context,
        wait=ReadLoop(app).wait_for,
        rights=frozenset(),
        tenants=None if tenants is None else frozenset(tenants),
        mask=mask,
        shows_arguments=mask is not None,
    )
