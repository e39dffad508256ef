"""The owner of a partition grants tasks that it cannot run itself to other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from fairlead import App, Fixed, Limit, LimitTree
from fairlead.core.sharding.shares import PartitionShares
from fairlead.engine.node import Node
from fairlead.model import ClaimedTask, Trigger, TriggerPath
from fairlead.model.peer import Grant, PeerMessage, Result, Want
from fairlead.testing import running, settled
from tests.tiers import seeds
from tests.waiting import until

pytestmark = pytest.mark.virtual_time


SETTLE_SECONDS = 20.0
"""Virtual seconds after which the nodes have divided the partitions among themselves."""


class Fleet:
    """Applications of one store, and the runs of their handlers."""

    def __init__(self, url: str, **queue: Any) -> None:
        self.url = url
        self.queue = {"partitions": 1, **queue}
        self.ran: list[tuple[int, Any]] = []
        """(number of the application, value) in the order of the starts."""
        self.failing: set[Any] = set()
        """Values whose next run fails."""

    def app(self, number: int, names: Sequence[str] = ("work",), **task: Any) -> App:
        """Return a new application of the store, with these tasks."""
        app = App(self.url)
        app.queue("work", **self.queue)

        async def work(value: int, seconds: float = 0.0) -> None:
            self.ran.append((number, value))
            await asyncio.sleep(seconds)
            if value in self.failing:
                self.failing.remove(value)
                raise RuntimeError("as wanted")

        declared = [app.task(work, name=name, queue="work", **task) for name in names]
        self.tasks = dict(zip(names, declared, strict=True))
        return app

    @asynccontextmanager
    async def nodes(
        self, *settings: dict[str, Any], apps: Sequence[dict[str, Any]] = ()
    ) -> AsyncIterator[Sequence[Node]]:
        """Run one node for each of the settings; `apps` are the options of their applications."""
        made = [
            self.app(number, **(apps[number] if apps else {})) for number in range(len(settings))
        ]
        made[0].migrate()
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(running(app, **each))
                for app, each in zip(made, settings, strict=True)
            ]
            await asyncio.sleep(SETTLE_SECONDS)
            yield nodes
        for app in made:
            app.close()

    async def submit(self, seconds: Sequence[float], name: str = "work", **options: Any) -> App:
        """Submit a task for each of these run times."""
        app = self.app(-1, [name])
        task = self.tasks[name].options(**options)
        await app.submit_many_async(
            [task.draft(value=n, seconds=each) for n, each in enumerate(seconds)]
        )
        return app

    @property
    def values(self) -> list[Any]:
        """The values in the order of their starts."""
        return [value for _, value in self.ran]

    @property
    def workers(self) -> set[int]:
        """Numbers of the applications that ran a task."""
        return {number for number, _ in self.ran}


def owner_first(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes, the owner of the partition first."""
    return sorted(nodes, key=lambda node: not node.parts.ownership.owned)


async def test_nodes_of_one_slot_share_jobs_of_mixed_length(sqlite_url: str) -> None:
    fleet = Fleet(sqlite_url)
    loop = asyncio.get_running_loop()
    async with fleet.nodes(*[{"concurrency": 1}] * 4) as nodes:
        began = loop.time()
        app = await fleet.submit([2.0 if n % 4 == 0 else 0.0 for n in range(16)])
        await settled(app, nodes[0])
        took = loop.time() - began
        app.close()
    assert sorted(fleet.values) == [*range(16)]
    assert took <= 2.2


@pytest.mark.parametrize(
    "queue", [{}, {"order": "fifo"}, {"cost": "runtime"}, {"partitions": 3}], ids=str
)
async def test_nodes_share_single_jobs(sqlite_url: str, queue: dict[str, Any]) -> None:
    fleet = Fleet(sqlite_url, **queue)
    loop = asyncio.get_running_loop()
    async with fleet.nodes(*[{"concurrency": 2}] * 4) as nodes:
        began = loop.time()
        app = await fleet.submit([2.0] * 36)
        await settled(app, nodes[0], timeout=60.0)
        took = loop.time() - began
        app.close()
    assert sorted(fleet.values) == [*range(36)]
    assert took <= 11.0  # 36 jobs of 2 s on 8 slots: five rounds
    assert fleet.workers == {0, 1, 2, 3}


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.3])
async def test_a_backlog_of_short_tasks_keeps_all_slots_busy(
    sqlite_url: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(sqlite_url)
    loop = asyncio.get_running_loop()
    async with fleet.nodes(*[{"concurrency": 4}] * 3) as nodes:
        for node in nodes:
            channel = node.parts.context.channel
            late = partial(loop.call_later, 0.003, channel.send)
            monkeypatch.setattr(channel, "send", late)
        began = loop.time()
        app = await fleet.submit([seconds] * 480)
        await settled(app, nodes[0], timeout=60.0)
        took = loop.time() - began
        app.close()
    assert took < 40 * seconds * 1.2 + 0.3  # 12 slots: 40 rounds


async def test_a_busy_node_does_not_keep_announcements_from_an_idle_one(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(sqlite_url)
    async with fleet.nodes(*[{"concurrency": 2}] * 3) as nodes:
        idle = owner_first(nodes)[-1]
        with monkeypatch.context() as patch:
            patch.setattr(idle.parts.helping, "on_spare", lambda spare: None)
            app = await fleet.submit([0.02] * 800)
            await until(lambda: len(fleet.ran) > 20)
        assert nodes.index(idle) not in fleet.workers
        await until(lambda: len(fleet.ran) > 200)
        assert nodes.index(idle) in fleet.workers
        await settled(app, nodes[0], timeout=60.0)
        app.close()


class Lossy:
    """Lose, double and delay the messages between nodes."""

    def __init__(self, node: Node, random: Random) -> None:
        self._send = node.parts.context.channel.send
        self._random = random

    def __call__(self, message: PeerMessage) -> None:
        for _ in range(self._random.choice([0, 1, 1, 1, 2])):
            delay = self._random.choice([0.0, 0.0, 0.1, 1.0, 5.0])
            asyncio.get_running_loop().call_later(delay, self._send, message)


@pytest.mark.parametrize("seed", seeds(2))
async def test_lost_doubled_and_late_messages_lose_no_task_and_run_none_twice(
    sqlite_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    fleet = Fleet(sqlite_url, order=random.choice(["fair", "fifo"]))
    async with fleet.nodes(*[{"concurrency": 2}] * 3) as nodes:
        for node in nodes:
            monkeypatch.setattr(node.parts.context.channel, "send", Lossy(node, random))
        app = await fleet.submit([random.choice([0.0, 0.05, 0.5]) for _ in range(200)])
        await settled(app, nodes[0], timeout=300.0)
        app.close()
    assert sorted(fleet.values) == [*range(200)]


async def test_a_late_grant_of_a_former_owner_does_not_lose_its_task(sqlite_url: str) -> None:
    for order in ("fair", "fifo"):
        fleet = Fleet(sqlite_url, order=order)
        async with fleet.nodes({"concurrency": 1}) as (node,):
            (await fleet.submit([5.0])).close()
            app = await fleet.submit([0.0])
            await asyncio.sleep(1.0)
            (column,) = node.parts.context.table._board.columns.values()
            (trigger,) = column.triggers()
            late = msgspec.structs.replace(trigger, path=TriggerPath.GRANT, level=None)
            grant = Grant(node.settings.name, "former owner", [late])
            node.parts.helping.on_grant(grant)
            await settled(app, node)
            app.close()
        assert fleet.values == [0, 0]


async def test_a_key_is_charged_for_no_run_whose_report_was_lost(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(sqlite_url, cost="runtime")
    async with fleet.nodes(*[{"concurrency": 1}] * 2) as nodes:
        owner, helper = owner_first(nodes)
        channel = helper.parts.context.channel
        send = channel.send

        def lose_ends(message: PeerMessage) -> None:
            send(without_ends(message))

        monkeypatch.setattr(channel, "send", lose_ends)
        app = await fleet.submit([1.0] * 6)
        await settled(app, owner)
        assert owner.parts.granting._running
        await until(lambda: not owner.parts.granting._running)
        app.close()


def without_ends(message: PeerMessage) -> PeerMessage:
    """Return a message without the ends of runs."""
    if not isinstance(message, Want):
        return message
    results = [result for result in message.results if result.kind != "ended"]
    return msgspec.structs.replace(message, results=results)


def charged(owner: Node) -> list[tuple[str, int]]:
    """Return task id and version of the runs whose time the owner counts."""
    runs = owner.parts.context.table._board.runs
    return [(run.trigger.id, run.trigger.version) for run in runs]


async def test_a_key_is_charged_for_no_earlier_run_of_a_retried_task(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(sqlite_url, cost="runtime")
    fleet.failing = {1}
    task = {"retry": Fixed(0.5, max_attempts=2)}
    async with fleet.nodes(*[{"concurrency": 1}] * 2, apps=[task] * 2) as nodes:
        owner, helper = owner_first(nodes)
        channel = helper.parts.context.channel
        send, lost = channel.send, list[PeerMessage]()

        def lose_first_ends(message: PeerMessage) -> None:
            if fleet.values.count(1) == 1:
                kept = without_ends(message)
                lost.extend([message] if kept != message else [])
                message = kept
            send(message)

        monkeypatch.setattr(channel, "send", lose_first_ends)
        (await fleet.submit([60.0])).close()
        await until(lambda: len(fleet.ran) == 1)
        app = await fleet.submit([0.0, 1.0])
        await until(lambda: fleet.values.count(1) == 2)
        await settled(app, owner, timeout=100.0)
        app.close()
        assert lost and fleet.workers == {0, 1}
        await until(lambda: not charged(owner))


async def test_a_grant_that_a_dead_node_did_not_claim_comes_back_at_once(sqlite_url: str) -> None:
    fleet = Fleet(sqlite_url)
    async with fleet.nodes({"concurrency": 1}) as (owner,):
        granting, name = owner.parts.granting, owner.settings.name
        granting.on_nodes_changed([name, "ghost"])
        (await fleet.submit([30.0, 0.0])).close()
        await until(lambda: len(owner.parts.context.table) == 1)
        granting.on_want(Want(name, "ghost", 1, 1, [("work", "work", 1)]))
        await until(lambda: bool(granting._open))
        granting.on_nodes_changed([name])
        assert not granting._open and len(owner.parts.context.table) == 1


@pytest.mark.parametrize("kind", ["claimed", "returned"])
async def test_a_late_result_of_an_earlier_version_ends_no_newer_grant(
    sqlite_url: str, kind: Any
) -> None:
    fleet = Fleet(sqlite_url, cost="runtime")
    async with fleet.nodes({"concurrency": 1}) as (owner,):
        granting, name = owner.parts.granting, owner.settings.name
        granting.on_nodes_changed([name, "ghost"])
        (await fleet.submit([30.0])).close()
        await until(lambda: len(fleet.ran) == 1)
        app = await fleet.submit([0.0])
        await until(lambda: len(owner.parts.context.table) == 1)
        granting.on_want(Want(name, "ghost", 1, 1, [("work", "work", 1)]))
        await until(lambda: bool(granting._open))
        (task_id,) = granting._open
        granting.on_want(Want(name, "ghost", 2, 0, [], [Result(task_id, 7, kind)]))
        assert task_id in granting._open and not granting._running
        granting.on_want(Want(name, "ghost", 3, 0, [], [Result(task_id, 1, kind)]))
        assert task_id not in granting._open
        assert bool(granting._running) == (kind == "claimed")
        await settled(app, owner, timeout=100.0)
        app.close()


async def test_a_key_is_charged_for_no_task_whose_claim_another_node_lost(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(sqlite_url, cost="runtime")
    async with fleet.nodes(*[{"concurrency": 1}] * 2) as nodes:
        owner, helper = owner_first(nodes)
        store, lost = helper.parts.context.claims, list[str]()

        async def lose(node: str, triggers: Sequence[Trigger], *_: Any) -> list[ClaimedTask]:
            lost.extend(each.id for each in triggers)
            return []

        monkeypatch.setattr(store, "claim", lose)
        app = await fleet.submit([3.0, 1.0])
        await until(lambda: bool(lost))
        await asyncio.sleep(0.5)
        assert [id for id, _ in charged(owner) if id in lost] == []
        await settled(app, owner, timeout=100.0)
        app.close()


@pytest.mark.parametrize(
    "limit", [None, Limit(1), LimitTree(total=9, per_fairness_key=1)], ids=["name", "node", "tree"]
)
async def test_a_short_run_elsewhere_does_not_keep_the_next_tasks_from_an_idle_node(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, limit: Any
) -> None:
    """The owner has free slots, and no handler or a full limit; a run that costs less than its
    charge moves the rank of a key back."""
    fleet = Fleet(sqlite_url, cost="runtime", concurrency=limit)
    apps = [fleet.app(0, ["other", *(["work"] if limit else [])]), fleet.app(1)]
    apps[0].migrate()
    monkeypatch.setattr(PartitionShares, "beyond", lambda *_: [])  # the first owner stays
    loop = asyncio.get_running_loop()
    async with running(apps[0], concurrency=4) as owner:
        await asyncio.sleep(SETTLE_SECONDS)
        if limit:
            (await fleet.submit([60.0])).close()
            await until(lambda: len(fleet.ran) == 1)
        async with running(apps[1], concurrency=1):
            await asyncio.sleep(SETTLE_SECONDS)
            began, ran = loop.time(), len(fleet.ran)
            app = await fleet.submit([2.0 if n % 4 == 0 else 0.2 for n in range(16)])
            await until(lambda: len(fleet.ran) == ran + 16)
            assert loop.time() - began < 11.5  # the runs take 10.4 s
            await settled(app, owner, timeout=100.0)
            app.close()
    for each in apps:
        each.close()


@pytest.mark.parametrize(("cost", "key"), [("runtime", "a"), ("tasks", "a"), ("tasks", "a/b")])
async def test_after_a_change_of_weights_the_waiting_tasks_are_still_there_for_other_nodes(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, cost: str, key: str
) -> None:
    """The owner has free slots and no handler. The new weight moves the rank of a key back."""
    fleet = Fleet(sqlite_url, cost=cost)
    apps = [fleet.app(0, ["other"]), fleet.app(1)]
    apps[0].migrate()
    monkeypatch.setattr(PartitionShares, "beyond", lambda *_: [])  # the first owner stays
    async with running(apps[0]) as owner:
        await asyncio.sleep(SETTLE_SECONDS)
        async with running(apps[1], concurrency=1):
            await asyncio.sleep(SETTLE_SECONDS)
            app = await fleet.submit([5.0] * 4, fairness_key=key)
            await until(lambda: len(fleet.ran) == 1)
            weights = owner.parts.intake.lanes.sharing.weights["work"]
            apps[0].management.set_weight("work", key, 9.0)
            await until(lambda: weights == {key: 9.0})
            await asyncio.sleep(0.1)
            assert owner.parts.context.table.spare_names() == [("work", "work")]
            await settled(app, owner, timeout=100.0)
            app.close()
    for each in apps:
        each.close()


@pytest.mark.parametrize("queue", [{}, {"cost": "runtime"}], ids=str)
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_helper_alone_runs_what_its_owner_cannot(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, queue: dict[str, Any], key: str | None
) -> None:
    """The owner has no handler, and its first grant is lost."""
    fleet = Fleet(sqlite_url, **queue)
    names: list[list[str]] = [["work"], ["work", "new"]]
    apps = [fleet.app(number, each) for number, each in enumerate(names)]
    apps[0].migrate()
    monkeypatch.setattr(PartitionShares, "beyond", lambda *_: [])  # the first owner stays
    async with running(apps[0]) as owner:
        await asyncio.sleep(SETTLE_SECONDS)
        async with running(apps[1]):
            await asyncio.sleep(SETTLE_SECONDS)
            assert owner.parts.ownership.owned
            channel = owner.parts.context.channel
            send, lost = channel.send, []

            def lose_first(message: PeerMessage) -> None:
                if isinstance(message, Grant) and not lost:
                    lost.append(message)
                else:
                    send(message)

            monkeypatch.setattr(channel, "send", lose_first)
            began = asyncio.get_running_loop().time()
            app = await fleet.submit([0.0] * 12, name="new", ordering_key=key)
            await settled(app, owner, timeout=100.0)
            app.close()
            assert lost and sorted(fleet.values) == [*range(12)]
            assert asyncio.get_running_loop().time() - began < 20.0
    for each in apps:
        each.close()
