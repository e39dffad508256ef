"""The limits of a node, seen by the tasks that wait for them."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App, RateLimit, State
from fairlead.testing import running
from tests.attempts import SOON, outcomes

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
