"""Screens say what the store has, also where a first look would notice no difference."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead import App, NoRetry
from fairlead.model import tenant_of
from fairlead.operate import tenants
from fairlead.operate.facts import read_facts
from fairlead.operate.summary import MOST_QUEUES, summary
from fairlead.testing import drain
from fairlead.web import Access
from tests.builders import idle
from tests.web.browsing import Browser, with_access

pytestmark = pytest.mark.virtual_time

Shop = tuple[App, Any]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """An application with an empty SQLite file, and its task `send`."""
    app = App(f"sqlite:///{tmp_path}/shop.db", name="shop")
    app.migrate()
    send = idle(app, "send", queue="mail")
    asyncio.run(app.store.register_queues({"mail": 2}))

    yield app, send
    app.close()


async def test_all_tasks_of_the_first_priority_can_be_changed(shop: Shop) -> None:
    app, send = shop
    send.options(priority=0, fairness_key="acme").submit_many([{"n": n} for n in range(3)])
    browser = Browser(with_access(app, Access.full(name="ada")))
    await browser.get("/tasks")
    page = (await browser.post("/confirm/change_matching", scope="matching")).text
    assert "Change 3 tasks" in page and 'name="new_fairness_key"' in page


async def test_a_weight_shows_as_it_is_set_for_a_tenant_whose_tasks_wait(shop: Shop) -> None:
    app, send = shop
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    send.options(fairness_key="acme", run_at=tomorrow).submit(n=1)
    app.management.set_weight("mail", "acme", 3.0)
    (part,) = tenants.tenant(app.operate_context, "acme").queues
    assert (part.weight, part.is_weight_set, part.share_due) == (3.0, True, None)


async def test_what_is_set_for_a_tenant_shows_without_a_task_and_a_run(shop: Shop) -> None:
    app, send = shop
    send.submit(n=1)  # the queue is known
    app.management.set_weight("mail", "acme", 3.0)
    app.management.set_limit("mail", "acme", 2)
    (part,) = tenants.tenant(app.operate_context, "acme").queues
    assert (part.queue, part.weight, part.is_weight_set, part.limit) == ("mail", 3.0, True, 2)
    page = (await Browser(with_access(app, Access.full())).get("/tenants/tenant?key=acme")).text
    assert "mail" in page and "do/set_limit" in page


async def test_the_numbers_at_the_top_are_those_of_all_queues(shop: Shop) -> None:
    app, _ = shop

    async def work() -> None: ...

    for number in range(MOST_QUEUES + 4):
        app.task(queue=f"q{number:03}", name=f"w{number}")(work).submit()
    found = summary(app.operate_context)
    assert (len(found.queues), found.more_queues) == (MOST_QUEUES, 5)
    page = (await Browser(with_access(app, Access.read())).get("/")).text
    assert f"<dt>Ready</dt><dd>{MOST_QUEUES + 4}</dd>" in page


async def test_a_key_below_a_tenant_is_limited_on_the_page_of_its_tenant(shop: Shop) -> None:
    app, send = shop
    send.options(fairness_key="acme/eu").submit(n=1)
    browser = Browser(with_access(app, Access.full(name="ada")))
    page = (await browser.get("/tenants/tenant?key=acme")).text
    assert 'value="acme/"' in page and "Settings of this fairness key" not in page
    fields = {"fairness_key": "acme/eu", "queue": "mail", "limit": "3"}
    await browser.post("/do/set_limit", **fields)
    assert app.management.limits("mail") == {"acme/eu": 3}
    page = (await browser.get("/tenants/tenant?key=acme/eu")).text
    assert "Settings of this fairness key" in page and '<td class="num">3</td>' in page
    await browser.post("/do/set_limit", **{**fields, "limit": ""})
    assert app.management.limits("mail") == {}


async def test_a_tenant_that_a_sample_may_have_missed_is_not_said_to_have_no_task(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, send = shop
    send.options(fairness_key="seen").submit(n=1)
    read = read_facts(app.operate_context)
    backlog = read.backlog._replace(factor=100.0)
    facts = dataclasses.replace(read, backlog=backlog)
    monkeypatch.setattr("fairlead.web.page.read_facts", lambda _: facts)
    browser = Browser(with_access(app, Access.full()))
    page = (await browser.get("/tenants?search=rare")).text
    assert "a sample is searched" in page and 'href="/tenants/tenant?key=rare"' in page
    page = (await browser.get("/tenants/tenant?key=rare")).text
    assert "<dd>–</dd>" in page and "No task in the sample" in page
    found = (await browser.get("/api/v1/tenant?key=rare")).json()
    assert found["backlog"] == {"number": 0, "is_exact": False, "is_rough": True}


KEYS = ["", "acme", "acme/eu", "acme/us/7", "/odd", "//", "bo", "b/", "z" * 300]


def in_words(app: App, text: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(app.url.removeprefix("sqlite:///"))) as database:
        return database.execute(text).fetchall()


def rows_of(page: str) -> list[list[str]]:
    """Return the cells of the first table, without markup and without what is small."""
    body = page[page.index("<tbody>") : page.index("</tbody>")]
    body = re.sub(r"<small>.*?</small>", "", body, flags=re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[" ".join(re.sub("<[^>]*>", " ", cell).split()) for cell in row] for row in cells]


@pytest.mark.parametrize("seed", range(2))
async def test_numbers_of_the_api_are_those_of_the_screens_and_of_the_tables(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    app = App(f"sqlite:///{tmp_path}/shop.db", name="shop")
    app.migrate()

    async def work(fails: bool) -> None:
        if fails:
            raise ValueError

    tasks = [
        app.task(queue=queue, name=queue, retry=NoRetry())(work) for queue in ("mail", "books")
    ]
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for _ in range(2):
        for _ in range(60):
            options: dict[str, Any] = {"fairness_key": chance.choice(KEYS)}
            if chance.random() < 0.3:
                options["run_at"] = tomorrow
            chance.choice(tasks).options(**options).submit(fails=chance.random() < 0.3)
        if not in_words(app, "SELECT 1 FROM fairlead_attempts LIMIT 1"):
            await drain(app)
    browser = Browser(with_access(app, Access.full()))

    expected: dict[tuple[str, str], Counter[str]] = {}
    for queue, key, state, number in in_words(
        app, "SELECT queue, fairness_key, state, count(*) FROM fairlead_tasks GROUP BY 1, 2, 3"
    ):
        expected.setdefault((tenant_of(key), queue), Counter())[state] += number
    for queue, key, runs, failures, spent in in_words(
        app,
        "SELECT queue, fairness_key, count(*), sum(outcome = 'failed'),"
        " sum(finished_at - started_at) FROM fairlead_attempts GROUP BY 1, 2",
    ):
        found = expected.setdefault((tenant_of(key), queue), Counter())
        found.update(runs=runs, failures=failures, spent=spent)

    def sums(index: int, name: str) -> Counter[str]:
        return sum((v for k, v in expected.items() if k[index] == name), Counter[str]())

    # tenants, and each part of theirs
    api = (await browser.get("/api/v1/tenants?order=name")).json()["tenants"]
    assert [each["tenant"] for each in api] == sorted({name for name, _ in expected})
    page = (await browser.get("/tenants?order=name")).text
    screen = {row[1]: row[1:] for row in rows_of(page)}  # the first cell selects a tenant
    for each in api:
        name, of = each["tenant"], sums(0, each["tenant"])
        assert (each["backlog"]["number"], each["backlog"]["is_exact"]) == (of["SUBMITTED"], True)
        assert each["waiting"]["number"] == of["WAITING"]
        assert each["processing"]["number"] == of["PROCESSING"] == 0
        assert each["errors"] == {"number": of["ERROR"], "at_least": False}
        assert (each["runs"], each["failures"]) == (of["runs"], of["failures"])
        assert each["run_time"] == pytest.approx(of["spent"] / 1e6)
        row = screen[name or "(no key)"]
        assert row[2:6] == [str(of[at]) for at in ("SUBMITTED", "PROCESSING", "WAITING", "ERROR")]
        assert row[9] == str(of["runs"])
        one = (await browser.get("/api/v1/tenant", params={"key": name})).json()
        assert one | {"why": []} == each
        page = (await browser.get("/tenants/tenant", params={"key": name})).text
        shown = {row[0]: row for row in rows_of(page[page.index("<h2>Queues</h2>") :])}
        for part in each["queues"]:
            of = expected[name, part["queue"]]
            numbers = [str(of[at]) for at in ("SUBMITTED", "PROCESSING", "WAITING", "ERROR")]
            assert shown[part["queue"]][2:6] == numbers
            assert shown[part["queue"]][8] == str(of["runs"]) == str(part["runs"])
            assert part["backlog"]["number"] == of["SUBMITTED"]
            assert part["run_time"] == pytest.approx(of["spent"] / 1e6)
        counted = (await browser.get("/api/v1/tasks/count", params={"tenant": name})).json()
        unfinished = sums(0, name)
        states = ("SUBMITTED", "PROCESSING", "WAITING", "ERROR")
        if name:
            assert counted["number"] == sum(unfinished[at] for at in states)

    # queues, in the list, on the overview and alone
    lists = [(await browser.get(f"/api/v1/{at}")).json()["queues"] for at in ("queues", "overview")]
    assert [each["queue"] for each in lists[0]] == [each["queue"] for each in lists[1]]
    screen = {row[0]: row for row in rows_of((await browser.get("/queues")).text)}
    for each in (*lists[0], *lists[1]):
        of = sums(1, each["queue"])
        alone = (await browser.get("/api/v1/queue", params={"name": each["queue"]})).json()
        assert alone["numbers"] == each
        assert each["backlog"]["number"] == of["SUBMITTED"]
        assert each["waiting"]["number"] == of["WAITING"]
        assert each["errors"]["number"] == of["ERROR"]
        row = screen[each["queue"]]
        assert row[2:6] == [str(of[at]) for at in ("WAITING", "SUBMITTED", "PROCESSING", "ERROR")]
    app.close()


@pytest.mark.parametrize(
    "path", ["/", "/tenants", "/tenants/tenant?key=acme", "/queues", "/queues/queue?name=mail"]
)
async def test_a_page_says_when_its_numbers_were_read(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    app, send = shop
    browser = Browser(with_access(app, Access.full()))
    send.options(fairness_key="acme").submit(n=1)
    first = _read_at((await browser.get(path)).text)
    assert _read_at((await browser.get(path)).text) == first
    monkeypatch.setattr("fairlead.web.page.FACTS_SECONDS", -1.0)  # all facts are old
    assert _read_at((await browser.get(path)).text) > first


def _read_at(page: str) -> str:
    """Return when the numbers of a page were read."""
    (found,) = re.findall(r'Numbers of <time datetime="([^"]*)', page)
    return str(found)


async def test_the_api_never_gives_old_numbers(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    app, send = shop
    browser = Browser(with_access(app, Access.full()))
    await browser.get("/queues")
    monkeypatch.setattr("fairlead.web.page.FACTS_SECONDS", -1.0)
    send.options(fairness_key="acme").submit(n=1)
    (queue,) = (await browser.get("/api/v1/queues")).json()["queues"]
    assert queue["backlog"]["number"] == 1
