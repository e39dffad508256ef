"""People see what runs, waits or has a name, however many other tasks wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from fairlead import App
from fairlead.backends.sql import task_reads
from fairlead.operate.facts import read_facts
from fairlead.operate.summary import summary
from fairlead.operate.tenants import tenant
from fairlead.testing import running
from tests.waiting import until

pytestmark = pytest.mark.stores

MANY = 600
WALKED = 50


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a table of hundreds of tasks be as big as one of hundreds of thousands."""
    for name, value in {
        "MOST_SAMPLED": 20,
        "_PAGES": 20,
        "_FIRST_WINDOW": 20,
        "_LATER_WINDOW": 100,
    }.items():
        monkeypatch.setattr(task_reads, name, value)
    monkeypatch.setattr(task_reads.TaskReads.page, "__defaults__", (WALKED, 1_000_000))
    yield


async def test_running_tasks_of_a_big_table_are_counted_and_listed(app: App) -> None:
    gate = asyncio.Event()

    @app.task(queue="work")
    async def hang() -> None:
        await gate.wait()

    @app.task(queue="later")
    async def later(text: str) -> None: ...

    hung = hang.options(fairness_key="globex/eu").submit_many([{}] * 6)
    async with running(app, queues=["work"]) as node:
        await until(lambda: len(node.parts.context.in_flight) == 6)
        later.submit_many([{"text": "x" * 2000}] * MANY)

        def noted() -> int:
            return len(app.store.database.read_now(app.operate_context.reads.running(10)))

        async with asyncio.timeout(60):
            while await asyncio.to_thread(noted) < 6:
                await asyncio.sleep(0.1)
        facts = await asyncio.to_thread(read_facts, app.operate_context)
        assert facts.is_sample
        found = await asyncio.to_thread(summary, app.operate_context, facts=facts)
        assert found.totals.processing == 6
        [work] = [each for each in found.queues if each.queue == "work"]
        assert (work.processing.number, work.processing.is_exact) == (6, True)
        globex = await asyncio.to_thread(tenant, app.operate_context, "globex", facts=facts)
        assert globex.processing.number == 6
        for newest in (True, False):
            page = await asyncio.to_thread(
                app.management.page, state="PROCESSING", newest_first=newest
            )
            ids = sorted((each.id for each in hung), reverse=newest)
            assert [task.id for task in page.tasks] == ids
            assert (page.next, page.is_cut) == (None, False)
        none = await asyncio.to_thread(app.management.page, state="PROCESSING", tenant="acme")
        assert (none.tasks, none.next, none.is_cut) == ([], None, False)
        gate.set()


async def test_a_page_of_a_big_table_begins_with_a_hit_or_says_none(app: App) -> None:
    @app.task(queue="work")
    async def rare() -> None: ...

    @app.task(queue="work")
    async def usual() -> None: ...

    when = datetime.now(UTC) + timedelta(days=1)
    first = rare.options(fairness_key="globex", run_at=when).submit()
    usual.options(fairness_key="acme").submit_many([{}] * MANY)
    for filters in ({"state": "WAITING"}, {"name": rare.name}, {"tenant": "globex"}):
        page = await asyncio.to_thread(app.management.page, **filters)
        assert [task.id for task in page.tasks] == [first.id]
    for filters in ({"state": "PROCESSING"}, {"name": "none"}, {"tenant": "initech"}):
        page = await asyncio.to_thread(app.management.page, **filters)
        assert (page.tasks, page.next, page.is_cut) == ([], None, False)


async def test_a_few_hits_of_a_sample_give_no_number(app: App) -> None:
    @app.task(queue="work")
    async def usual(text: str) -> None: ...

    usual.options(fairness_key="globex").submit(text="")
    usual.options(fairness_key="acme").submit_many([{"text": "x" * 2000}] * MANY)
    facts = await asyncio.to_thread(read_facts, app.operate_context)
    found = {
        name: await asyncio.to_thread(tenant, app.operate_context, name, facts=facts)
        for name in ("globex", "acme")
    }
    assert found["globex"].backlog.is_rough and not found["acme"].backlog.is_rough
