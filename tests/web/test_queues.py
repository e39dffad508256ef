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
    for back in ("//evil.example/", "https://evil.example/", "/\\evil.example", "/a/../x"):
        response = await browser.post("/do/pause_queue", queue="mail", back=back)
        assert response.headers["location"] == "/", back


async def test_an_address_to_come_back_to_that_cannot_be_read_lets_nothing_change(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    await browser.get("/queues")
    for back in ("/\0", "/" * 20_000, ["/", "/tasks"]):
        assert (await browser.post("/do/pause_queue", queue="mail", back=back)).status_code == 400
    assert not app.management.queues()[0].paused


async def test_a_word_for_no_weight_is_refused_and_an_empty_one_is_said(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    await browser.get("/queues")
    chosen = {"queue": "mail", "fairness_key": "acme"}
    await browser.post("/do/set_weight", **chosen, weight="2")
    assert (await browser.post("/do/set_weight", **chosen, weight="null")).status_code == 400
    await browser.post("/do/set_weight", **chosen, weight="")
    assert "fairness key acme, weight none)" in (await browser.get("/queues")).text
