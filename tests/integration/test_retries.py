"""Retries: tries, delays, snoozes, and policies that raise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import fairlead
from fairlead import (
    App,
    Exponential,
    Fixed,
    NoRetry,
    Retry,
    Snooze,
    State,
)
from fairlead.testing import drain, running, settled
from tests.attempts import outcomes

pytestmark = pytest.mark.virtual_time


async def test_a_task_that_fails_all_its_five_tries_goes_to_error(app: App) -> None:
    tries: list[int] = []
    fences: list[int] = []

    @app.task(retry=Exponential(max_attempts=5, first=0.01, jitter=0))
    async def pay() -> None:
        task = fairlead.current_task()
        assert task is not None
        tries.append(task.tries)
        fences.append(task.fence)
        raise ConnectionError("the partner is down")

    handle = pay.submit()
    await drain(app)
    assert tries == [1, 2, 3, 4, 5]
    assert fences == sorted(set(fences)), "each run has a greater fencing token"
    assert outcomes(app, handle) == ["retried"] * 4 + ["failed"]
    assert handle.state() == State.ERROR
    assert "the partner is down" in (handle.record().error_text or "")


async def test_a_handler_can_ask_for_a_retry_with_new_tries_and_a_delay(app: App) -> None:
    tries: list[int] = []

    @app.task(retry=Fixed(0, max_attempts=2))
    async def pay() -> None:
        task = fairlead.current_task()
        assert task is not None
        tries.append(task.tries)
        if len(tries) < 4:
            raise Retry(after=0, reset_tries=True)

    handle = pay.submit()
    await drain(app)
    assert len(tries) == 4
    assert outcomes(app, handle) == ["retried"] * 3 + ["done"]


async def test_a_snoozed_run_spends_no_try(app: App) -> None:
    seen: list[tuple[int, int]] = []

    @app.task(retry=NoRetry())
    async def later() -> None:
        task = fairlead.current_task()
        assert task is not None
        seen.append((task.attempt, task.tries))
        if len(seen) < 3:
            raise Snooze(datetime.now(UTC) + timedelta(milliseconds=20))

    handle = later.submit()
    await drain(app)
    assert seen == [(1, 1), (2, 1), (3, 1)]
    assert outcomes(app, handle) == ["snoozed", "snoozed", "done"]


async def test_a_policy_that_raises_fails_its_own_tasks_only(app: App) -> None:
    class Broken:
        def column(self, trigger):
            return None

        def acquire(self, trigger, now):
            raise ZeroDivisionError("a bug in the policy")

        def release(self, trigger, now):
            return ()

        cancel = release

    class BrokenRetry:
        def delay(self, tries, error):
            raise ZeroDivisionError("a bug in the retry policy")

    ran: list[int] = []

    @app.task(concurrency=Broken(), retry=NoRetry())
    async def never() -> None:
        ran.append(-1)

    @app.task(retry=BrokenRetry())
    async def fails() -> None:
        raise ValueError("its own error")

    @app.task
    async def works(n: int) -> None:
        ran.append(n)

    broken, retried = never.submit(), fails.submit()
    works.submit_many([{"n": n} for n in range(20)])
    async with running(app, concurrency=4) as node:
        await settled(app, node)
        assert node.parts.context.ledger.room == 4  # every slot is free again
    assert sorted(ran) == list(range(20))
    assert broken.state() == retried.state() == State.ERROR
    assert "ZeroDivisionError" in (broken.record().error_type or "")
