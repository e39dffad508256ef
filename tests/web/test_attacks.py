"""Attacks on the console that once succeeded, or that come close to one that did."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException

from fairlead import App
from fairlead.errors import InvalidTask, StoreUnavailable, UnknownTask
from fairlead.operate.changes import Cancel
from fairlead.ports.task_records import TaskFilter
from fairlead.web import Access, console, live
from fairlead.web.access import ACTIONS
from fairlead.web.live import Changes, LiveHub
from fairlead.web.login_throttle import MOST_OF_ONE
from tests.conftest import url_of
from tests.web.browsing import HOST, SAME_ORIGIN, Browser, assistant, with_access

TOKEN = "a token of a person"  # noqa: S105
CROSS_SITE = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}


def submitted(app: App, fairness_key: str, number: int = 1, text: Any = "text") -> list[str]:
    """Submit tasks of a tenant; return their ids."""

    @app.task(queue="mail", name=f"note {fairness_key}")
    def note(text: Any) -> None:
        """Do nothing."""

    task = note.options(fairness_key=fairness_key)
    return [task.submit(text).id for _ in range(number)]


# login --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["//evil.example/x", "//evil.example", "/\\evil.example"])
async def test_no_address_leads_a_browser_to_another_site(app: App, path: str) -> None:
    client = Browser(console(app)).client
    for headers in (CROSS_SITE, {}):
        response = await client.get(f"{HOST}{path}", headers=headers)
        assert "url=//" not in response.text and 'href="//' not in response.text
        assert response.headers.get("location", "/login").startswith("/login")


async def test_an_image_on_another_site_cannot_use_up_the_tries_of_a_login(app: App) -> None:
    browser = Browser(console(app, token=TOKEN))
    image = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}
    for _ in range(MOST_OF_ONE + 1):
        response = await browser.get("/login", params={"token": "wrong"}, headers=image)
        assert response.status_code == 403
    assert (await browser.get("/login", params={"token": TOKEN})).status_code == 303


async def test_wrong_tokens_of_others_do_not_lock_out_who_has_the_one_of_the_console(
    app: App,
) -> None:
    made = console(app)
    browser = Browser(made)
    for _ in range(MOST_OF_ONE + 1):
        response = await browser.get("/login", params={"token": "wrong"})
    assert response.status_code == 429
    await browser.log_in(made.token)


async def test_a_cookie_from_before_the_login_is_not_the_session(app: App) -> None:
    made = console(app)
    eve, victim = Browser(made), Browser(made)
    await eve.log_in(made.token)
    victim.client.cookies = type(eve.client.cookies)(eve.client.cookies)
    await victim.log_in(made.token)
    assert dict(victim.client.cookies) != dict(eve.client.cookies)


async def test_a_cookie_opens_nothing_with_another_token_or_secret(app: App) -> None:
    secret = "a secret of this test"  # noqa: S105
    browser = Browser(console(app, token=TOKEN, secret=secret))
    await browser.log_in(TOKEN)
    for token, other, status in (
        (TOKEN, secret, 200),
        (f"{TOKEN}2", secret, 303),
        (TOKEN, f"{secret}2", 303),
        (TOKEN, None, 303),
    ):
        again = Browser(console(app, token=token, secret=other))
        again.client.cookies = browser.client.cookies
        assert (await again.get("/queues")).status_code == status


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_logout_ends_the_session_in_every_process(
    store: str, request: pytest.FixtureRequest
) -> None:
    apps = [App(url_of(store, request), name="shop") for _ in range(2)]
    apps[0].migrate()
    apps[0].task(queue="mail", name="send")(lambda: None)
    secret = "a secret of this test"  # noqa: S105
    here, there = (Browser(console(app, token=TOKEN, secret=secret)) for app in apps)
    await here.log_in(TOKEN)
    there.client.cookies = type(here.client.cookies)(here.client.cookies)
    assert (await there.get("/audit")).status_code == 200
    await here.get("/audit")
    assert (await here.post("/logout")).status_code == 303
    another = Browser(console(apps[1], token=TOKEN, secret=secret))  # has not asked yet
    another.client.cookies = type(there.client.cookies)(there.client.cookies)
    assert (await another.get("/audit")).headers["location"].startswith("/login")
    while (response := await there.get("/audit")).status_code == 200:
        await asyncio.sleep(0.05)  # it asks the store again within a second
    assert response.headers["location"].startswith("/login")
    for app in apps:
        app.close()


async def test_a_logout_holds_here_if_the_store_cannot_tell_others(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = console(app)
    browser, thief = Browser(made), Browser(made)
    await browser.log_in(made.token)
    await browser.get("/queues")
    thief.client.cookies = type(browser.client.cookies)(browser.client.cookies)

    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(app.connector.store.database, "run", fail)
    assert (await browser.post("/logout")).status_code == 503
    for each in (browser, thief):
        assert (await each.get("/queues")).headers["location"].startswith("/login")


async def test_a_console_that_is_older_than_the_tables_says_so_on_each_screen(app: App) -> None:
    with closing(sqlite3.connect(app.url.removeprefix("sqlite:///"))) as database:
        database.execute(
            "INSERT INTO fairlead_schema SELECT 9, '0009_new', applied_at FROM fairlead_schema"
        )
        database.commit()
    old = App(app.url, name="shop")
    browser = Browser(console(old, token=TOKEN))
    await browser.log_in(TOKEN)
    for path in ("/", "/tenants", "/tasks", "/queues", "/nodes", "/api/v1/overview"):
        response = await browser.get(path, follow_redirects=True)
        assert response.status_code == 503, path
        assert "newer than this code" in response.text
    old.close()


async def test_no_redirect_names_a_host(app: App) -> None:
    browser = Browser(with_access(app, Access.full()))
    response = await browser.get("/queues/")
    assert response.status_code == 404 and "location" not in response.headers


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data"])
async def test_a_csrf_token_is_read_from_forms_only(app: App, kind: str) -> None:
    browser = Browser(with_access(app, Access.full()))
    await browser.get("/queues")
    headers = {**SAME_ORIGIN, "content-type": kind}
    body = f"csrf_token={browser.csrf}&queue=mail"
    response = await browser.client.post("/do/pause_queue", content=body, headers=headers)
    assert response.status_code == 403 and not app.management.queues()[0].paused


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "PAUSE"])
async def test_no_other_method_does_an_action(app: App, method: str) -> None:
    browser = Browser(with_access(app, Access.full()))
    await browser.get("/queues")
    override = {"x-http-method-override": "POST", "x-csrf-token": browser.csrf, **SAME_ORIGIN}
    for path in ("/do/pause_queue?queue=mail&_method=POST", "/logout"):
        response = await browser.client.request(method, path, headers=override)
        assert response.status_code in (303, 404, 405)
    assert not app.management.queues()[0].paused


async def test_authorize_may_answer_by_an_exception_of_its_framework(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_request: Any) -> Access:
        raise HTTPException(303, "log in <b>first", {"Location": "/sign-in"})

    outer = FastAPI()
    outer.mount("/admin", console(app, authorize=refuse))
    response = await Browser(outer).get("/admin/queues")
    assert (response.status_code, response.headers["location"]) == (303, "/sign-in")
    assert "<b>first" not in response.text and caplog.records == []
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("answer", [None, True, "full", {"reads": True}, Access])
async def test_an_answer_of_authorize_that_is_no_access_lets_nobody_in(
    app: App, answer: Any
) -> None:
    made = console(app, authorize=lambda _request: answer)
    for path in ("/queues", "/live", "/login"):
        assert (await Browser(made).get(path)).status_code >= 400
    response = await Browser(made).post("/do/pause_queue", queue="mail")
    assert response.status_code == 500 and not app.management.queues()[0].paused


# tenants ------------------------------------------------------------------------------------------


async def test_the_beginning_of_an_id_says_nothing_of_other_tenants(app: App) -> None:
    own = app.management.find()[0].id
    others = submitted(app, "globex")
    for number in count():
        if others[0][:-1] != own[:-1]:  # ids of one millisecond ascend by one
            break
        others = submitted(app, f"globex {number}")
    for made, is_known in (
        (with_access(app, Access.read()), True),
        (with_access(app, Access.read(tenants={"acme"})), False),
    ):
        response = await Browser(made).get("/tasks/task", params={"id": others[0][:-1]})
        assert (response.status_code == 200) is is_known
        assert (others[0] in response.text) is is_known
    # Ids of one moment begin alike: those of others make no beginning ambiguous.
    found = app.management.named(own[:8], tenants={"acme"})
    assert found.id == own
    for beginning in (others[0][:-1], "ffff", "0000"):
        with pytest.raises(UnknownTask) as refused:
            app.management.named(beginning, tenants={"acme"})
        assert others[0] not in str(refused.value)
    app.management.cancel(own)
    assert app.management.named(own[:8], tenants={"acme"}).id == own


async def test_a_tenants_viewer_is_told_of_no_change_by_others(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(live, "VIEWER_SECONDS", 0.0)
    hub = LiveHub(app)
    hub.changes = Changes(look=0.0, rest=0.0, longest_rest=0.0)  # something changes all the time
    everyone, limited = hub.stream(), hub.stream(is_limited=True)
    assert (await anext(everyone), await anext(limited)) == (b"retry: 3000\n\n",) * 2
    following = asyncio.ensure_future(anext(limited))
    for _ in range(20):
        assert (await anext(everyone)).startswith(b"event: changed")
    assert not following.done()
    hub.end()
    with pytest.raises(StopAsyncIteration):
        await following
    await everyone.aclose()  # type: ignore[attr-defined]


async def test_a_tenants_viewer_learns_no_folder_of_the_history(app: App) -> None:
    folder = console(app).parts.lake.folder
    for access, is_shown in ((Access.read(), True), (Access.read(tenants={"acme"}), False)):
        response = await Browser(with_access(app, access)).get("/history")
        assert response.status_code == 200 and "No history yet" in response.text
        assert (str(folder) in response.text) is is_shown


# actions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["interrupt", "resume"])
async def test_a_bulk_action_obeys_only_who_may_do_it(app: App, verb: str) -> None:
    actions = app.management.actions
    asked = actions.ask(Cancel(actor="ada"), TaskFilter())
    if verb == "resume":
        actions.interrupt(asked.id)
    others = Access(actions=ACTIONS - {"cancel"})
    for access, status in ((others, 403), (Access(actions=frozenset({"cancel"})), 303)):
        browser = Browser(with_access(app, access))
        page = await browser.get("/actions/action", params={"id": asked.id})
        assert (f'action="/do/{verb}_action"' in page.text) is (status == 303)
        response = await browser.post(f"/do/{verb}_action", id=asked.id)
        assert response.status_code == status
        response = await browser.send(f"/actions/{asked.id}/{verb}")
        assert status == 303 or response.status_code == 403
    assert actions.show(asked.id).state == ("waiting" if verb == "resume" else "interrupted")


# masks --------------------------------------------------------------------------------------------


def hide_pins(_name: str, arguments: Any) -> Any:
    """Mask the pin, and what is in the list of pins."""
    hidden = {"pin": "***", "pins": ["***"], "codes": {"1": "***"}}
    return {name: hidden.get(name, value) for name, value in arguments.items()}


@pytest.mark.parametrize(
    "argument", ["pin=1234", "pin=x", "pins.3=1", "pin.a=1", "pins.0.a=x", "codes.1=x"]
)
async def test_a_masked_argument_cannot_be_guessed_by_a_search(app: App, argument: str) -> None:
    browser = Browser(with_access(app, Access.full(), mask=hide_pins))
    await browser.get("/tasks")
    for name in ({}, {"name": "send"}):
        response = await browser.get("/tasks", params={"argument": argument, **name})
        assert response.status_code == 400 and "masked" in response.text
        for path in ("/confirm/cancel_matching", "/do/cancel_matching"):
            form = {f"filter.{each}": value for each, value in name.items()}
            form |= {"scope": "matching", "filter.argument": argument}
            response = await browser.post(path, **form)
            assert response.status_code == 400 and "masked" in response.text
        for path in ("/api/v1/tasks", "/api/v1/tasks/count"):
            response = await browser.get(path, params={"argument": argument, **name})
            assert response.status_code == 400 and "masked" in response.text
        for path in ("/actions/cancel", "/actions/cancel/preview"):
            body = {"filter": {"argument": argument, **name}}
            response = await browser.send(path, body)
            assert response.status_code == 400 and "masked" in response.text
    assert app.management.actions.list() == []
    for mask in (None, hide_pins):
        with pytest.raises(InvalidTask, match="cannot be searched"):
            assistant(app, mask=mask).searchable({"argument": argument, "name": "send"})


async def test_what_a_mask_leaves_can_be_searched(app: App) -> None:
    [task] = app.management.find()
    browser = Browser(with_access(app, Access.full(), mask=hide_pins))
    query = {"argument": "to=a@example.org", "name": task.name}
    assert task.id in (await browser.get("/tasks", params=query)).text
    browser = Browser(with_access(app, Access.full(), mask=lambda _name, given: given["missing"]))
    assert (await browser.get("/tasks", params=query)).status_code == 400


# texts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [400, 900, 40_000])
async def test_arguments_of_any_depth_have_a_page(app: App, levels: int, tmp_path: Path) -> None:
    task_id = app.management.find()[0].id
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as database, database:
        payload = b'{"to": ' + b"[" * levels + b"]" * levels + b"}"
        changed = database.execute("UPDATE fairlead_tasks SET payload = ?", [payload])
        assert changed.rowcount == 1
    browser = Browser(with_access(app, Access.full()))
    response = await browser.get("/tasks/task", params={"id": task_id})
    assert response.status_code == 200
    assert ("too many levels" in response.text) is (levels > 900)
    response = await browser.get(f"/api/v1/tasks/{task_id}")
    assert response.status_code == 200
    assert ("too many levels" in response.text) is (levels > 900)
    response = await browser.get("/tasks", params={"argument": "to.0.0=1"})
    assert response.status_code == 200 and task_id not in response.text


async def test_only_the_id_of_a_trace_goes_into_its_address(app: App, tmp_path: Path) -> None:
    task_id = app.management.find()[0].id
    for trace, is_shown in (("0af7651916cd43dd8448eb211c80319c", True), ("/../x?", False)):
        context = json.dumps({"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
        with closing(sqlite3.connect(tmp_path / "tasks.db")) as database, database:
            database.execute("UPDATE fairlead_tasks SET context = ?", [context])
        made = with_access(app, Access.full(), trace_url=lambda id: f"https://traces.example/{id}")
        page = await Browser(made).get("/tasks/task", params={"id": task_id})
        assert page.status_code == 200
        assert ("https://traces.example/" in page.text) is is_shown
        page = await Browser(made).get(f"/api/v1/tasks/{task_id}")
        assert page.status_code == 200
        assert ("https://traces.example/" in page.text) is is_shown


@pytest.mark.parametrize("tenants", [None, {"acme"}])
async def test_no_page_has_the_password_of_a_server(tenants: set[str] | None) -> None:
    app = App("postgresql://someone:hunter2@127.0.0.1:1/tasks", name="shop")
    made = with_access(app, Access.full(tenants=tenants))
    browser = Browser(made)
    for path in [each.path for each in made.screens if "GET" in (each.methods or ())]:
        if path != "/live":
            text = (await browser.get(path, params={"id": "1", "name": "mail"})).text
            assert "hunter2" not in text, path
            assert tenants is None or "127.0.0.1" not in text, path
    app.close()
