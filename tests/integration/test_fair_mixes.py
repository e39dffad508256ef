"""Random mixes of what fair queues offer: tenants, weights that change, limits, ordering keys,
priorities, retries, late tasks, cancelled tasks, very small memory, a change of owner and nodes that
lend to each other. Every task runs once, and those of an ordering key run in their order. After the
last one, the nodes keep nothing in memory but ranks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead import App, Delays, Limit, LimitTree, RateLimit
from fairlead.core.fair.flows import TenantFlow
from fairlead.errors import NotAllowed, StaleVersion, UnknownQueue, UnknownTask
from fairlead.testing import running
from tests import tiers
from tests.tiers import seeds

pytestmark = [pytest.mark.ordered, pytest.mark.virtual_time]

SOON = 900.0
WAVES = 4


def runs_of(node: Any) -> list[Any]:
    """Return the runs whose time the lanes of a node still count."""
    return [*node.parts.context.table._board.runs]


def check_empty(node: Any) -> None:
    """Check that a node whose tasks have all ended keeps nothing of them."""
    parts, table = node.parts, node.parts.context.table
    for lane in parts.intake.lanes._lanes.values():
        assert not lane.core.size and not lane.core._held.keys and not lane.core.has_unread
    if parts.intake.backlogs is not None:
        for partition in parts.intake.backlogs._partitions.values():
            for lane in partition._lanes.values():
                assert not len(lane.backlog) and not lane.arriving
    assert not len(table) and table.take(1, parts.context.clock.monotonic()) == ([], [])
    assert not table._board.columns and not table._board.strands
    for flow in [flow for lane in table._board.lanes.values() for flow in lane.flows.values()]:
        assert flow.is_idle
        assert not isinstance(flow, TenantFlow) or all(m.is_idle for m in flow.members.values())
    assert not parts.granting._open and not parts.granting._running


class Mix:
    """One queue, what runs in it, and what happens to it."""

    def __init__(self, url: str, seed: int, cost: str) -> None:
        self.chance = chance = random.Random(f"fair mix {seed}")
        self._url, self._cost = url, cost
        self.keys = [f"key {n}" for n in range(chance.randint(1, 6))]
        self.keys += [
            f"t{chance.randrange(3)}/{chance.choice(['', 'eu/', 'us/'])}user {n}"
            for n in range(chance.choice([3, 30, 200]))
        ]
        self.keys += ["t0", "t1", "", "t0/", "t1//x", "/", "//"][: chance.randrange(8)]
        self.partitions = chance.choice([1, 1, 2])
        tree = LimitTree(chance.randint(2, 9), names={"one": 2}, fairness_keys={self.keys[-1]: 1})
        queue_limits = [None, None, Limit(3), Limit(2, per="fairness_key"), tree]
        self._queue_limit = chance.choice(queue_limits)
        limits = [None, None, Limit(2), RateLimit(40, per=1.0), Limit(1, per="fairness_key")]
        self._limits = {name: chance.choice(limits) for name in ("one", "two", "three")}
        self._fails = chance.choice([0.0, 0.1, 0.6])
        self.settings: dict[str, Any] = {
            "concurrency": chance.choice([1, 7, 40]),
            "look_ahead": chance.choice([1, 5, 20, 200]),
            "look_ahead_bytes": chance.choice([1, 20_000, 1 << 28]),
        }
        self.submitted = 0
        self._numbers: dict[str, int] = {}
        """Number of each task by id."""
        self.priorities = chance.choice([[5], [5, 5, 5, 2]])
        self.order_of: dict[int, str] = {}
        """Ordering key by number of the task."""
        self.failed: Counter[int] = Counter()
        self.ran: list[int] = []
        self.cancelled: set[int] = set()
        self.app = self.make()
        self.app.migrate()

    def make(self) -> App:
        """Return an application of one process."""
        app = App(self._url)
        app.queue(
            "q",
            partitions=self.partitions,
            cost=self._cost,
            concurrency=deepcopy(self._queue_limit),
        )
        self.tasks = []
        for name, limit in self._limits.items():

            @app.task(queue="q", name=name, concurrency=deepcopy(limit), retry=Delays([0.3] * 9))
            async def note(number: int, seconds: float) -> None:
                if self.chance.random() < self._fails and self.failed[number] < 3:
                    self.failed[number] += 1
                    raise RuntimeError("as drawn")
                await asyncio.sleep(seconds)
                self.ran.append(number)

            self.tasks.append(note)
        return app

    def submit(self, count: int) -> None:
        """Submit tasks of random keys; some belong to floods, and some are late."""
        chance, drafts = self.chance, []
        flood = chance.choice(self.keys)
        for _ in range(count):
            number = self.submitted = self.submitted + 1
            key = flood if chance.random() < 0.4 else chance.choice(self.keys)
            options: dict[str, Any] = {
                "fairness_key": key,
                "weight": chance.choice([1.0, 1.0, 3.0, 0.2]),
                "priority": chance.choice(self.priorities),
            }
            if chance.random() < 0.15:
                options["ordering_key"] = self.order_of[number] = f"order {chance.randrange(6)}"
            elif chance.random() < 0.2:
                later = timedelta(seconds=chance.choice([-100.0, 0.5, 3.0]))
                options["run_at"] = datetime.now(UTC) + later
            task = chance.choice(self.tasks)
            seconds = chance.choice([0.0, 0.01, 0.05])
            drafts.append(task.options(**options).draft(number=number, seconds=seconds))
        handles = self.app.submit_many(drafts)
        first = self.submitted - count + 1
        self._numbers |= {each.id: first + n for n, each in enumerate(handles)}

    def change(self) -> None:
        """Change weights and priorities of waiting tasks, and cancel some."""
        chance, management = self.chance, self.app.management
        for _ in range(chance.randrange(8)):
            key = chance.choice(self.keys)
            name = chance.choice([key, key.partition("/")[0] or key])
            with suppress(UnknownQueue):  # a weight that is not set cannot be removed
                management.set_weight("q", name, chance.choice([None, 0.01, 2.0, 1000.0]))
        for record in management.find(queue="q", limit=60):
            with suppress(NotAllowed, StaleVersion, UnknownTask):
                if chance.random() < 0.3:
                    management.change(record.id, priority=chance.choice([1, 5, 8]))
                elif chance.random() < 0.2:
                    management.change(record.id, fairness_key=chance.choice(self.keys))
                elif chance.random() < 0.2:
                    self.cancelled.add(self._numbers[record.id])
                    management.cancel(record.id)

    async def run(self) -> None:
        """Run all tasks on one or two nodes, of which one may take over from the other."""
        stay = self.chance.random() < 0.5
        chance = self.chance
        self.submit(chance.choice([5, 300, 900]))
        last_node = None
        async with AsyncExitStack() as last:
            async with running(self.app, **self.settings) as node:
                for wave in range(WAVES):
                    await asyncio.sleep(chance.choice([0.0, 0.1, 1.5]))
                    await asyncio.to_thread(self.submit, chance.choice([1, 40, 250]))
                    await asyncio.to_thread(self.change)
                    if wave == 1 and chance.random() < 0.5:
                        last_app = self.make()
                        last.callback(last_app.close)
                        last_node = await last.enter_async_context(
                            running(last_app, **self.settings)
                        )
                if last_node is None or stay:
                    await self._settled(node)
            await self._settled(last_node or node)
        self.check()

    async def _settled(self, node: Any) -> None:
        """Wait until all tasks have ended; check that they left nothing in the memory of a node."""
        await self._ended()
        async with asyncio.timeout(SOON):
            while runs_of(node):  # their ends are in the store
                await asyncio.sleep(0.01)
        check_empty(node)

    async def _ended(self) -> None:
        """Wait until no task waits or runs, also of those that are late."""
        async with asyncio.timeout(SOON):
            while self.app.management.find(queue="q", limit=1):
                await asyncio.sleep(0.5)

    def check(self) -> None:
        """Check that every task ran once, and in order."""
        runs = Counter(self.ran)
        assert max(runs.values()) == 1
        lost = {n for n in range(1, self.submitted + 1) if n not in runs} - self.cancelled
        assert not lost
        orders: defaultdict[str, list[int]] = defaultdict(list)
        for number in self.ran:
            if number in self.order_of:
                orders[self.order_of[number]].append(number)
        for key, numbers in orders.items():
            assert numbers == sorted(numbers), key


@pytest.mark.parametrize(("cost", "by_key"), [("tasks", True), ("tasks", False), ("runtime", True)])
@pytest.mark.parametrize("number", seeds(1))
async def test_every_task_runs_once_and_in_order_whatever_is_mixed(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, number: int, cost: str, by_key: bool
) -> None:
    """`by_key`: whether triggers beyond memory stay in their rows; else they are stored."""
    if not by_key:
        monkeypatch.setenv("FAIRLEAD_BACKLOG", "database")
    mix = Mix(sqlite_url, tiers.seed() + number, cost)
    await mix.run()
    mix.app.close()
