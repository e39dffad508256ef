"""The guard: who may send what, from where, and how much."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.requests import Request

from fairlead import App
from fairlead.errors import ConfigurationError
from fairlead.web import Access, console
from fairlead.web.guard import MOST_BODY_BYTES, is_loopback, is_same_origin
from fairlead.web.inputs import own_path
from fairlead.web.login_throttle import MOST_OF_ALL, MOST_OF_ONE, WINDOW_SECONDS, FailedLogins
from fairlead.web.sessions import SESSION_SECONDS, Signer, key_of
from tests.web.browsing import HOST, PAGE, SAME_ORIGIN, Browser, with_access

TOKEN = "a token of a person"


# the login ----------------------------------------------------------------------------------------


async def test_a_page_without_a_session_leads_to_the_login_and_back(app: App) -> None:
    made = console(app)
    browser = Browser(made)
    response = await browser.get("/queues?rows=5")
    assert response.headers["location"] == "/login?next=%2Fqueues%3Frows%3D5"
    assert "Log in" in (await browser.get(response.headers["location"])).text
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


async def test_the_cookie_is_secure_behind_tls(app: App) -> None:
    made = console(app)
    browser = Browser(made, base="https://localhost")
    response = await browser.get("/login", params={"token": made.token})
    assert "Secure" in response.headers["set-cookie"]


async def test_a_login_from_a_link_on_another_site_leads_on_by_a_page_of_ours(app: App) -> None:
    # After a redirect that another site began, a browser would not send the cookie.
    made = console(app)
    browser = Browser(made)
    headers = {"sec-fetch-site": "cross-site"}
    response = await browser.get(
        "/login", params={"token": made.token, "next": '/queues?a="b'}, headers=headers
    )
    assert response.status_code == 200 and "set-cookie" in response.headers
    assert 'content="0; url=/queues?a=&#34;b"' in response.text
    response = await Browser(made).get("/queues", headers=headers)
    assert 'url=/queues"' in response.text


async def test_wrong_tokens_are_refused_and_counted(app: App) -> None:
    made = console(app, token=TOKEN)
    browser = Browser(made)
    statuses = [
        (await browser.get("/login", params={"token": f"{made.token}{n}"})).status_code
        for n in range(MOST_OF_ONE + 2)
    ]
    assert statuses == [401] * MOST_OF_ONE + [429] * 2
    assert (await browser.post("/login", token=made.token)).status_code == 429


def test_failed_logins_of_an_address_end_with_the_window() -> None:
    failed = FailedLogins()
    for n in range(MOST_OF_ONE):
        assert failed.wait("a", n) == 0
        failed.add("a", n)
    assert failed.wait("a", 20) == WINDOW_SECONDS - 20
    assert failed.wait("b", 20) == 0
    assert failed.wait("a", WINDOW_SECONDS) == 0


def test_failed_logins_of_many_addresses_are_bounded_together() -> None:
    failed = FailedLogins()
    for n in range(MOST_OF_ALL + 50):
        failed.add(f"address {n}", 0.0)
    assert failed.wait("another", 1.0) > 0
    assert len(failed._failed) == MOST_OF_ALL
    assert failed.wait("another", WINDOW_SECONDS + 1) == 0


async def test_a_client_without_cookies_sends_the_token_as_bearer(app: App) -> None:
    made = console(app, token=TOKEN)
    client = Browser(made).client
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert (await client.get("/queues", headers=headers)).status_code == 200
    response = await client.post("/do/pause_queue", data={"queue": "mail"}, headers=headers)
    assert response.status_code == 303 and app.management.queues()[0].paused
    headers = {"authorization": "Bearer wrong"}
    assert (await client.get("/queues", headers=headers)).status_code == 401
    assert "session" not in response.headers.get("set-cookie", "")


@pytest.mark.parametrize(
    "following",
    [
        *("//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\r\nb", "", "/é"),
        *("/../admin", "/tasks/%2e%2E/../admin", "/.%2e/admin?x=1"),
    ],
)
def test_a_login_never_leads_to_another_site(following: str) -> None:
    assert own_path(following) == "/"


# sessions -----------------------------------------------------------------------------------------


def test_a_session_holds_until_its_end_and_only_with_its_key() -> None:
    signer = Signer(key_of("one secret"))
    session = signer.new_session(True, 1000.5)
    cookie = signer.cookie(session)
    assert signer.session(cookie, 1001) == session
    assert signer.session(cookie, 1000 + SESSION_SECONDS) is None
    assert Signer(key_of("another secret")).session(cookie, 1001) is None


def test_a_changed_cookie_is_no_session() -> None:
    signer = Signer(key_of("one secret"))
    cookie = signer.cookie(signer.new_session(False, 1000))
    for n in range(len(cookie)):
        changed = cookie[:n] + ("A" if cookie[n] != "A" else "B") + cookie[n + 1 :]
        found = signer.session(changed, 1001)
        # The last character before the dot may hold bits that base64 does not use.
        assert found is None or found == signer.session(cookie, 1001)
    for odd in ("", ".", "é", "a" * 5000, signer.sign("notice", "x.1.9999999999")):
        assert signer.session(odd, 1001) is None


async def test_a_csrf_token_of_another_session_or_viewer_is_refused(app: App) -> None:
    names = ["ada"]
    made = console(app, authorize=lambda _request: Access.full(name=names[0]))
    ada, eve = Browser(made), Browser(made)
    await ada.get("/queues")
    await eve.get("/queues")
    ada.csrf, own = eve.csrf, ada.csrf
    assert (await ada.post("/do/pause_queue", queue="mail")).status_code == 403
    ada.csrf, names[0] = own, "eve"
    assert (await ada.post("/do/pause_queue", queue="mail")).status_code == 403
    names[0] = "ada"
    assert (await ada.post("/do/pause_queue", queue="mail")).status_code == 303


# origin and host ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({}, True),
        ({"origin": HOST}, True),
        ({"origin": HOST, "sec-fetch-site": "same-origin"}, True),
        ({"origin": "null", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "null"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "http://localhost:1"}, False),
        ({"origin": "http://localhost:8350.evil.example"}, False),
        ({"origin": "http://localhost:8350@evil.example"}, False),
        ({"origin": "http://[::1"}, False),
        ({"origin": "file://localhost:8350"}, False),
        ({"origin": "localhost:8350"}, False),
        ({"origin": ""}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": HOST, "sec-fetch-site": "cross-site"}, False),
    ],
    ids=str,
)
def test_only_our_own_pages_may_send_actions(headers: dict[str, str], is_ours: bool) -> None:
    assert is_same_origin(Headers({"host": "localhost:8350", **headers})) is is_ours


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example:8350", "localhost:80@evil.example", "[localhost", ""],
)
async def test_another_host_name_is_refused_on_this_machine(app: App, host: str) -> None:
    made = console(app)
    browser = Browser(made)
    await browser.log_in(made.token)
    response = await browser.client.get("/queues", headers={"host": host})
    assert response.status_code == 403 and "--allow-host" in response.text


@pytest.mark.parametrize("host", ["localhost:8350", "127.0.0.1:99", "[::1]:8350", "LOCALHOST"])
async def test_the_names_of_this_machine_are_served(app: App, host: str) -> None:
    response = await Browser(console(app)).client.get("/login", headers={"host": host})
    assert response.status_code == 200


async def test_without_a_token_of_its_own_only_this_machine_is_served(app: App) -> None:
    response = await Browser(console(app), client="192.0.2.7").get("/login")
    assert response.status_code == 403 and "authorize=" in response.text
    response = await Browser(console(app, token=TOKEN), client="192.0.2.7").get("/login")
    assert response.status_code == 200


def test_loopback_has_several_forms() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "")))
    assert not any(map(is_loopback, ("10.0.0.1", "::", "::ffff:10.0.0.1", "evil")))


# bounds -------------------------------------------------------------------------------------------


async def test_long_requests_are_refused(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    await browser.get("/queues")
    assert (await browser.get("/" + "a" * 3000)).status_code == 414
    assert (await browser.get("/queues?a=" + "a" * 9000)).status_code == 414
    response = await browser.post("/do/pause_queue", queue="m" * MOST_BODY_BYTES)
    assert response.status_code == 413

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"a" * 65536

    response = await browser.client.post("/do/pause_queue", content=endless(), headers=SAME_ORIGIN)
    assert response.status_code == 413


async def test_many_parameters_and_odd_bytes_are_refused(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    await browser.get("/queues")
    body = f"csrf_token={browser.csrf}&queue=%ff"
    headers = {**SAME_ORIGIN, "content-type": "application/x-www-form-urlencoded"}
    post = browser.client.post
    assert (await post("/do/pause_queue", content=body, headers=headers)).status_code == 400
    body = f"csrf_token={browser.csrf}" + "&a=1" * 2000
    assert (await post("/do/pause_queue", content=body, headers=headers)).status_code == 400
    body = f"csrf_token={browser.csrf}&queue=mail&queue=other"
    response = await post("/do/pause_queue", content=body, headers=headers)
    assert response.status_code == 400 and "give it once" in response.text


@pytest.mark.parametrize("length", ["-1", "9" * 30, "x", "\xb2", " 1", "1_0"])
async def test_a_wrong_length_is_refused(app: App, length: str) -> None:
    response = await Browser(with_access(app, Access.full())).client.post(
        "/do/pause_queue", headers={**SAME_ORIGIN, "content-length": length.encode("latin-1")}
    )
    assert response.status_code == 413


# authorize ----------------------------------------------------------------------------------------


async def test_authorize_may_be_sync_or_async_and_sees_the_request(app: App) -> None:
    def sync(request: Request) -> Access:
        return Access.read() if request.headers.get("x-user") == "ada" else Access.none()

    async def coroutine(request: Request) -> Access:
        return sync(request)

    for authorize in (sync, coroutine):
        client = Browser(console(app, authorize=authorize)).client
        assert (await client.get("/queues", headers={"x-user": "ada"})).status_code == 200
        assert (await client.get("/queues")).status_code == 403


async def test_a_failure_of_authorize_lets_nobody_in_and_is_logged_once(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: Request) -> Access:
        raise RuntimeError("the directory has a secret problem")

    response = await Browser(console(app, authorize=broken)).get("/queues")
    assert response.status_code == 500 and "secret problem" not in response.text
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1


async def test_there_is_no_login_where_the_application_has_one(app: App) -> None:
    made = with_access(app, Access.none())
    assert (await Browser(made).get("/login", params={"token": made.token})).status_code == 404


@pytest.mark.parametrize(
    "given",
    [
        {"token": "short"},
        {"secret": "short"},
        {"token": TOKEN, "authorize": lambda _request: Access.full()},
        {"frame_ancestors": "'none'; script-src *"},
        {"hosts": "localhost"},
        {"title": ""},
    ],
    ids=["token", "secret", "both", "frame", "hosts", "title"],
)
def test_weak_settings_are_refused(app: App, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        console(app, **given)


def test_an_access_names_only_actions_that_exist() -> None:
    with pytest.raises(ConfigurationError, match="'delete' is unknown; use cancel"):
        Access(actions=frozenset({"delete"}))
    with pytest.raises(ConfigurationError):
        Access.read(tenants="acme")
    limited = Access.full(tenants={"acme"})
    assert limited.sees("acme/eu") and limited.sees("acme") and not limited.sees("acme2")
    assert limited.may("retry") and not limited.reading().may("retry")
    assert not Access.none().sees("acme") and not Access.none().may("retry")


async def test_the_host_may_show_the_console_in_a_frame_of_its_own(app: App) -> None:
    made = with_access(app, Access.read(), frame_ancestors="https://admin.example")
    headers = (await Browser(made).get("/queues")).headers
    assert "frame-ancestors https://admin.example" in headers["content-security-policy"]
    assert "x-frame-options" not in headers


async def test_no_token_is_in_what_a_server_logs(app: App) -> None:
    # A server that logs after the response reads the query from the same scope.
    made = console(app)
    scopes = []

    async def logging_server(scope: Any, receive: Any, send: Any) -> None:
        await made(scope, receive, send)
        scopes.append(scope)

    transport = httpx.ASGITransport(logging_server, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url=HOST, headers=PAGE) as client:
        await client.get("/login", params={"token": made.token})
    assert made.token.encode() not in scopes[0]["query_string"]
