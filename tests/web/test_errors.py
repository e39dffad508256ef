"""Errors: a page in the design, never a traceback, and one line in the log for a defect."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from fairlead import App
from fairlead.errors import SchemaMismatch, StoreUnavailable
from fairlead.web import Access
from tests.web.browsing import Browser, with_access


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*given: Any, **named: Any) -> Any:
        raise error

    monkeypatch.setattr("fairlead.web.pages.queues.queue_numbers", fail)


async def test_a_defect_is_a_page_with_an_id_that_the_log_has(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, ZeroDivisionError("secret detail"))
    response = await Browser(with_access(app, Access.read())).get("/queues")
    assert response.status_code == 500
    assert "secret detail" not in response.text and "Traceback" not in response.text
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(logged) == 1 and logged[0].exc_info is not None
    id = re.search(r"under ([0-9a-f]{12})", response.text)
    assert id is not None and id[1] in logged[0].getMessage()


async def test_a_store_that_is_away_is_a_page_that_says_what_to_do(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, StoreUnavailable("PostgreSQL at db.internal does not respond"))
    response = await Browser(with_access(app, Access.read())).get("/queues")
    assert response.status_code == 503
    assert "db.internal does not respond. Tasks stay in the store. Try again" in response.text
    assert "Queues" in response.text  # the menu is there


async def test_who_may_see_some_tenants_only_sees_no_names_of_servers(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_access(app, Access.read(tenants={"acme"}))
    for route in made.screens:
        route.scoped = True
    failing(monkeypatch, SchemaMismatch("the tables of db.internal are older: fairlead migrate"))
    response = await Browser(made).get("/queues")
    assert response.status_code == 503 and "db.internal" not in response.text
    assert "Whoever runs this console" in response.text


async def test_an_unknown_page_is_a_page_too(app: App) -> None:
    browser = Browser(with_access(app, Access.read()))
    response = await browser.get("/<b>nothing")
    assert response.status_code == 404 and "No such page" in response.text
    assert (await browser.get("/static/nothing.js")).status_code == 404
    assert (await browser.get("/static/..%2f__init__.py")).status_code == 404
