"""Costs of the screens: what many viewers of different screens cost together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.operate.doctor import examine
from fairlead.operate.facts import read_facts
from fairlead.operate.summary import queue_numbers
from fairlead.web import Access
from tests.web.browsing import Browser, with_access

SCREENS = [
    "/",
    "/tenants",
    "/tenants/tenant?key=acme",
    "/queues",
    "/queues/queue?name=mail",
    "/doctor",
    "/api/v1/overview",
    "/api/v1/queues",
    "/api/v1/tenants",
    "/api/v1/doctor",
]


@contextmanager
def statements(app: App, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the statements on SQLite by the first table after FROM."""
    database = app.connector.store.database
    assert isinstance(database, SqliteDatabase)
    connect = database.connect
    found: Counter[str] = Counter()

    def traced() -> Any:
        connection = connect()
        connection.set_trace_callback(lambda text: found.update([" ".join(text.split())]))
        return connection

    database.close()
    monkeypatch.setattr(database, "connect", traced)
    yield found
    database.close()


async def test_viewers_of_all_screens_share_the_reads_of_runs_and_backlog(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(with_access(app, Access.full()))
    with statements(app, monkeypatch) as found:
        for path in SCREENS:
            assert (await browser.get(path)).status_code == 200, path
    runs = [count for text, count in found.items() if "FROM fairlead_attempts a ORDER BY" in text]
    assert runs == [1]
    # The shared facts are eight statements; the doctor, the queue and the tenants have their own.
    assert sum(found.values()) <= 70, found


async def test_no_screen_counts_every_task(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Browser(with_access(app, Access.full()))
    with statements(app, monkeypatch) as found:
        for path in SCREENS:
            await browser.get(path)
    counts = [text for text in found if "count(*)" in text and "GROUP BY queue, state" in text]
    assert counts == []
    assert [text for text in found if "state <> 'ERROR' GROUP BY queue, name" in text] == []


async def test_queues_of_the_facts_are_those_that_are_counted(app: App) -> None:
    facts = read_facts(app.operate_context)
    found = [
        (each.queue, each.backlog.number, each.waiting.number, each.processing.number)
        for each in queue_numbers(facts)
    ]
    counted = app.management.queues()
    assert found == [
        (each.queue, each.submitted, each.waiting, each.processing) for each in counted
    ]
    assert not facts.is_sample


async def test_the_doctor_finds_the_same_in_the_facts(app: App) -> None:
    context = app.operate_context
    assert await examine(context, facts=read_facts(context)) == await examine(context)


async def test_a_list_without_a_filter_walks_over_its_own_rows_only(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(with_access(app, Access.full()))
    with statements(app, monkeypatch) as found:
        await browser.get("/tasks?rows=1")
    ends = [int(text.rpartition(" ")[2]) for text in found if "OFFSET" in text]
    assert sorted(ends) == [0, 1000]  # of the page, and of the number that is shown
    whole = [text for text in found if "length(t.payload) AS payload_bytes" in text]
    assert sum(found[text] for text in whole) == 1, whole
