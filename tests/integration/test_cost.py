"""Queues with `cost="runtime"` on a real node: shares, retries, stored triggers, the next owner, and
refused options."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fairlead import App, Fixed
from fairlead.clock import MICROS, SystemClock
from fairlead.errors import ConfigurationError
from fairlead.model import ClaimedTask, Trigger
from fairlead.testing import drain, running
from tests.waiting import until

pytestmark = [pytest.mark.ordered, pytest.mark.virtual_time]


class StatedClock(SystemClock):
    """The clock of the machine, plus the run times that the tasks of a test state.

    The speed of the machine hardly counts then. The tasks of one test state a few seconds in all: a
    clock that jumps further makes a node look dead.
    """

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> int:
        return super().now() + round(self.passed * MICROS)


@pytest.fixture
def clock() -> StatedClock:
    return StatedClock()


@pytest.fixture
def timed(sqlite_url: str, clock: StatedClock) -> Iterator[App]:
    app = App(sqlite_url, clock=clock)
    app.migrate()
    yield app
    app.close()


async def test_under_cost_runtime_keys_that_wait_together_get_the_same_run_time(
    timed: App, clock: StatedClock
) -> None:
    timed.queue("q", partitions=1, cost="runtime")
    ran: Counter[str] = Counter()
    at_half: Counter[str] = Counter()

    @timed.task(queue="q")
    async def work(key: str, seconds: float) -> None:
        clock.passed += seconds
        ran[key] += 1
        if ran["slow"] == 20 and not at_half:
            at_half.update(ran)

    timed.submit_many(
        [
            work.options(fairness_key=key).draft(key=key, seconds=seconds)
            for key, tasks, seconds in (("slow", 40, 0.02), ("quick", 400, 0.002))
            for _ in range(tasks)
        ]
    )
    await drain(timed, concurrency=1)
    assert ran == {"slow": 40, "quick": 400}
    assert 120 <= at_half["quick"] <= 240  # 20 if each task cost the same


async def test_failed_runs_count_towards_the_run_time_of_a_key(
    timed: App, clock: StatedClock
) -> None:
    timed.queue("q", partitions=1, cost="runtime")
    ran: Counter[str] = Counter()
    seen: list[Counter[str]] = []

    @timed.task(queue="q", retry=Fixed(0, max_attempts=3))
    async def work(key: str) -> None:
        clock.passed += 0.005
        ran[key] += 1
        if ran["sound"] == 60:
            seen.append(Counter(ran))
        if key == "broken":
            raise ValueError("as ever")

    for key in ("broken", "sound"):
        work.options(fairness_key=key).submit_many([{"key": key}] * 60)
    await drain(timed, concurrency=1)
    assert ran["broken"] == 180 and seen[0]["broken"] <= 75


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"cost": "time"}, "cost 'time' is unknown; use 'tasks' or 'runtime'"),
        ({"cost": "runtime", "order": "fifo"}, "leave order='fifo' out, or cost= out"),
        ({"cost": "runtime", "kind": "ordered"}, "leave kind='ordered' out, or cost= out"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    sqlite_url: str, settings: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"queue 'q': ") as refused:
        App(sqlite_url).queue("q", **settings)  # type: ignore[arg-type]
    assert expected in str(refused.value)


async def test_a_key_is_charged_for_no_task_whose_claim_the_store_refuses(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.queue("q", partitions=1, cost="runtime")
    ran: list[str] = []

    @app.task(queue="q")
    async def work(key: str) -> None:
        ran.append(key)
        await asyncio.sleep(0.1)

    async with running(app, concurrency=1) as node:
        store = node.parts.context.claims
        claim, refused = store.claim, set[str]()

        async def refuse(node: str, triggers: Sequence[Trigger], *more: Any) -> list[ClaimedTask]:
            if any(each.id in refused for each in triggers):
                raise ValueError("refused alone")
            return await claim(node, triggers, *more)

        monkeypatch.setattr(store, "claim", refuse)
        refused.add((await work.options(fairness_key="a").submit_async(key="never")).id)
        await work.options(fairness_key="b").submit_async(key="b")
        for key in ("a", "b"):
            keyed = work.options(fairness_key=key)
            await app.submit_many_async([keyed.draft(key=key) for _ in range(300)])
        await until(lambda: len(ran) >= 500)
        refused.clear()
    ahead = [abs(2 * ran[:n].count("a") - n) for n in range(500)]
    assert max(ahead) <= 5
