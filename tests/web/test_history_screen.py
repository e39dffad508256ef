"""The screen of the history: without a lake, with a small one, and for a viewer of one tenant."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from fairlead import App
from fairlead.pipeline.models import LATENCY_HIST, SERVICE, TENANT_SHARE
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.web import Access
from tests.pipeline.frames import T0
from tests.pipeline.tables_by_hand import put, row
from tests.web.browsing import Browser, with_access

START = T0.replace(minute=0, second=0, microsecond=0)
TENANTS = ("acme", "umbrella", "<b>globex</b>")


@pytest.fixture
def lake(app: App, tmp_path: Path) -> App:
    """The application with a lake: two hours of three tenants."""
    app.lake = str(tmp_path / "lake")
    made = Warehouse(Location.of(app.lake))
    at = [START + timedelta(minutes=n) for n in range(0, 120, 10)]
    common = {"queue": "mail"}
    service = [
        row(SERVICE, window_start=minute, window_s=60, fairness_key=f"{tenant}/ann", name="send", busy_us=n * 10**6,
            attempts_started=n, **common)
        for minute in at
        for n, tenant in enumerate(TENANTS, 1)
    ]  # fmt: skip
    put(made, SERVICE, service)
    for table in (LATENCY_HIST, TENANT_SHARE):
        put(made, table, [])
    return app


async def test_without_a_lake_the_screen_says_how_to_make_one(app: App, tmp_path: Path) -> None:
    app.lake = str(tmp_path / "none")
    browser = Browser(with_access(app, Access.full()))
    response = await browser.get("/history")
    assert response.status_code == 200
    assert "fairlead pipeline ingest" in response.text and "No history yet" in response.text


async def test_a_period_is_read_also_on_a_lake_without_runs(app: App, tmp_path: Path) -> None:
    app.lake = str(tmp_path / "lake")
    put(Warehouse(Location.of(app.lake)), SERVICE, [])
    browser = Browser(with_access(app, Access.full()))
    assert (await browser.get("/api/v1/history/runs?since=2026-03-01")).status_code == 200
    assert (await browser.get("/api/v1/history/runs?since=nonsense")).status_code == 400


async def test_a_period_shows_charts_and_totals_with_names_as_text(lake: App) -> None:
    browser = Browser(with_access(lake, Access.full()))
    response = await browser.get("/history?hours=0")
    assert response.status_code == 200, response.text
    assert "Runs started a second" in response.text
    assert "<b>globex" not in response.text and "&lt;b&gt;globex" in response.text
    assert (await browser.get("/history?since=2020-01-02&until=2020-01-01")).status_code == 400
    assert (await browser.get("/history?hours=-1")).status_code == 400
    assert (await browser.get("/history?by=secret")).status_code == 400


async def test_a_viewer_of_one_tenant_sees_nothing_of_others(lake: App) -> None:
    browser = Browser(with_access(lake, Access.read({"acme"})))
    response = await browser.get("/history?hours=0&by=tenant")
    assert response.status_code == 200, response.text
    assert "acme" in response.text and "umbrella" not in response.text
    assert "globex" not in response.text
    assert (await browser.get("/history?tenant=umbrella")).status_code == 404
