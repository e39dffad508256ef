"""Ordering keys on fair and fifo queues: tasks of a key run one at a time, by (run_at, submission),
and a failing first task holds back its own key only."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from fairlead import App, Delays, NoRetry, State
from fairlead.operate.doctor import explanation
from fairlead.testing import drain, running, settled
from tests.waiting import until

pytestmark = [pytest.mark.ordered, pytest.mark.virtual_time]

SOON = 20.0


@pytest.fixture(params=["fair", "fifo"])
def order(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_tasks_of_a_key_run_one_at_a_time_in_order(app: App, order: str) -> None:
    app.queue("q", order=order)
    ran: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    at_once: dict[str, int] = dict.fromkeys(ran, 0)

    @app.task(queue="q")
    async def step(key: str, n: int) -> None:
        at_once[key] += 1
        assert at_once[key] == 1
        await asyncio.sleep(0)
        ran[key].append(n)
        at_once[key] -= 1

    for n in range(40):
        for key in ran:
            step.options(ordering_key=key, fairness_key=f"tenant {n % 3}").submit(key=key, n=n)
    await drain(app)
    assert ran == dict.fromkeys(ran, list(range(40)))


async def test_tasks_of_a_key_run_by_run_at_then_by_submission_whatever_their_priority(
    app: App, order: str
) -> None:
    app.queue("q", order=order)
    ran: list[str] = []

    @app.task(queue="q")
    async def step(name: str) -> None:
        ran.append(name)

    now = datetime.now(UTC)
    keyed = step.options(ordering_key="a")
    keyed.options(priority=0, run_at=now - timedelta(seconds=1)).submit(name="third")
    keyed.options(priority=9, run_at=now - timedelta(seconds=3)).submit(name="first")
    keyed.options(priority=5, run_at=now - timedelta(seconds=2)).submit(name="second")
    await drain(app)
    assert ran == ["first", "second", "third"]


async def test_the_first_task_of_a_key_keeps_its_position_while_it_is_retried_and_holds_back_only_its_key(
    app: App, order: str
) -> None:
    app.queue("q", order=order, partitions=1)
    ran: list[str] = []

    @app.task(queue="q", retry=Delays([0.3, 0.3]))
    async def step(key: str, n: int) -> None:
        ran.append(f"{key}{n}")
        if key == "bad" and n == 0 and ran.count("bad0") < 3:
            raise ConnectionError("not yet")

    for n in range(3):
        for key in ("bad", "good"):
            step.options(ordering_key=key).submit(key=key, n=n)
    await drain(app)
    assert [name for name in ran if name.startswith("bad")] == [
        "bad0",
        "bad0",
        "bad0",
        "bad1",
        "bad2",
    ]
    assert ran.index("good2") < ran.index("bad1")


@pytest.mark.parametrize("on_failure", ["hold", "skip"])
async def test_the_first_task_of_a_key_in_error_holds_its_key_or_is_skipped(
    app: App, order: str, on_failure: str
) -> None:
    app.queue("q", order=order, partitions=1)
    ran: list[int] = []

    @app.task(queue="q", retry=NoRetry(), on_failure=on_failure)
    async def step(n: int) -> None:
        ran.append(n)
        if n == 0:
            raise ValueError("for good")

    @app.task(queue="q")
    async def other() -> None:
        ran.append(-1)

    handles = [step.options(ordering_key="a").submit(n=n) for n in range(3)]
    async with running(app) as node:
        await until(lambda: handles[0].state() == State.ERROR)
        other.submit()
        await until(lambda: -1 in ran)
        if on_failure == "hold":
            assert [handle.state() for handle in handles[1:]] == [State.SUBMITTED] * 2
            (finding,) = (await explanation(app.operate_context, handles[1].id)).reasons
            assert handles[0].id in finding.what and "ERROR" in finding.what
            app.management.fail(handles[0].id)
        await settled(app, node)
    assert [n for n in ran if n >= 0] == [0, 1, 2]
