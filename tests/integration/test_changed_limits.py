"""Limits that change while tasks wait: a lower one holds at once for what starts, a greater one or
none is used at once, and nothing stalls. A limit of a fairness key is set while the nodes run; all
other limits change with the application, when its nodes are replaced one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fairlead import App, ClusterLimit, ClusterRateLimit, Limit, LimitTree, RateLimit
from fairlead.engine.liveness.watchdog import Watchdog
from fairlead.testing import running
from tests.tiers import NIGHTLY

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("without_watchdog")]

SETTLE_SECONDS = 20.0
"""Virtual seconds after which the nodes have divided the partitions among themselves."""

IN_FORCE = 3.0
"""Seconds within which a changed limit is in force on all nodes."""


@pytest.fixture
def without_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no watchdog, which lives in the time of the system, kill this process."""
    monkeypatch.setattr(Watchdog, "set_deadline", lambda *_: None)


class Nodes:
    """Nodes of one store that run tasks of one second, and what runs on each."""

    def __init__(self, url: str, channel: str | None = None) -> None:
        self._url, self._channel = url, channel
        self.running: Counter[tuple[int, str]] = Counter()
        """Running tasks by number of the node and fairness key."""
        self.starts: list[tuple[float, int, str]] = []
        """(seconds of the loop, number of the node, fairness key) of each start."""

    def app(self, number: int, limit: Any = None, **queue: Any) -> App:
        app = App(self._url, channel=self._channel) if self._channel else App(self._url)
        app.queue("q", partitions=1, **queue)

        @app.task(queue="q", name="work", concurrency=limit)
        async def work(key: str) -> None:
            self.starts.append((asyncio.get_running_loop().time(), number, key))
            self.running[number, key] += 1
            try:
                await asyncio.sleep(1.0)
            finally:
                self.running[number, key] -= 1

        self.work = work
        return app

    def submit(self, app: App, **counts: int) -> None:
        """Submit tasks of these fairness keys."""
        app.submit_many(
            [
                self.work.options(fairness_key=key).draft(key=key)
                for key, count in counts.items()
                for _ in range(count)
            ]
        )

    async def most(self, seconds: float) -> list[int]:
        """Return how many tasks run on each node at most, within some seconds."""
        most, end = Counter[int](), asyncio.get_running_loop().time() + seconds
        while await passed(0.1) < end:
            for number, _ in self.running:
                count = sum(n for (of, _), n in self.running.items() if of == number)
                most[number] = max(most[number], count)
        return [most[number] for number in (0, 1)]

    def most_in(self, seconds: float, since: float) -> int:
        """Return the greatest number of starts within some seconds."""
        at = [t for t, *_ in self.starts if t >= since]
        return max(sum(t <= each < t + seconds for each in at) for t in at)


async def passed(seconds: float) -> float:
    """Let time pass; return the seconds of the loop."""
    await asyncio.sleep(seconds)
    return asyncio.get_running_loop().time()


POLICIES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "limit": lambda: Limit(6),
    "keys": lambda: Limit(5, per="fairness_key"),
    "tree": lambda: LimitTree(6, per_fairness_key=5),
    "rate": lambda: RateLimit(8, per=1.0, key="fairness_key"),
    "cluster": lambda: ClusterLimit(11),
    "cluster tree": lambda: LimitTree(ClusterLimit(11), per_fairness_key=ClusterLimit(10)),
}


@pytest.mark.parametrize(
    "queue",
    [
        {},
        pytest.param({"cost": "runtime"}, marks=NIGHTLY),  # the matrix
        pytest.param({"order": "fifo"}, marks=NIGHTLY),  # the matrix
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_limit_of_a_key_that_is_set_lowered_raised_and_removed_holds_at_once(
    sqlite_url: str, policy: str, queue: dict[str, Any]
) -> None:
    """The limits of the code apply too, and let five tasks of a key or more run at once."""
    nodes = Nodes(sqlite_url)
    apps = [nodes.app(number, POLICIES[policy](), **queue) for number in (0, 1)]
    apps[0].migrate()
    management = apps[0].management
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(running(app, concurrency=6))
        await passed(SETTLE_SECONDS)
        nodes.submit(apps[0], a=400)
        await passed(1.0)
        free = sum(await nodes.most(4.0))
        assert free >= 5
        for limit in (2, 1, 4, 1, 3, None, 1):
            management.set_limit("q", "a", limit)
            since = await passed(IN_FORCE)
            most = await nodes.most(4.0)
            if limit is None:
                assert sum(most) >= free
                continue
            assert max(most) <= limit
            # Both nodes use all that the limit lets them.
            started = sum(t >= since for t, *_ in nodes.starts)
            assert started >= min(2 * limit * 4, 3 * free) * 0.7, (limit, started, most)
        management.set_limit("q", "a", None)
        async with asyncio.timeout(400.0):
            while management.find(queue="q", limit=1):
                await passed(1.0)
    assert len(nodes.starts) == 400
    for app in apps:
        app.close()


CHANGES: dict[str, tuple[Callable[[int], Any], bool]] = {
    "limit": (Limit, False),
    "tree": (LimitTree, False),
    "rate": (lambda n: RateLimit(n, per=1.0), False),
    "rate of keys": (lambda n: RateLimit(n, per=1.0, key="fairness_key", burst=n), False),
    "cluster": (ClusterLimit, True),
    "cluster tree": (lambda n: LimitTree(ClusterLimit(n)), True),
    "cluster rate": (lambda n: ClusterRateLimit(n, per=1.0), True),
}
"""The limit of n tasks that start within a second, or run for a second, and whether it holds over
the cluster."""


@pytest.mark.parametrize("numbers", [(9, 2), (2, 9)], ids=["lowered", "raised"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_limit_of_the_code_is_in_force_when_the_nodes_have_been_replaced(
    sqlite_url: str, change: str, numbers: tuple[int, int]
) -> None:
    make, is_cluster_wide = CHANGES[change]
    nodes = Nodes(sqlite_url)
    old, new = ([nodes.app(k, make(n)) for k in (0, 1)] for n in numbers)
    old[0].migrate()
    async with AsyncExitStack() as stack:
        first = [await stack.enter_async_context(AsyncExitStack()) for _ in old]
        for each, app in zip(first, old, strict=True):
            await each.enter_async_context(running(app, concurrency=20))
        await passed(SETTLE_SECONDS)
        total = 1000
        nodes.submit(old[0], a=total)
        await passed(2.0)
        for each, app in zip(first, new, strict=True):
            await each.aclose()
            await stack.enter_async_context(running(app, concurrency=20))
        since = await passed(SETTLE_SECONDS)
        count = numbers[1] if is_cluster_wide else 2 * numbers[1]
        # On a slow machine much virtual time may pass until the nodes are replaced.
        nodes.submit(new[0], a=total)
        left = 2 * total - len(nodes.starts)
        assert left > 20 * count
        most = sum(await nodes.most(20.0))
        ran = left - (2 * total - len(nodes.starts))
        assert ran >= 20 * count * 0.8
        if "rate" in change:
            assert nodes.most_in(0.999, since) <= 2 * count  # with the burst
        else:
            assert most == count
    for app in (*old, *new):
        app.close()
