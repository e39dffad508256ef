"""The guard: who may send what, from where."""

from __future__ import annotations

from fairlead import App
from fairlead.web import Access, console
from tests.web.browsing import HOST, SAME_ORIGIN, Browser, with_access


async def test_a_page_without_a_session_leads_to_the_login_and_back(app: App) -> None:
    made = console(app)
    browser = Browser(made)
    response = await browser.get("/queues?rows=5")
    assert response.headers["location"] == "/login?next=%2Fqueues%3Frows%3D5"
    await browser.get(response.headers["location"])
    response = await browser.post("/login", token=made.token, next="/queues?rows=5")
    assert response.headers["location"] == "/queues?rows=5"
    assert (await browser.get("/queues")).status_code == 200


async def test_the_token_in_an_address_becomes_a_cookie(app: App) -> None:
    made = console(app)
    browser = Browser(made)
    response = await browser.get("/login", params={"token": made.token})
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"]
    assert made.token not in cookie
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
    assert response.headers["referrer-policy"] == "no-referrer"


async def test_another_site_cannot_use_a_session(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    await browser.get("/queues")
    form = {"csrf_token": browser.csrf, "queue": "mail"}
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": HOST, "sec-fetch-site": "cross-site"},
        {"origin": "null"},
    ):
        response = await browser.client.post("/queues/pause", data=form, headers=headers)
        assert response.status_code == 403, headers
    response = await browser.client.post(
        "/queues/pause", data={"queue": "mail"}, headers=SAME_ORIGIN
    )
    assert response.status_code == 403
    assert not app.management.queues()[0].paused
