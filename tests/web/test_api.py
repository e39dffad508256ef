"""The JSON API: every operation of its OpenAPI document, its guard, and its scope."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import App
from fairlead.model import Incident, IncidentKind, Level
from fairlead.model.task_facts import TaskPage
from fairlead.operate.documents import instant_of
from fairlead.operate.tasks import Management
from fairlead.web import Access, console
from fairlead.web.api.openapi import openapi_document
from fairlead.web.api.operations import json_of, route_of
from fairlead.web.api.routes import OPERATIONS
from fairlead.web.mcp import McpServer
from tests.conftest import url_of
from tests.web.api_kit import FUTURE, HOSTILE, SECRET, add_lake, fill, shop
from tests.web.browsing import HOST, SAME_ORIGIN, Browser, assistant, with_access

API = "/api/v1"
JSON = {"accept": "application/json"}


class Caller:
    """A program that calls the API with a bearer token."""

    def __init__(self, app: Any, token: str = "t" * 20) -> None:
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, client=("127.0.0.1", 50000)),
            base_url=HOST,
            headers={"authorization": f"Bearer {token}", **JSON},
        )

    async def get(self, path: str, **query: Any) -> Any:
        """Return the document of a read."""
        response = await self.client.get(API + path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        """Send an action."""
        return await self.client.post(API + path, json=body)


@pytest.fixture
async def full(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    """An application with tasks of every state, on SQLite unless the test names another store."""
    app = await fill(shop(url_of(getattr(request, "param", "sqlite"), request)))
    add_lake(app, tmp_path)
    yield app
    app.close()


def with_token(app: App, access: Access | None = None, **settings: Any) -> Caller:
    """Return a caller of a console with this access."""
    if access is None:
        return Caller(console(app, token="t" * 20, **settings))
    return Caller(with_access(app, access, **settings))


# every operation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("full", ["sqlite", "postgres"], indirect=True)
async def test_every_operation_gives_what_the_openapi_document_says(full: App) -> None:
    caller = with_token(full, mask=lambda _name, arguments: arguments)
    described = await caller.get("/openapi.json")
    errors = (await caller.get("/tasks", state="ERROR", tenant="acme"))["tasks"]
    ids = [task["id"] for task in errors]
    ready = (await caller.get("/tasks", state="SUBMITTED", tenant="acme"))["tasks"]
    waiting = (await caller.get("/tasks", state="WAITING", tenant="acme"))["tasks"]
    assert len(ids) == 8 and len(ready) == 9 and len(waiting) == 1
    later = FUTURE.isoformat()
    acme = {"tenant": "acme", "state": "ERROR"}
    # (operation, parameters of the path, query or body)
    calls: list[tuple[str, dict[str, str], Any]] = [
        ("access", {}, {}),
        ("overview", {}, {}),
        ("tasks", {}, {"rows": 3, "order": "oldest", "fairness_key": HOSTILE}),
        ("tasks", {}, {"submitted_from": "2020-01-01T00:00", "no_key": 1}),
        ("tasks", {}, {"argument": "number=0", "name": "send"}),
        ("task_count", {}, {"tenant": "acme", "older_than": 0}),
        ("task", {"id": ready[0]["id"]}, {}),
        ("task", {"id": ids[0]}, {}),
        ("task_why", {"id": ids[0]}, {}),
        ("task_why", {"id": ready[-1]["id"]}, {}),
        ("tenants", {}, {"order": "share", "rows": 2}),
        ("tenant", {}, {"key": "acme/eu"}),
        ("tenant_why", {}, {"key": "acme"}),
        ("queues", {}, {}),
        ("queue", {}, {"name": "mail"}),
        ("nodes", {}, {}),
        ("incidents", {}, {"rows": 2}),
        ("periodic", {}, {}),
        ("ordered", {}, {}),
        ("ordered_tasks", {}, {"name": "ledger"}),
        ("policies", {}, {"queue": "mail"}),
        ("policy", {}, {"version": "2"}),
        ("doctor", {}, {}),
        ("history_runs", {}, {"by": "tenant", "points": 1, "top": 1}),
        ("history_waits", {}, {"measure": "pickup", "queue": "mail"}),
        ("history_shares", {}, {"tenant": "acme/eu"}),
        ("history_tenants", {}, {"since": "2020-01-01"}),
        ("retry_task", {"id": ids[0]}, {"version": errors[0]["version"]}),
        ("resume_task", {"id": ids[1]}, {"force": True}),
        ("reschedule_task", {"id": waiting[0]["id"]}, {"run_at": later}),
        ("change_task", {"id": waiting[0]["id"]}, {"priority": 1, "new_fairness_key": "acme/us"}),
        ("cancel_task", {"id": ids[2]}, {}),
        ("fail_task", {"id": ids[3]}, {}),
        ("retry_tasks", {}, {"ids": [ids[4], "unknown"]}),
        ("resume_tasks", {}, {"ids": [ids[4]]}),
        ("reschedule_tasks", {}, {"ids": [waiting[0]["id"]], "run_at": later}),
        ("change_tasks", {}, {"ids": [waiting[0]["id"]], "priority": 2}),
        ("cancel_tasks", {}, {"ids": [ids[5]]}),
        ("fail_tasks", {}, {"ids": [ids[6]]}),
        ("preview_retry", {}, {"filter": acme}),
        ("preview_resume", {}, {"filter": acme, "force": True}),
        ("preview_reschedule", {}, {"filter": acme, "run_at": later}),
        ("preview_change", {}, {"filter": acme, "priority": 3}),
        ("preview_cancel", {}, {"filter": {"tenant": "acme", "older_than": 1}, "limit": 2}),
        ("preview_fail", {}, {"filter": {"submitted_before": later}}),
        ("retry_matching", {}, {"filter": acme, "limit": 1}),
        (
            "resume_matching",
            {},
            {"filter": {"tenant": "acme", "argument": "number=0", "name": "send"}},
        ),
        ("reschedule_matching", {}, {"filter": acme, "run_at": later}),
        ("change_matching", {}, {"filter": {"id": ids[7][:8]}, "new_fairness_key": "acme"}),
        ("cancel_matching", {}, {"all": True, "limit": 1}),
        ("fail_matching", {}, {"filter": acme}),
        ("actions", {}, {"rows": 2}),
        ("action", {"id": "1"}, {}),
        ("interrupt_action", {"id": "1"}, None),
        ("resume_action", {"id": "1"}, {"take_over": True}),
        ("pause_queue", {}, {"queue": "mail"}),
        ("resume_queue", {}, {"queue": "mail"}),
        ("set_weight", {}, {"queue": "mail", "fairness_key": HOSTILE, "weight": 2.5}),
        ("set_weight", {}, {"queue": "mail", "fairness_key": HOSTILE, "weight": None}),
        ("set_limit", {}, {"queue": "mail", "fairness_key": f"{HOSTILE}/eu", "limit": 2}),
        ("set_limit", {}, {"queue": "mail", "fairness_key": f"{HOSTILE}/eu", "limit": None}),
        ("sharded", {}, {}),
        ("sharded_queue", {}, {"name": "none"}),
        ("dead_letters", {}, {"name": "none", "rows": 2}),
        ("requeue_dead_letters", {}, {"name": "none", "ids": ["1-0"]}),
        ("delete_dead_letters", {}, {"name": "none", "ids": ["1-0"]}),
        ("set_shard_key_weight", {}, {"name": "none", "shard_key": "", "weight": 2.0}),
        ("preview_weight_tenants", {}, {"names": ["acme", HOSTILE]}),
        ("preview_limit_tenants", {}, {"matching": {"search": "acme", "queue": "mail"}}),
        ("weight_tenants", {}, {"queue": "mail", "names": [HOSTILE, ""], "weight": 2.5}),
        ("limit_tenants", {}, {"queue": "mail", "matching": {}, "limit": None}),
        ("run_periodic", {}, {"name": "clean"}),
        ("pause_periodic", {}, {"name": "clean"}),
        ("resume_periodic", {}, {"name": "clean"}),
        ("remove_periodic", {}, {"name": "clean"}),
        ("approve_policy", {}, {"version": "2", "why": "good"}),
        ("roll_back_policy", {}, {"to": "1", "queue": "mail", "why": "worse"}),
        ("switch_tuning", {}, {"mode": "frozen", "queue": "mail", "why": "a sale"}),
        ("switch_on_tuning", {}, {"queue": "mail"}),
        ("audit", {}, {"verb": "retry", "rows": 1}),
        ("audit", {}, {"action": "1"}),
    ]
    operations = {
        found["operationId"]: (method, path, found)
        for path, methods in described["paths"].items()
        for method, found in methods.items()
    }
    assert {name for name, _, _ in calls} == set(operations)
    for name, in_path, values in calls:
        method, path, operation = operations[name]
        if method == "get":
            known = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
            assert set(values) <= known, name
            response = await caller.client.get(path.format(**in_path), params=values)
        else:
            if "requestBody" in operation:
                check(operation["requestBody"], described, values)
            response = await caller.client.post(path.format(**in_path), json=values)
        said = operation["responses"][str(response.status_code)]
        is_unknown = (values or {}).get("name") == "none"
        refused = {"remove_periodic": 409}.get(name, 404 if is_unknown else None)
        if refused is not None:  # a worker declares it; the console shows no such queue
            assert response.status_code == refused, response.text
            said = described["components"]["responses"][said["$ref"].rpartition("/")[2]]
        else:
            assert response.is_success, (name, response.text)
        check(said, described, response.json())
        assert not name.startswith("history") or response.json()["rows"], name


def check(content: Any, described: Any, value: Any) -> None:
    """Check a value against the schema of a body or a response."""
    schema = content["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator(
        {**schema, "components": described["components"]},
        format_checker=jsonschema.FormatChecker(),
    )
    validator.validate(value)


def test_the_schemas_of_the_openapi_document_are_valid_and_bounded() -> None:
    described = openapi_document(OPERATIONS, "/admin", "Shop")
    assert described["servers"] == [{"url": "/admin"}]
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    for name, schema in described["components"]["schemas"].items():
        for field, each in schema.get("properties", {}).items():
            if field in ("id", "seq", "range_id", "action"):
                types = {one.get("type") for one in each.get("anyOf", [each])}
                assert "string" in types and "integer" not in types, (name, field)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1))
def test_64_bit_numbers_keep_all_their_digits(one: int, other: int) -> None:
    assert json.loads(json_of(Level(one, other), Level)) == {"pass": str(one), "id": str(other)}
    incident = Incident(other, IncidentKind.ERROR, "x", "", 0, "", "", 0, 0, None)
    assert json.loads(json_of(incident, Incident))["id"] == str(other)


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_instant_of_a_store_is_written_and_read(micros: int) -> None:
    instant = instant_of(micros)
    sent = msgspec.json.encode(instant)
    assert msgspec.json.decode(sent, type=datetime) == instant
    if 0 <= micros < 253_402_300_800_000_000:
        assert round(instant.timestamp() * 1000) == pytest.approx(micros / 1000, abs=1)


async def test_pages_follow_their_cursor_to_the_end(full: App) -> None:
    caller = with_token(full)
    for path, rows_of, query in (
        ("/tasks", "tasks", {"state": "ERROR"}),
        ("/tenants", "tenants", {}),
        ("/incidents", "rows", {}),
    ):
        whole = (await caller.get(path, rows=200, **query))[rows_of]
        found, after = [], None
        while True:
            cursor = {} if after is None else {"after": after}
            page = await caller.get(path, rows=2, **query, **cursor)
            found += page[rows_of]
            if (after := page["next"]) is None:
                break
        assert len(found) >= 3 and [key_of(row) for row in found] == [key_of(row) for row in whole]


def key_of(row: dict[str, Any]) -> Any:
    return row.get("id", row.get("tenant"))


# refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "query", "status", "word"),
    [
        ("/tasks", {"client": "acme"}, 400, "client"),
        ("/tasks", {"rows": "1000"}, 400, "rows"),
        ("/tasks", {"state": "LOST"}, 400, "state"),
        ("/tasks", {"after": "x" * 2000}, 400, "after"),
        ("/tasks", {"after": "zz"}, 400, "after"),
        ("/tasks/unknown", {}, 404, "unknown"),
        ("/tasks/unknown", {"id": "other"}, 400, "id"),
        ("/tenants", {"after": "-1"}, 400, "after"),
        ("/tenant", {}, 400, "key"),
        ("/queue", {"name": "unknown"}, 404, "unknown"),
        ("/tenants", {"after": "1e9"}, 400, "after"),
        ("/policy", {"version": "99"}, 404, "99"),
        ("/policy", {"version": str(1 << 63)}, 400, "version"),
        ("/actions/x", {}, 400, "id"),
        ("/actions/9", {}, 404, "9"),
        ("/audit", {"action": "x"}, 400, "action"),
        ("/audit", {"action": "1e3"}, 400, "action"),
        ("/audit", {"action": "null"}, 400, "action"),
        ("/audit", {"after": str(1 << 63)}, 400, "after"),
        ("/history/runs", {}, 501, "fairlead pipeline ingest"),
        ("/history/runs", {"top": "51"}, 400, "top"),
        ("/nothing", {}, 404, ""),
    ],
)
async def test_a_wrong_read_names_the_cause(
    app: App, path: str, query: dict[str, str], status: int, word: str
) -> None:
    response = await with_token(app).client.get(API + path, params=query)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["status"] == status and error["title"] and word in error["detail"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tasks/unknown/retry", {}, 404),
        ("/tasks/unknown/retry", {"force": True}, 400),
        ("/tasks/unknown/reschedule", {}, 400),
        ("/tasks/unknown/reschedule", {"run_at": "2026-01-01T00:00:00"}, 400),
        ("/tasks/unknown/reschedule", {"run_at": "9999-12-31T23:59:59-23:00"}, 400),
        ("/tasks/unknown/change", {}, 400),
        ("/tasks/unknown/change", {"priority": 10}, 400),
        ("/tasks/cancel", {"ids": []}, 400),
        ("/tasks/cancel", {"ids": ["x"] * 501}, 400),
        ("/tasks/cancel", {"ids": "x"}, 400),
        ("/actions/cancel", {}, 400),
        ("/actions/fail", {"filter": {}}, 400),
        ("/actions/fail", {"filter": {"error": "", "older_than": 0}}, 400),
        ("/actions/fail/preview", {"filter": {}, "all": False}, 400),
        ("/actions/cancel", {"filter": {"client": "acme"}}, 400),
        ("/actions/cancel", {"filter": {"older_than": 10**30}}, 400),
        ("/actions/cancel", {"filter": {"state": "DONE"}}, 400),
        ("/actions/7/resume", None, 404),
        ("/actions/7/interrupt", {}, 400),
        ("/queues/pause", {"queue": "unknown"}, 404),
        ("/queues/weight", {"queue": "mail", "fairness_key": "a", "weight": 0}, 400),
        ("/queues/limit", {"queue": "mail", "fairness_key": "a", "limit": 0}, 400),
        ("/queues/limit", {"queue": "mail", "fairness_key": "a", "limit": 2**31}, 400),
        ("/queues/limit", {"queue": "mail", "fairness_key": "a"}, 400),
        ("/periodic/pause", {"name": "unknown"}, 404),
        ("/policies/approve", {"version": "7", "why": "x"}, 404),
        ("/policies/approve", {"version": "9" * 19, "why": "x"}, 400),
        ("/policies/switch", {"mode": "on", "why": "x"}, 400),
        ("/policies/switch", {"mode": "off", "why": ""}, 400),
    ],
)
async def test_a_wrong_action_changes_nothing_and_names_the_cause(
    app: App, path: str, body: Any, status: int
) -> None:
    response = await with_token(app).post(path, body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"ids": NaN}'])
async def test_a_body_that_is_no_json_is_refused(app: App, body: bytes) -> None:
    caller = with_token(app)
    response = await caller.client.post(
        f"{API}/tasks/cancel", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400, response.text
    form = await caller.client.post(f"{API}/tasks/cancel", data={"ids": "x"})
    assert form.status_code == 415


async def test_a_changed_task_is_refused_at_its_old_version(full: App) -> None:
    caller = with_token(full)
    task = (await caller.get("/tasks", state="WAITING", tenant="acme"))["tasks"][0]
    path = f"/tasks/{task['id']}/change"
    done = await caller.post(path, {"priority": 1, "version": task["version"]})
    assert done.json()["priority"] == 1
    again = await caller.post(path, {"priority": 2, "version": task["version"]})
    assert again.status_code == 409 and again.json()["error"]["status"] == 409
    audit = (await caller.get("/audit", task_id=task["id"]))["rows"]
    assert [entry["outcome"] for entry in audit] == ["refused", "done"]


# guard --------------------------------------------------------------------------------------------


async def test_a_session_needs_the_csrf_token_and_a_bearer_does_not(app: App) -> None:
    made = console(app, token="t" * 20)
    browser = Browser(made)
    await browser.log_in("t" * 20)
    path, body = f"{API}/queues/pause", {"queue": "mail"}
    refused = await browser.client.post(path, json=body, headers=SAME_ORIGIN)
    assert refused.status_code == 403 and "error" in refused.json()
    csrf = (await browser.client.get(f"{API}/access")).json()["csrf_token"]
    headers = {**SAME_ORIGIN, "x-csrf-token": csrf}
    assert (await browser.client.post(path, json=body, headers=headers)).status_code == 200
    caller = Caller(made)
    assert (await caller.get("/access"))["csrf_token"] is None
    assert (await caller.post("/queues/resume", body)).status_code == 200


async def test_authorize_may_read_the_bearer_token(app: App) -> None:
    def authorize(request: Any) -> Access:
        known = request.headers.get("authorization") == "Bearer robot"
        return Access.read({"acme"}, name="robot") if known else Access.none()

    made = console(app, authorize=authorize)
    rights = await Caller(made, "robot").get("/access")
    assert rights == {"name": "robot", "actions": [], "tenants": ["acme"], "csrf_token": None}
    assert (await Caller(made, "other").client.get(f"{API}/access")).status_code == 403


# scope --------------------------------------------------------------------------------------------


async def test_no_read_of_a_tenant_shows_anything_of_another_one(full: App) -> None:
    everyone = with_token(full)
    foreign = (await everyone.get("/tasks", tenant="umbrella"))["tasks"]
    assert SECRET in (await everyone.client.get(f"{API}/tasks/{foreign[0]['id']}")).text
    await everyone.post("/tasks/retry", {"ids": [foreign[-1]["id"]]})
    await everyone.post("/actions/fail", {"filter": {"tenant": "umbrella"}})
    caller = with_token(full, Access.full({"acme"}))
    own = (await caller.get("/tasks"))["tasks"]
    assert own and {task["fairness_key"] for task in own} == {"acme/eu"}
    queries = [
        {},
        {"name": "mail"},
        {"name": "ledger"},
        {"key": "umbrella"},
        {"key": "acme"},
        {"tenant": "umbrella"},
        {"state": "ERROR"},
        {"state": "DONE"},
        {"id": foreign[0]["id"]},
        {"fairness_key": "umbrella/eu"},
        {"task_id": foreign[-1]["id"]},
        {"action": "1"},
        {"queue": "mail"},
        {"search": "umb"},
        {"order": "share"},
    ]
    served = 0
    for operation in OPERATIONS:
        if not operation.is_read:
            continue
        known = set(operation.arguments.__struct_fields__) | {"no_key"}
        for query in queries:
            if not set(query) <= known:
                continue
            for id in (foreign[0]["id"], foreign[-1]["id"][:20], own[0]["id"], "1"):
                path = route_of(operation).path.format(id=id)
                response = await caller.client.get(path, params=query)
                served += response.status_code == 200
                assert response.status_code in (200, 400, 403, 404), (path, query, response.text)
                assert operation.scoped or response.status_code == 403, path
                text = response.text
                assert SECRET not in text, (path, query)
                if response.status_code == 200:
                    assert "umbrella" not in text, (path, query)
                for task in foreign:
                    assert task["id"] not in text or task["id"].startswith(id), (path, query)
    assert served > 40


async def test_no_action_of_a_tenant_changes_a_task_of_another_one(full: App) -> None:
    everyone = with_token(full)
    foreign = (await everyone.get("/tasks", tenant="umbrella", state="ERROR"))["tasks"]
    asked = (await everyone.post("/actions/fail", {"filter": {"tenant": "umbrella"}})).json()
    caller = with_token(full, Access.full({"acme"}))
    id = foreign[0]["id"]
    for verb in ("retry", "resume", "cancel", "fail"):
        assert (await caller.post(f"/tasks/{id}/{verb}", {})).status_code == 404
        named = (await caller.post(f"/tasks/{verb}", {"ids": [id]})).json()
        assert (named["changed"], named["refused"]) == (0, 1)
        preview = await caller.post(f"/actions/{verb}/preview", {"filter": {"tenant": "umbrella"}})
        assert preview.json()["changed"] == 0
    own = (await caller.get("/tasks", state="WAITING"))["tasks"][0]
    to = {"new_fairness_key": "umbrella/eu"}
    assert (await caller.post(f"/tasks/{own['id']}/change", to)).status_code == 409
    for verb in ("interrupt", "resume"):
        assert (await caller.post(f"/actions/{asked['id']}/{verb}")).status_code == 404
    for path in ("/queues/pause", "/queues/weight", "/periodic/run", "/policies/switch"):
        assert (await caller.post(path, {})).status_code == 403
    assert (await everyone.get("/tasks", tenant="umbrella", state="ERROR"))["tasks"] == foreign


async def test_the_history_is_in_seconds_and_of_the_period_that_was_asked_for(full: App) -> None:
    caller = with_token(full)
    found = (await caller.get("/history/tenants"))["rows"]
    assert {row["tenant"]: row["busy"] for row in found} == {"acme": 5.0, "umbrella": 5.0}
    for query in (
        {"since": "9999-12-31T23:59:59"},
        {"until": "0001-01-01T00:00"},
        {"since": "yesterday"},
        {"top": "0"},
        {"points": "201"},
    ):
        response = await caller.client.get(f"{API}/history/runs", params=query)
        assert response.status_code == 400, (query, response.text)


async def test_arguments_pass_the_mask_and_keep_their_digits(full: App) -> None:
    def hide(name: str, arguments: Any) -> Any:
        return {**arguments, "number": f"hidden of {name}"}

    task = (await with_token(full).get("/tasks", state="SUBMITTED", tenant="acme"))["tasks"][0]
    shown = (await with_token(full).get(f"/tasks/{task['id']}"))["arguments"]
    assert str(2**62) in shown
    masked = (await with_token(full, mask=hide).get(f"/tasks/{task['id']}"))["arguments"]
    assert str(2**62) not in masked and "hidden of send" in masked


async def test_an_unknown_tenant_is_not_called_a_task(app: App) -> None:
    caller = with_token(app, Access.read({"acme"}))
    response = await caller.client.get(f"{API}/tenant", params={"key": "umbrella"})
    assert response.status_code == 404 and "task" not in response.json()["error"]["title"]


async def test_the_tool_says_that_a_search_was_cut(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = TaskPage([], "0197f9a2-0000-7000-8000-000000000000", is_cut=True)
    monkeypatch.setattr(Management, "page", lambda *_args, **_given: page)
    call = {"name": "tasks", "arguments": {"name": "other"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    sent = McpServer(assistant(app), is_operator=True).respond(msgspec.json.encode(message))
    found = json.loads(json.loads(sent or b"")["result"]["content"][0]["text"])
    assert found["tasks"] == [] and found["next"] and "may match" in found["note"]
