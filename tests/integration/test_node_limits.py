"""Limits of one node: waits for a rate, and limits of two nodes of one process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead import (
    App,
    Limit,
    LimitTree,
    RateLimit,
    State,
    Task,
)
from fairlead.testing import running, settled
from tests.attempts import SOON, outcomes
from tests.integration.ordered_kit import open_app

pytestmark = pytest.mark.virtual_time


async def test_a_task_that_waits_for_a_rate_limit_spends_no_attempt_and_delays_no_other_name(
    app: App,
) -> None:
    ran: list[str] = []
    freed = asyncio.Event()

    @app.task(concurrency=RateLimit(1, per=3600))
    async def limited(n: int) -> None:
        ran.append(f"limited {n}")

    @app.task
    async def free() -> None:
        freed.set()

    handles = [limited.submit(n=n) for n in range(5)]
    free.submit()
    async with running(app):
        async with asyncio.timeout(SOON):
            await freed.wait()
            while not ran:
                await asyncio.sleep(0.01)
    assert len(ran) == 1
    assert sorted(handle.state() for handle in handles) == [State.DONE] + [State.SUBMITTED] * 4
    assert sorted(len(outcomes(app, handle)) for handle in handles) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "limit", [Limit(1), LimitTree(1), Limit(1, per="fairness_key")], ids=["limit", "tree", "keys"]
)
async def test_nodes_of_one_process_that_declare_the_same_object_have_a_limit_each(
    sqlite_url: str, limit: Any
) -> None:
    both = asyncio.Event()
    running_now: set[str] = set()

    def declare(app: App, name: str) -> Task[Any]:
        app.queue("payouts", concurrency=limit, partitions=8)

        @app.task(queue="payouts")
        async def pay() -> None:
            running_now.add(name)
            if len(running_now) == 2:
                both.set()
            async with asyncio.timeout(SOON):
                await both.wait()
            running_now.discard(name)

        return pay

    first = open_app(sqlite_url)
    second = open_app(sqlite_url, clock=first.clock)
    pay = declare(first.app, "first")
    declare(second.app, "second")
    handles = [pay.submit() for _ in range(40)]
    async with running(first.app) as one:
        async with running(second.app):
            async with asyncio.timeout(SOON):
                await both.wait()
        await settled(first.app, one)
    assert all(outcomes(first.app, handle) == ["done"] for handle in handles)
