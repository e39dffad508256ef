"""A real browser for tests of the web console: Chromium, driven by Playwright.

The fixture `browser` belongs to one module: while Playwright runs, asyncio cannot start another loop
in the same thread, so that a module of browser tests has no asynchronous tests.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Dialog,
    Page,
    Request,
    Response,
    sync_playwright,
)

from services import MissingProgram

_AXE_RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
}

ZONE = "Europe/Berlin"
"""Time zone of every viewer."""


@contextmanager
def started() -> Iterator[Browser]:
    """Run Debian's Chromium without a window. Raise MissingProgram."""
    program = shutil.which("chromium")
    if program is None:
        raise MissingProgram("Chromium is missing: apt-get install chromium")
    # Chromium refuses its sandbox to root; what the tests load is our own console on loopback.
    options = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=options)
        try:
            yield browser
        finally:
            browser.close()


class Viewer:
    """One person with a browser window of their own, who looks at the console at `address`.

    Everything that a browser complains of is kept in `complaints`: errors of scripts and of the
    console's log, refused content, failed requests, and requests to another host.
    """

    def __init__(
        self,
        browser: Browser,
        address: str,
        *,
        scheme: Literal["light", "dark"] = "light",
        width: int = 1280,
        has_scripts: bool = True,
    ) -> None:
        """Open the window; visit nothing yet. `width`: of the window, in pixels. `has_scripts`:
        whether the browser runs JavaScript."""
        self.address = address.rstrip("/")
        self.complaints: list[str] = []
        self._host = urlsplit(address).netloc
        self._context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="reduce",
            timezone_id=ZONE,
            java_script_enabled=has_scripts,
        )
        self.page: Page = self._context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("dialog", self._on_dialog)
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        self.page.on("request", self._on_request)
        self.page.on("response", self._on_response)

    def visit(self, path: str) -> Page:
        """Load a page of the console; `path` may hold a query."""
        self.page.goto(f"{self.address}{path}", wait_until="load")
        return self.page

    def axe(self, *rules: str) -> list[str]:
        """Return the violations that axe finds on the present page: rule, help and the first
        elements. `rules`: those to check; all of WCAG 2.2 AA without any."""
        options = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else _AXE_RULES
        found: dict[str, Any] = Axe().run(self.page, options=options).response
        return [
            f"{each['id']}: {each['help']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
            for each in found["violations"]
        ]

    def close(self) -> None:
        """Close the window."""
        self._context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob"} and parts.netloc != self._host:
            self.complaints.append(f"request to another host: {request.url}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"{response.status}: {response.request.method} {response.url}")
