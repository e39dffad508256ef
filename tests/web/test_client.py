"""The client of the JSON API against a console that really serves."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from fairlead.errors import ConfigurationError, FairleadError
from fairlead.model import State
from fairlead.ports.policy_store import SwitchMode
from fairlead.web import console
from fairlead.web.api.routes import OPERATIONS
from fairlead.web.client import ConsoleClient, ConsoleError
from tests.web.api_kit import FUTURE, HOSTILE, add_lake, fill, serving, shop

TOKEN = "t" * 20


class Recorded(httpx.HTTPTransport):
    """Transport that keeps the routes that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[tuple[str, str]] = set()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.add((request.method, request.url.path))
        return super().handle_request(request)


@pytest.fixture
async def address(tmp_path: Path) -> Iterator[str]:
    """Address of a console with tasks of every state."""
    app = await fill(shop(f"sqlite:///{tmp_path}/shop.db"))
    add_lake(app, tmp_path)
    with serving(console(app, token=TOKEN)) as address:
        yield address
    app.close()


def test_every_operation_has_a_method_that_returns_its_struct(address: str) -> None:
    recorded = Recorded()
    with ConsoleClient(address, TOKEN, transport=recorded) as client:
        assert "retry" in client.access().actions
        assert {queue.queue for queue in client.overview().queues} >= {"mail"}
        errors = [task.id for task in client.tasks(state="ERROR", tenant="acme").tasks]
        (later,) = client.tasks(state=State.WAITING, tenant="acme").tasks
        assert later.run_at == FUTURE and later.state is State.WAITING
        of_hostile = client.every_task(newest_first=False, fairness_key=HOSTILE)
        assert len(list(of_hostile)) == 18
        assert client.count(tenant="acme", older_than=timedelta(0)).number == 18
        assert client.count(submitted_before=datetime(2020, 1, 1, tzinfo=UTC)).number == 0
        assert client.count(fairness_key="").number == 0
        detail = client.task(errors[0])
        assert detail.attempts[0].error_type == "ValueError"
        assert client.why(errors[0]).reasons[0].kind == "in_error"
        assert client.tenants(order="name", search="acme").tenants[0].tenant == "acme"
        assert client.tenant("acme/eu").errors.number == 8
        assert client.why_tenant(HOSTILE.split("/")[0]).tenant.tenant
        assert client.queues().queues and client.queue("mail").numbers.queue == "mail"
        assert client.nodes().nodes is not None
        assert client.incidents(rows=1).next is not None
        assert [each.name for each in client.periodic().periodics] == ["clean"]
        assert [each.queue for each in client.ordered().queues] == ["ledger"]
        assert client.ordered_tasks("ledger").tasks is not None
        assert client.policies(queue="mail").policies[0].version == "2"
        assert client.policy("1").guarded == {"umbrella": 2.0}
        assert client.doctor().findings
        runs = client.history_runs(by="tenant", points=1)
        assert [row.part for row in runs.rows] == ["acme", "umbrella"]
        assert client.history_waits(since=datetime(2020, 1, 1, tzinfo=UTC)).rows[0].max > 1000
        assert client.history_shares(points=200, tenant="acme").rows[0].busy == 2.5
        assert len(client.history_tenants(top=1).rows) == 1

        assert client.change_task("retry", errors[0]).state is State.SUBMITTED
        assert client.change_task("resume", errors[1], force=True).state is State.SUBMITTED
        moved = client.change_task("reschedule", later.id, run_at=FUTURE, version=later.version)
        assert moved.version > later.version
        assert client.change_task("change", later.id, priority=0).priority == 0
        assert client.change_task("cancel", errors[2]).state is State.CANCELLED
        assert client.change_task("fail", errors[3]).state is State.FAILED
        named = client.change_tasks("cancel", [errors[4], "unknown"])
        assert (named.changed, named.refused) == (1, 1)
        assert client.change_tasks("retry", errors[5:6]).changed == 1
        assert client.change_tasks("resume", errors[6:7]).changed == 1
        assert client.change_tasks("fail", errors[7:8]).changed == 1
        assert client.change_tasks("reschedule", [later.id], run_at=FUTURE).changed == 1
        assert client.change_tasks("change", [later.id], new_fairness_key="acme/us").changed == 1
        of_umbrella = {"tenant": "umbrella", "older_than": timedelta(0)}
        for verb, values in (
            ("retry", {}),
            ("resume", {"force": False}),
            ("reschedule", {"run_at": FUTURE}),
            ("change", {"priority": 4}),
            ("cancel", {}),
            ("fail", {}),
        ):
            assert client.preview(verb, of_umbrella, **values).changed >= 1
            asked = client.change_matching(verb, of_umbrella, limit=3, **values)
            assert asked.verb == verb and asked.state == "waiting"
        assert client.interrupt_action(asked.id).state == "interrupted"
        assert client.resume_action(asked.id).state == "waiting"
        assert client.action(asked.id).most == 3
        assert client.actions(rows=2).next is not None
        client.pause_queue("mail")
        assert client.queue("mail").numbers.is_paused
        client.resume_queue("mail")
        client.set_weight("mail", HOSTILE, 2.0)
        client.set_weight("mail", HOSTILE, None)
        client.set_limit("mail", HOSTILE, 3)
        client.set_limit("mail", HOSTILE, None)
        assert client.sharded().queues == []
        for ask in (
            lambda: client.sharded_queue("none"),
            lambda: client.dead_letters("none"),
            lambda: client.requeue_dead_letters("none", ["1-0"]),
            lambda: client.delete_dead_letters("none", ["1-0"]),
            lambda: client.set_shard_key_weight("none", "acme", None),
        ):
            with pytest.raises(ConsoleError, match="404 No such queue"):
                ask()
        found = client.preview_tenants("weight", matching={"search": "acme"})
        assert (found.number, found.first) == (1, ["acme"])
        assert client.preview_tenants("limit", names=["acme", HOSTILE]).number == 2
        assert client.set_weights("mail", 2.0, names=["acme", HOSTILE]).verb == "weight"
        assert client.set_limits("mail", None, matching={}).state == "waiting"
        assert client.task(client.run_periodic("clean")).task.name == "clean"
        client.pause_periodic("clean")
        assert client.periodic().periodics[0].paused
        client.resume_periodic("clean")
        with pytest.raises(ConsoleError, match="declared by worker"):
            client.remove_periodic("clean")
        client.approve_policy("2", "good")
        assert client.roll_back_policy("mail", "1", "worse") == "3"
        client.switch_tuning(SwitchMode.FROZEN, "a sale", "mail")
        assert client.switch_on_tuning("mail") and not client.switch_on_tuning("mail")
        entries = client.audit(verb="set_limit").entries
        assert entries[0].fairness_key == HOSTILE and entries[0].details == "3"
        entries = client.audit(verb="set_weight").entries
        assert entries[0].fairness_key == HOSTILE and entries[0].details == "2"
    asked_paths = {
        (method, path) for method, path in recorded.asked if not path.endswith("openapi.json")
    }
    missing = [
        operation.name
        for operation in OPERATIONS
        if not any(
            operation.route.path_regex.match(path) and method in (operation.route.methods or ())
            for method, path in asked_paths
        )
    ]
    assert missing == []


def test_an_error_has_the_status_the_title_and_the_cure(address: str) -> None:
    with ConsoleClient(address, TOKEN) as client:
        with pytest.raises(ConsoleError, match="no task") as caught:
            client.task("../overview?x=#".replace("/", "."))
        assert caught.value.status == 404 and caught.value.title == "No such task"
        with pytest.raises(ConsoleError, match="404 .*openapi.json"):
            client.task("../overview")
        with pytest.raises(ConsoleError, match="400 .*rows"):
            client.tasks(rows=1000)
        with pytest.raises(ConsoleError, match="404"):
            client.change_task("../queues/pause", "x")
    with ConsoleClient(address, "wrong" * 5) as client:
        with pytest.raises(ConsoleError) as caught:
            client.overview()
        assert caught.value.status == 401 and isinstance(caught.value, FairleadError)
    with ConsoleClient(f"{address}/elsewhere", TOKEN) as client:
        with pytest.raises(ConsoleError, match="404"):
            client.overview()


def test_a_server_that_is_no_console_or_is_away_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ConsoleClient(f"http://127.0.0.1:{port}", TOKEN) as client:
        with pytest.raises(ConsoleError, match="does not respond") as caught:
            client.overview()
    assert caught.value.status is None

    def page(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text="<html>")

    with ConsoleClient("http://x", TOKEN, transport=httpx.MockTransport(page)) as client:
        with pytest.raises(ConsoleError, match="Not the response of a console"):
            client.overview()


@pytest.mark.parametrize(
    ("url", "token"), [("shop:app", TOKEN), ("http://x", ""), ("http://x", "a\nb"), ("http://x", 7)]
)
def test_an_address_or_a_token_that_cannot_be_is_refused(url: str, token: str) -> None:
    with pytest.raises(ConfigurationError):
        ConsoleClient(url, token)
