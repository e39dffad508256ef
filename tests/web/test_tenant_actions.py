"""Weight and limit of many tenants: a bulk action from the console, the JSON API and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator

import pytest
from typer.testing import CliRunner

from fairlead import App
from fairlead.cli.main import app as command
from fairlead.engine.poller import PollerContext
from fairlead.engine.settings import Intervals
from fairlead.errors import InvalidTask, UnknownQueue
from fairlead.operate.changes import MOST_KEYS, SetLimits, SetWeights
from fairlead.operate.pollers import perform_actions
from fairlead.operate.store.actions import ActionState, BulkAction
from fairlead.web import Access
from tests.web.api_kit import HOSTILE
from tests.web.browsing import Browser, with_access
from tests.web.conftest import _register

TENANTS = ["acme", "acme-labs", "globex", HOSTILE.split("/")[0]]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.stores)])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty SQL database."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """An application with one task of each tenant in the queue `mail`."""
    app = App(url, name="shop")
    app.migrate()

    @app.task(queue="mail")
    def send(to: str) -> None:
        """Send nothing."""

    for tenant in TENANTS:
        send.options(fairness_key=tenant).submit("a@example.org")
    asyncio.run(_register(app))
    yield app
    app.close()


def may(app: App, actions: Collection[str] = ("weight", "limit")) -> Browser:
    return Browser(with_access(app, Access(actions=frozenset(actions), name="ada")))


async def perform_all(app: App) -> None:
    """Go on with actions as a worker does, until none is left."""
    context = PollerContext(
        cluster=app.operate_context.store,
        clock=app.clock,
        intervals=Intervals(),
        announce=app.channel.announce,
    )
    while await perform_actions(context) == 0.0:
        pass
    await app.connections.close_async()


async def test_selected_tenants_get_a_weight_after_a_confirmation(app: App) -> None:
    browser, hostile = may(app), TENANTS[3]
    page = (await browser.get("/tenants")).text
    assert page.count('name="names"') == 4 and "all 4 that match" in page
    chosen = {"names": ["acme", hostile]}
    confirmation = (await browser.post("/confirm/weight_tenants", **chosen)).text
    assert "Weight 2 tenants" in confirmation and ">acme</a>" in confirmation
    assert hostile not in confirmation
    assert app.management.actions.list() == []
    response = await browser.post("/do/weight_tenants", **chosen, queue="mail", weight="2.5")
    [asked] = app.management.actions.list()
    assert response.headers["location"] == f"/actions/action?id={asked.id}"
    assert (asked.verb, asked.actor, asked.state) == ("weight", "ada", ActionState.WAITING)
    await perform_all(app)
    assert app.management.weights("mail") == {"acme": 2.5, hostile: 2.5}
    assert "done" in (await browser.get(f"/actions/action?id={asked.id}")).text
    assert "weight 2.5, keys 2" in (await browser.get("/audit")).text


async def test_all_that_match_get_a_limit_and_lose_it(app: App) -> None:
    browser = may(app)
    await browser.get("/tenants?search=acme")
    chosen = {"scope": "matching", "matching.search": "acme"}
    assert "Limit 2 tenants" in (await browser.post("/confirm/limit_tenants", **chosen)).text
    await browser.post("/do/limit_tenants", **chosen, queue="mail", limit="3")
    await perform_all(app)
    assert app.management.limits("mail") == {"acme": 3, "acme-labs": 3}
    app.management.set_limit("mail", "globex", 9)
    await browser.post("/do/limit_tenants", scope="matching", queue="mail", limit="")
    await perform_all(app)
    assert app.management.limits("mail") == {}
    newest = app.management.actions.list()[0]
    assert (newest.looked, newest.changed, newest.refused) == (4, 3, 0)


@pytest.mark.parametrize(
    ("verb", "fields", "status"),
    [
        ("weight", {"queue": "mail", "weight": "2"}, 400),
        ("weight", {"names": "acme", "queue": "mail", "weight": "0"}, 400),
        ("weight", {"names": "acme", "weight": "2"}, 400),
        ("weight", {"names": "acme", "queue": "none", "weight": "2"}, 404),
        (
            "weight",
            {"scope": "matching", "matching.search": "nobody", "queue": "mail", "weight": ""},
            400,
        ),
        ("limit", {"names": "acme", "queue": "mail", "limit": "0"}, 400),
        ("limit", {"names": ["acme"] * 1_001, "queue": "mail", "limit": "1"}, 400),
    ],
)
async def test_a_wrong_form_changes_nothing(
    app: App, verb: str, fields: dict[str, str], status: int
) -> None:
    browser = may(app)
    await browser.get("/tenants")
    response = await browser.post(f"/do/{verb}_tenants", **fields)
    assert response.status_code == status, response.text
    assert app.management.actions.list() == []


async def test_who_may_set_weights_sets_no_limits(app: App) -> None:
    browser = may(app, {"weight"})
    assert "Limit…" not in (await browser.get("/tenants")).text
    for path in ("confirm", "do"):
        response = await browser.post(f"/{path}/limit_tenants", names="acme", queue="mail")
        assert response.status_code == 403
    asked = app.management.actions.ask(SetLimits(queue="mail", keys=("a",), limit=1))
    assert (await browser.post("/do/interrupt_action", id=asked.id)).status_code == 403
    reader = (await may(app, ()).get("/tenants")).text
    assert 'name="names"' not in reader and "that match" not in reader


async def test_many_tenants_are_changed_in_batches_and_an_interrupt_holds(app: App) -> None:
    keys = tuple(f"tenant-{number}" for number in range(1200))
    actions = app.management.actions
    action = actions.ask(SetWeights(queue="mail", keys=keys, weight=2.0, actor="ada"), is_here=True)

    def interrupt(now: BulkAction) -> None:
        if now.state == ActionState.RUNNING:
            actions.interrupt(now.id)

    stopped = actions.perform(action, on_batch=interrupt)
    assert (stopped.state, stopped.looked) == (ActionState.INTERRUPTED, 500)
    assert len(app.management.weights("mail")) == 500
    done = actions.perform(actions.resume(action.id))
    assert (done.state, done.looked, done.changed) == (ActionState.DONE, 1200, 1200)
    assert app.management.weights("mail") == dict.fromkeys(keys, 2.0)


def test_too_many_keys_and_wrong_ones_are_refused(app: App) -> None:
    ask = app.management.actions.ask
    for keys in ((), ("a", "a"), ("\ud800",), tuple(map(str, range(MOST_KEYS + 1)))):
        with pytest.raises(InvalidTask):
            ask(SetLimits(queue="mail", keys=keys, limit=1))
    with pytest.raises(InvalidTask, match="bytes together"):
        ask(SetLimits(queue="mail", keys=tuple(f"{n:0900}" for n in range(600)), limit=1))
    with pytest.raises(UnknownQueue):
        ask(SetLimits(queue="none", keys=("a",), limit=1))


async def test_the_json_api_previews_and_asks(app: App) -> None:
    browser = may(app)
    await browser.get("/tenants")

    async def post(path: str, body: object) -> tuple[int, dict]:
        response = await browser.send(path, body)
        return response.status_code, response.json()

    found = {"number": 2, "first": ["acme", "acme-labs"], "is_sample": False}
    assert await post("/tenants/weight/preview", {"matching": {"search": "acme"}}) == (200, found)
    names = [f"t{number}" for number in range(9)]
    status, asked = await post("/tenants/limit", {"queue": "mail", "names": names, "limit": 4})
    assert (status, asked["verb"], asked["where"]["queue"]) == (202, "limit", "mail")
    shown = json.loads(asked["change"])
    assert (shown["number"], shown["keys"]) == (9, names[:5])
    await perform_all(app)
    assert app.management.limits("mail") == dict.fromkeys(names, 4)
    for body in ({}, {"names": ["a"], "matching": {}}, {"names": []}, {"names": ["a"], "x": 1}):
        given = {"queue": "mail", "weight": 2.0, **body}
        assert (await post("/tenants/weight", given))[0] == 400, body


def test_the_command_sets_weights_and_limits(app: App, url: str) -> None:
    def run(*given: str) -> str:
        result = CliRunner().invoke(command, ["tenants", *given, "--url", url])
        assert result.exit_code == 0, result.output
        return result.stdout

    said = run("weight", "mail", "3", "--search", "acme", "--dry-run")
    assert "would be changed: 2, the first: acme, acme-labs" in said
    assert app.management.weights("mail") == {}
    assert "weight: 2 changed" in run("weight", "mail", "3", "--search", "acme")
    assert app.management.weights("mail") == {"acme": 3.0, "acme-labs": 3.0}
    run("weight", "mail", "none", "acme", "globex")
    assert app.management.weights("mail") == {"acme-labs": 3.0}
    asked = json.loads(run("limit", "mail", "2", "acme", "--json"))
    assert app.management.limits("mail") == {"acme": 2}
    assert json.loads(asked["change"])["keys"] == ["acme"]
    wrong = CliRunner().invoke(command, ["tenants", "limit", "mail", "2", "--url", url])
    assert wrong.exit_code == 2 and "a search for them" in wrong.output
