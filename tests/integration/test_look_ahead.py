"""The look-ahead of a node: how many triggers it holds in memory, and which ones."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App, State
from fairlead.core.look_ahead import TRIGGER_BYTES
from fairlead.core.sharding.shares import PartitionShares
from fairlead.model import DEFAULT_PRIORITY, LaneKey
from fairlead.testing import running, settled

pytestmark = pytest.mark.virtual_time

SOON = 20.0


@pytest.mark.parametrize("order", ["fair", "fifo"])
async def test_tasks_that_no_node_knows_delay_no_others_and_cause_no_more_sweeps(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """A node without the handler grants many tasks one after another."""

    async def note(n: int) -> None: ...

    apps = [App(sqlite_url) for _ in range(3)]
    for app in apps:
        app.queue("mail", order=order, partitions=1)
    owner, helper, submitter = apps
    owner.task(note, name="old", queue="mail")
    helper.task(note, name="new", queue="mail")
    new, removed = (submitter.task(note, name=name, queue="mail") for name in ("new", "removed"))
    owner.migrate()
    monkeypatch.setattr(PartitionShares, "beyond", lambda *_: [])  # the first owner stays
    async with running(owner, look_ahead=100) as node, running(helper):
        await asyncio.sleep(SOON)
        assert node.parts.ownership.owned
        removed.submit_many([{"n": n} for n in range(10)])
        await asyncio.sleep(SOON)
        sweeps = []
        redeliver = owner.channel.redeliver
        monkeypatch.setattr(owner.channel, "redeliver", lambda: (sweeps.append(1), redeliver()))
        for n in range(50):
            handle = new.submit(n=n)
            async with asyncio.timeout(SOON / 100):
                while handle.state() != State.DONE:
                    await asyncio.sleep(0.01)
    assert not sweeps
    for app in apps:
        app.close()


class DeepQueues:
    """Queues of 400 tasks each that stand still until `gate`."""

    def __init__(self, url: str, order: str, queues: int = 8, partitions: int = 1) -> None:
        self.app = App(url)
        self.app.migrate()
        self.gate = asyncio.Event()
        self.ran: dict[str, list[int]] = {}
        self.tasks = []
        for number in range(queues):
            name = f"queue-{number}"
            self.ran[name] = []
            self.app.queue(name, order=order, partitions=partitions)
            self.tasks.append(self.app.task(self._handler(name), name=name, queue=name))

    def _handler(self, queue: str):
        async def work(n: int) -> None:
            await self.gate.wait()
            self.ran[queue].append(n)

        return work

    def submit(self) -> None:
        """Submit 400 tasks to each queue."""
        for task in self.tasks:
            task.submit_many([{"n": n} for n in range(400)])

    async def until(self, is_so) -> None:
        """Wait until `is_so()`."""
        async with asyncio.timeout(SOON):
            while not is_so():
                await asyncio.sleep(0.05)


BUDGET = 900_000
"""Bytes of 1,000 triggers, in tests with 3,200 tasks in 8 queues."""


@pytest.mark.parametrize("order", ["fair", "fifo"])
async def test_the_memory_of_a_node_does_not_grow_with_the_number_of_deep_queues(
    sqlite_url: str, order: str
) -> None:
    deep = DeepQueues(sqlite_url, order)
    async with running(deep.app, concurrency=10, look_ahead_bytes=BUDGET) as node:
        deep.submit()
        table = node.parts.context.table
        await deep.until(lambda: node.in_flight == 10 and len(table) > 500)
        sizes = []
        for _ in range(50):
            sizes.append(len(table))
            await asyncio.sleep(0.1)
        deep.gate.set()
        await settled(deep.app, node)
    assert 500 < max(sizes[20:]) <= 1000
    assert {queue: sorted(ran) for queue, ran in deep.ran.items()} == {
        queue: list(range(400)) for queue in deep.ran
    }


@pytest.mark.parametrize("order", ["fair", "fifo"])
async def test_an_idle_queue_gives_memory_back_to_the_store_and_loses_no_task(
    sqlite_url: str, order: str
) -> None:
    """The first queue is alone at first, and holds all of its tasks in memory."""
    deep = DeepQueues(sqlite_url, order)
    first, *others = deep.tasks
    async with running(deep.app, concurrency=10, look_ahead_bytes=BUDGET) as node:
        context = node.parts.context
        first.submit_many([{"n": n} for n in range(400)])
        lane = LaneKey("queue-0", 0, DEFAULT_PRIORITY)
        await deep.until(lambda: len(context.table) > 50)
        for _ in range(30):  # as if it had run many tasks
            context.look_ahead.want(lane, 400, 10_000)
        context.channel.room_freed()
        await deep.until(lambda: len(context.table) >= 200)
        for task in others:
            task.submit_many([{"n": n} for n in range(400)])

        def of_first() -> int:
            return sum(
                trigger.queue == "queue-0"
                for column in context.table._board.columns.values()
                for trigger in column.triggers()
            )

        await deep.until(lambda: of_first() <= 125)
        assert len(node.parts.intake._known) <= 1200  # the dropped ones are not known any more
        deep.gate.set()
        await settled(deep.app, node)
        # A queue leaves the budget once the store has shown that it has no more tasks.
        await deep.until(lambda: not context.look_ahead.budget.granted)
        assert not context.look_ahead.inboxes
    assert {queue: sorted(ran) for queue, ran in deep.ran.items()} == {
        queue: list(range(400)) for queue in deep.ran
    }
    assert deep.ran["queue-1"] == list(range(400))  # in order, also beyond memory


@pytest.mark.parametrize("key", ["", "acme", "acme/user"])
async def test_a_long_lane_with_memory_for_one_trigger_runs_its_tasks(
    sqlite_url: str, key: str
) -> None:
    app = App(sqlite_url)
    app.migrate()
    app.queue("mail", partitions=1)
    ran: list[int] = []

    @app.task(queue="mail")
    async def send(n: int) -> None:
        ran.append(n)

    send.options(fairness_key=key).submit_many([{"n": n} for n in range(50)])
    async with running(app, look_ahead_bytes=TRIGGER_BYTES, concurrency=1) as node:
        await settled(app, node, timeout=SOON)
    app.close()
    assert ran == list(range(50))
