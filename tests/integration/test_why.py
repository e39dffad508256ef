"""A tenant that waits, a limit whose slots hang, and what can be done, are said alike everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead import App, ClusterLimit, Incident, Limit
from fairlead.clock import MICROS
from fairlead.core import usual
from fairlead.operate.doctor import examine
from fairlead.operate.facts import Facts, read_facts
from fairlead.operate.limits import limits_of_queue
from fairlead.operate.summary import summary
from fairlead.operate.tenants import tenant
from fairlead.operate.why import Cause
from fairlead.testing import drain, running
from fairlead.web import Access
from tests.waiting import until
from tests.web.browsing import Browser, with_access

pytestmark = pytest.mark.stores


@pytest.fixture
def shop(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """Return an application in which a run of a second is far longer than usual."""
    monkeypatch.setattr(usual, "LEAST", MICROS)
    app.gate = asyncio.Event()  # type: ignore[attr-defined]

    @app.task(queue="work", name="pack", concurrency=ClusterLimit(2, name="warehouse"))
    async def pack(hangs: bool = False) -> None:
        if hangs:
            await app.gate.wait()  # type: ignore[attr-defined]

    app.pack = pack  # type: ignore[attr-defined]
    return app


@asynccontextmanager
async def with_hung_tasks(app: App) -> AsyncIterator[Facts]:
    """Hold both slots of the limit by tasks of globex, while one of acme waits."""
    app.submit_many([pack_draft(app, "acme") for _ in range(usual.ENOUGH)])
    await drain(app)
    app.submit_many([pack_draft(app, "globex", hangs=True) for _ in range(2)])
    async with running(app) as node:
        await until(lambda: len(node.parts.context.in_flight) == 2)
        app.submit_many([pack_draft(app, "acme")])

        def long() -> Facts | None:
            facts = read_facts(app.operate_context)
            held = [task for task in facts.running if facts.at - task.claimed_at > 2 * MICROS]
            return facts if len(held) == 2 else None

        async with asyncio.timeout(60):
            while (facts := await asyncio.to_thread(long)) is None:
                await asyncio.sleep(0.1)
        yield facts
        app.gate.set()  # type: ignore[attr-defined]


def pack_draft(app: App, key: str, **arguments: Any) -> Any:
    return app.pack.options(fairness_key=key).draft(**arguments)  # type: ignore[attr-defined]


async def why(app: App, name: str, facts: Facts | None = None, **scope: Any) -> list[Cause]:
    found = await asyncio.to_thread(tenant, app.operate_context, name, facts=facts, **scope)
    return found.why


async def test_a_limit_whose_slots_hang_names_their_tasks_and_offers_to_cancel(shop: App) -> None:
    async with with_hung_tasks(shop) as facts:
        context = shop.operate_context
        [line] = (await asyncio.to_thread(summary, context, facts=facts)).attention
        assert line.kind == "limit"
        assert line.what.startswith("limit warehouse: 2 of 2 slots are held: globex's pack ")
        ids = [slot.task for slot in line.held]
        assert all(task_id in line.what for task_id in ids) and "far longer than usual" in line.what
        assert line.since == min(slot.since for slot in line.held)
        [cause] = await why(shop, "acme", facts)
        assert (cause.kind, cause.limit, cause.what) == ("limit", "warehouse", line.what)
        assert cause.cure == f"`fairlead tasks cancel {' '.join(ids)}`" and cause.since is not None
        findings = [(each.what, each.cure) for each in await examine(context, facts=facts)]
        assert (cause.what, cause.cure) in findings
        [limit] = await limits_of_queue(context, "work", facts=facts)
        assert [slot.task for slot in limit.held] == ids
        assert sum(holder.permits for holder in limit.holders) == 2
        # One of another tenant is not named to acme.
        [cause] = await why(shop, "acme", facts, tenants=["acme"])
        assert "globex" not in cause.what and cause.held == []


async def test_the_screens_lead_to_the_hung_task_and_cancel_it(shop: App) -> None:
    async with with_hung_tasks(shop) as facts:
        browser = Browser(with_access(shop, Access.full()))
        task_id = facts.running[0].id
        for address in ("/", "/tenants/tenant?key=acme", "/queues/queue?name=work"):
            page = (await browser.get(address)).text
            assert task_id in page and "warehouse" in page and "/do/cancel_task" in page
        found = (await browser.get("/api/v1/tenant/why?key=acme")).json()
        assert [cause["limit"] for cause in found["tenant"]["why"]] == ["warehouse"]


async def test_each_other_cause_is_said(app: App) -> None:
    gate = asyncio.Event()

    @app.task(queue="work", name="mail")
    async def mail() -> None:
        await gate.wait()

    app.queue("other")

    @app.task(queue="other", name="few", concurrency=Limit(1))
    async def few() -> None:
        await gate.wait()

    mail.options(fairness_key="acme").submit()
    few.options(fairness_key="globex/eu").submit_many([{}] * 2)
    assert [cause.kind for cause in await why(app, "acme")] == ["no_worker"]
    assert await why(app, "unknown") == []
    async with running(app, concurrency=2) as node:
        await until(lambda: len(node.parts.context.in_flight) == 2)
        mail.options(fairness_key="acme").submit()

        def noted() -> int:
            return len(read_facts(app.operate_context).running)

        async with asyncio.timeout(60):
            while await asyncio.to_thread(noted) < 2:
                await asyncio.sleep(0.1)
        [limit] = await why(app, "globex")
        assert limit.kind == "limit" and "1 of 1 slots on each node" in limit.what
        [slots] = await why(app, "acme")
        assert slots.kind == "slots" and "acme 1, globex 1" in slots.what
        app.management.pause("work")
        [paused] = await why(app, "acme")
        assert (paused.kind, paused.cure) == ("paused", "`fairlead queues resume work`")
        gate.set()


async def test_a_run_far_longer_than_usual_is_an_incident_within_a_minute(
    shop: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Incident]()
    shop.on_incident = seen.append
    shop.submit_many([pack_draft(shop, "acme") for _ in range(usual.ENOUGH)])
    async with running(shop) as node:
        await until(lambda: len(node.parts.runs.usual._latest["pack"]) == usual.ENOUGH)
        hung = shop.submit_many([pack_draft(shop, "acme", hangs=True)])[0]
        async with asyncio.timeout(60):
            while not seen:
                await asyncio.sleep(0.1)
        assert [(each.kind, each.subject) for each in seen] == [("stuck", hung.id)]
        shop.gate.set()  # type: ignore[attr-defined]
