"""The screen of queues."""

from __future__ import annotations

from fairlead import App
from fairlead.web import Access
from tests.web.browsing import Browser, with_access


async def test_a_queue_is_paused_and_resumed_and_the_page_says_so_once(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    assert "Pause" in (await browser.get("/queues")).text
    response = await browser.post("/do/pause_queue", queue="mail")
    assert (response.status_code, response.headers["location"]) == (303, "/queues")
    assert app.management.queues()[0].paused
    assert "pause queue (queue mail)" in (await browser.get("/queues")).text
    assert "pause queue (queue mail)" not in (await browser.get("/queues")).text
    await browser.post("/do/resume_queue", queue="mail")
    assert not app.management.queues()[0].paused


async def test_an_action_leads_to_no_other_site(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    await browser.get("/queues")
    for back in ("//evil.example/", "https://evil.example/", "/\\evil.example"):
        response = await browser.post("/do/pause_queue", queue="mail", back=back)
        assert response.headers["location"] == "/", back
