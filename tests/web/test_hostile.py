"""Odd values in every parameter, hostile text in every field, and words of other tenants, on every
screen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import quote, urlencode

import pytest

from fairlead import App, NoRetry
from fairlead.operate.changes import Cancel, NewValues
from fairlead.ports.task_records import TaskFilter
from fairlead.web import Access, console
from fairlead.web.application import Console
from tests.conftest import url_of
from tests.end_to_end.console_app import HOSTILE
from tests.web.browsing import SAME_ORIGIN, Browser, with_access
from tests.web.conftest import _register

BIG = str((1 << 63) - 1)
ODD = [
    "id=x&name=x&version=1&key=x",
    "after=-1",
    "after=-1&rows=-1",
    f"after={BIG}&id={BIG}&version={BIG}&name=mail",
    f"after={int(BIG) + 1}",
    "id=2147483648&version=2147483648&name=mail",
    "id=1" + "0" * 30,
    "rows=%D9%A1",
    "id=ffffffffffffffffffffffffffffffff&name=ledger",
    "id=FFFF-FFFF",
    "id=a&id=b",
    "key=%00&search=%00&name=%00&queue=%00&actor=%00",
    "search=%25_%5C&queue=%25_%5C&name=%25_%5C&actor=%25_%5C&key=%25_%5C",
    "name=%ED%A0%80",
    "key=%F0%9F%98%80&name=%F0%9F%98%80&search=%F0%9F%98%80",
    "name=" + "n" * 1025,
    "since=0001-01-01T00:00%2B14:00&id=1",
    "until=9999-12-31T23:59-14:00&id=1",
    "&".join(["a=1"] * 1101),
]
ODD_FILTERS = [
    "submitted_from=0001-01-01T00:00%2B10:00",
    "submitted_from=9999-12-31T23:59:59-10:00",
    "submitted_before=0001-01-01",
    "submitted_from=9999-12-31T23:59:59",
    "older_than=315360000",
    "id=zz",
    "error=" + quote("%_\\" + "(" * 500),
    "argument==",
    "argument=a=" + "[" * 1000,
    "argument=" + "a." * 19 + "a=1",
    "argument=0.0=1e999",
    "argument=" + quote("a'\"$[*].b=1'--"),
    "after=x",
    "after=" + quote("' OR 1=1 --"),
    "after=00000000-0000-0000-0000-000000000000",
    "state=DONE&after=x",
    "state=DONE&after=9223372036854775807.9223372036854775807",
    "state=DONE&after=999999999999999999.999999999999999999",
    "state=ERROR&after=x",
    "state=DONE&error=%25&id=abcd",
    "ordering_key=" + "k" * 1024,
    "unique_key=" + quote("é" * 512),
]


BOTH = pytest.mark.parametrize("filled", ["sqlite", "postgres"], indirect=True)
"""For values that one store may take and the other one refuses."""


@pytest.fixture
def filled(request: pytest.FixtureRequest) -> Iterator[App]:
    """An application with tasks of acme, of another tenant, and of one with hostile names, and with
    what people did."""
    app = App(url_of(getattr(request, "param", "sqlite"), request), name="shop")
    app.migrate()

    @app.task(queue="mail")
    def send(to: str) -> None:
        """Send nothing."""

    @app.task(queue="zebras", name="zebra-name", retry=NoRetry())
    def other(to: str) -> None:
        """Do nothing."""

    @app.task(queue=HOSTILE, name=HOSTILE)
    def hostile(to: str) -> None:
        """Do nothing."""

    asyncio.run(_register(app))
    send.options(fairness_key="acme/x", ordering_key="k").submit("a")
    send.options(fairness_key="zebra/u", ordering_key="k", unique_key="zebra-unique").submit("b")
    send.options(fairness_key="acme/x", ordering_key="k").submit("a")
    other.options(fairness_key="zebra").submit("zebra-argument")
    hostile.options(fairness_key=HOSTILE, ordering_key=HOSTILE, unique_key=HOSTILE).submit(HOSTILE)
    management = app.management
    management.pause("zebras", actor="zebra-keeper")
    management.pause(HOSTILE, actor=HOSTILE)
    management.set_weight("mail", "zebra", 3.0, actor="zebra-keeper")
    management.set_weight(HOSTILE, HOSTILE, 3.0, actor=HOSTILE)
    management.cancel(management.find(queue="zebras")[0].id, actor="zebra-keeper")
    actions = management.actions
    actions.ask(Cancel(actor="zebra-keeper"), TaskFilter(fairness_key="zebra"))
    actions.ask(NewValues(actor=HOSTILE, fairness_key=HOSTILE), TaskFilter(name=HOSTILE))
    both = {"acme", "zebra"}
    actions.ask(NewValues(actor="a", fairness_key="zebra"), TaskFilter(), tenants=both)
    yield app
    app.close()


def screens(made: Console) -> list[str]:
    """Return the paths of all screens but the stream of events."""
    found = [each.path for each in made.screens if "GET" in (each.methods or ())]
    return [path for path in found if path != "/live" and "{" not in path]


class Reader(HTMLParser):
    """Reads a page as a browser does; keeps what no template of ours writes."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.wrong: list[object] = []
        self.actions: list[tuple[str, list[tuple[str, str]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if any(name.startswith("on") or name in ("style", "srcdoc") for name in given):
            self.wrong.append((tag, attrs))
        if tag == "img" and not given["src"].startswith("/static/"):
            self.wrong.append((tag, attrs))
        for name in ("href", "src", "action", "hx-get"):
            if name in given and not re.match(r"/(?!/)|#", given[name]):
                self.wrong.append((tag, attrs))
        self.text += "".join(value for name, value in given.items() if name != "value")
        if tag == "form":
            self.actions.append((given.get("action", ""), []))
        if tag == "input" and given.get("type") == "hidden" and self.actions:
            self.actions[-1][1].append((given["name"], given["value"]))

    def handle_data(self, data: str) -> None:
        self.text += data


@BOTH
async def test_odd_values_are_refused_or_found_nowhere(filled: App) -> None:
    made = with_access(filled, Access.full())
    browser = Browser(made)
    odd = [f"{path}?{query}" for path in screens(made) for query in ODD]
    for address in (*odd, *(f"/tasks?{query}" for query in ODD_FILTERS)):
        response = await browser.get(address)
        assert response.status_code in (200, 303, 400, 404, 409, 501), address[:200]


@pytest.mark.parametrize(
    "text",
    ["0001-01-01", "9999-12-31T23:59:59", "0001-01-01T00:00+10:00", "1970-01-01T00:00+01:00"],
)
async def test_an_instant_that_no_table_can_have_is_refused(filled: App, text: str) -> None:
    browser = Browser(with_access(filled, Access.full()))
    for name in ("submitted_from", "submitted_before"):
        response = await browser.get(f"/tasks?{name}={quote(text)}")
        assert response.status_code == 400, response.text[-300:]
        assert f"{name} &#39;{text}&#39;: use" in response.text


@BOTH
async def test_odd_values_in_actions_are_refused(filled: App) -> None:
    made = with_access(filled, Access.full())
    browser = Browser(made)
    await browser.get("/queues")
    forms = [
        {},
        {"id": BIG, "name": HOSTILE, "queue": HOSTILE, "key": HOSTILE, "run_at": "x"},
        {"id": "1" + "0" * 30, "version": "-5", "weight": "nan", "to": "-1", "priority": "10"},
        {"id": "x", "queue": "mail", "weight": "inf", "run_at": "0001-01-01T00:00+10:00"},
        {"task": ["x"] * 201, "version": BIG, "why": HOSTILE, "queue": "nothing", "to": BIG},
        {"task": [HOSTILE, "x"], "run_at": "9999-12-31T23:59-10:00", "priority": "1"},
        {"scope": "matching", "argument": "=", "run_at": "2030-01-01", "priority": "1"},
        {"id": "\x00", "queue": "\x00", "name": "\x00", "why": "\x00", "version": "1"},
    ]
    paths = [each.path for each in made.screens if "POST" in (each.methods or ())]
    for path in paths:
        for form in forms:
            response = await browser.client.post(
                path, data={"csrf_token": browser.csrf, **form}, headers=SAME_ORIGIN
            )
            assert response.status_code < 500, (path, form, response.text[-300:])
            for value in response.headers.values():
                assert value.isprintable(), (path, form)


async def test_hostile_text_is_text_on_every_screen(filled: App) -> None:
    made = with_access(filled, Access.full())
    browser = Browser(made)
    [task] = filled.management.find(name=HOSTILE)
    names = ("key", "name", "queue", "search", "tenant", "unique_key", "error", "actor", "after")
    queries = ["", urlencode({"id": task.id}), urlencode({"name": HOSTILE})]
    queries += [urlencode({"id": 2}), urlencode(dict.fromkeys(names[:-1], HOSTILE))]
    queries += [urlencode({"queue": HOSTILE, "key": HOSTILE}), urlencode({"after": HOSTILE})]
    for path in screens(made):
        for query in queries:
            response = await browser.get(f"{path}?{query}")
            if path.startswith("/api/"):
                assert response.headers["content-type"] == "application/json", path
                continue
            reader = Reader()
            reader.feed(response.text)
            assert not reader.wrong and "\u202e" not in reader.text, (path, query)


async def test_a_form_acts_on_the_queue_whose_name_it_stands_beside(filled: App) -> None:
    browser = Browser(with_access(filled, Access.full()))
    reader = Reader()
    reader.feed((await browser.get("/queues")).text)
    [form] = [each for path, each in reader.actions if dict(each).get("queue") == HOSTILE]
    response = await browser.client.post("/do/resume_queue", data=dict(form), headers=SAME_ORIGIN)
    assert response.status_code == 303
    assert not {each.queue: each for each in filled.management.queues()}[HOSTILE].paused


async def test_a_tenants_viewer_reads_no_word_of_another_tenant(filled: App) -> None:
    made = with_access(filled, Access.full(tenants={"acme"}))
    browser = Browser(made)
    ids = [each.id for each in filled.management.find(tenant="zebra")]
    ids += [each.id for each in filled.management.find(state="CANCELLED", tenant="zebra")]
    assert len(ids) == 2
    own = [each.id for each in filled.management.find(tenant="acme")]
    asked = ["zebra", "zebra/u", "zebras", "zebra-name", "zebra-unique", "zebra-keeper"]
    names = ("key", "name", "queue", "search", "tenant", "unique_key", "error", "actor", "verb")
    queries = ["", "name=mail&key=acme", "state=CANCELLED", "order=wait", "order=share", "after=1"]
    queries += [urlencode({"id": each}) for each in (*own, *ids, *(i[:-1] for i in ids), 1, 2, 3)]
    queries += [urlencode({name: word}) for name in names for word in asked[:3]]
    queries += ["argument=to%3Dzebra-argument", "unique_key=zebra-unique", "fairness_key=zebra"]
    for path in screens(made):
        for query in queries:
            response = await browser.get(f"{path}?{query}")
            assert response.status_code in (200, 400, 403, 404, 501), (path, query)
            text = response.text
            for sent in (query.partition("=")[2], quote(query)):  # what the viewer sent comes back
                text = text.replace(sent, "") if sent else text
            words = [each for each in ("zebra", *ids) if each in text]
            if query.startswith("id="):
                assert not words, (path, query)
            assert not set(words) & set(ids), (path, query)
            for word in asked:
                text = text.replace(word, "") if word in query else text
            assert "zebra" not in text, (path, query)


async def test_viewers_share_no_read_of_other_tenants(filled: App) -> None:
    limited = Access.read(tenants={"acme"})
    made = console(
        filled,
        authorize=lambda request: limited if "x-acme" in request.headers else Access.read(),
    )
    browser = Browser(made)
    shown = 0
    for path in screens(made):
        for query in ("", "name=mail&key=acme"):
            everything = (await browser.get(f"{path}?{query}")).text
            text = (await browser.get(f"{path}?{query}", headers={"x-acme": "1"})).text
            assert "zebra" not in text, (path, query)
            shown += "zebra" in everything
    assert shown > 4


async def test_a_tenants_viewer_changes_nothing_of_another_tenant(filled: App) -> None:
    made = with_access(filled, Access.full(tenants={"acme"}))
    browser = Browser(made)
    await browser.get("/tasks")
    management = filled.management
    [own, *_] = management.find(tenant="acme")
    [other] = management.find(tenant="zebra")
    before = [each for each in management.find() if each.fairness_key != "acme/x"]
    number = len(management.actions.list())
    form = {"run_at": "2100-01-01", "priority": "1", "queue": "mail", "weight": "2"}
    form |= {"fairness_key": "zebra", "all": "true"}
    for path in [each.path for each in made.screens if "POST" in (each.methods or ())]:
        for more in (
            {"id": other.id},
            {"id": other.id[:-1]},
            {"ids": [other.id]},
            {"scope": "matching", "filter.fairness_key": "zebra/u"},
            {"scope": "matching", "filter.tenant": "zebra"},
            {"scope": "matching", "filter.unique_key": "zebra-unique"},
            {"id": "1"},
            {"id": "3"},
        ):
            response = await browser.client.post(
                path, data={"csrf_token": browser.csrf, **form, **more}, headers=SAME_ORIGIN
            )
            assert response.status_code < 500, (path, more)
            if path.startswith("/confirm"):
                assert other.id not in response.text or "ids" in more
    for more in ({"id": own.id}, {"ids": [own.id]}, {"scope": "matching"}):
        path = "/do/change_task" if "id" in more else "/do/change_matching"
        for key in ("zebra", "zebra/x", "acme2", ""):
            await browser.client.post(
                path,
                data={"csrf_token": browser.csrf, "new_fairness_key": key, **more},
                headers=SAME_ORIGIN,
            )
    assert [each for each in management.find() if each.fairness_key != "acme/x"] == before
    for action in management.actions.list()[:-number]:
        assert action.where.tenants is not None and set(action.where.tenants) <= {"acme"}
    assert [each.state for each in management.actions.list()[-number:]] == ["waiting"] * number
