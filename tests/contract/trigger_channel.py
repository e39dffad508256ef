"""Promises of `fairlead.ports.trigger_channel.TriggerChannel`, for any channel, also from outside
this repository.

A new channel supplies a `ChannelKit` and a subclass of `TriggerChannelContract` whose fixture `kit`
returns it. The suite drives the channel through its port alone, as a node does: see `Reader`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from fairlead import App
from fairlead.errors import StoreUnavailable
from fairlead.model import (
    PRIORITIES,
    ClaimedTask,
    Feed,
    Finish,
    LaneKey,
    PartitionKey,
    State,
    Trigger,
    TriggerPath,
)
from fairlead.ports.notification import ANY_CHANGE, Lane, Notification
from fairlead.testing.contract.tasks import FACTS

SOON = 60.0
"""Longest time in seconds that a wait may take."""

A_MOMENT = 0.6
"""Seconds after which no more triggers are expected."""

NEVER = 1e9

QUEUE = "work"
PARTITIONS = {QUEUE: 4}
KEYS = frozenset(PartitionKey(QUEUE, partition) for partition in range(4))


class ChannelKit:
    """A channel under test: its applications, and the failures of its servers."""

    secret: str | None = None
    """Password of the server, which `location` must not show, or None without a password."""
    server: Any = None
    """Server that the suite may `crash` and `start`, or None without a server of its own."""
    commits_out_of_order: bool = False
    """Whether two transactions of the store may commit in another order than they began."""

    def application(self) -> App:
        """Return another application on the same migrated store and channel, as another process
        would have it. The caller closes it."""
        raise NotImplementedError

    def lose_announcements(self, app: App) -> None:
        """Keep every announcement from `app`. Called before its channel is opened."""

    def sweep_every(self, app: App, seconds: float) -> None:
        """Let the channel look for lost triggers every `seconds`."""


class Reader:
    """A node's side of a channel, which joins, receives while there is room, and keeps triggers."""

    def __init__(
        self,
        app: App,
        name: str = "reader",
        room: int = 10_000,
        owns: Collection[PartitionKey] = KEYS,
        positions: dict[int, int] | None = None,
    ) -> None:
        """Open nothing yet.

        `owns` has the partitions that leases would give to the node, for a channel that does not
        assign them itself. `positions` has the first positions to read after, by priority.
        """
        self.app = app
        self.name = name
        self.room = room
        self.page = 1000
        """Triggers of a lane that a sweep may return at once."""
        self.owned: frozenset[PartitionKey] = frozenset()
        self.received: list[Trigger] = []
        self.notifications: list[Notification] = []
        self.outages: list[StoreUnavailable] = []
        self.empty = 0
        """Number of times that `receive` returned nothing."""
        self.positions = positions or {}
        self._owns = frozenset(owns)
        self._kept: dict[str, Trigger] = {}
        self._work: asyncio.Task[None] | None = None
        self._session = 6.0

    # as a room ------------------------------------------------------------------------------------

    def ahead(self, lane: LaneKey) -> int:
        kept = Counter((trigger.queue, trigger.priority) for trigger in self._kept.values())
        return self.room - kept[lane.queue, lane.priority]

    def behind(self, lane: LaneKey) -> int:
        return self.page

    def reads_by_key(self, lane: LaneKey) -> bool:
        return False

    # as an owner ----------------------------------------------------------------------------------

    def on_gained(self, keys: Collection[PartitionKey]) -> None:
        self.own(self.owned | set(keys))

    async def hand_over(self, keys: Collection[PartitionKey]) -> None:
        self.on_lost(keys)

    def on_lost(self, keys: Collection[PartitionKey]) -> None:
        self.own(self.owned - set(keys))

    def own(self, keys: Collection[PartitionKey]) -> None:
        """Read these partitions from now on, and no others."""
        gone = self.owned - set(keys)
        self.owned = frozenset(keys)
        dropped = [t for t in self._kept.values() if (t.queue, t.partition) in gone]
        if dropped:
            self.drop(dropped)
        self.app.channel.assign({key: dict(self.positions) for key in self.owned})

    # start and stop -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        channel = self.app.channel
        await self.app.store.register_queues(PARTITIONS)
        await channel.open(self.notifications.append, self.name)
        channel.join(PARTITIONS, self.name, self, self._session)
        if not channel.shares_partitions:
            self.own(self._owns)
        self._work = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                triggers = await self.app.channel.receive(self)
            except StoreUnavailable as outage:
                self.outages.append(outage)
                await asyncio.sleep(0.1)
                continue
            self.empty += not triggers
            self.received += triggers
            self._kept.update({trigger.id: trigger for trigger in triggers})

    async def leave(self) -> None:
        """Receive nothing more and release all partitions, as a node that stops does first."""
        if self._work is not None:
            self._work.cancel()
            with suppress(asyncio.CancelledError):
                await self._work
            self._work = None
        await self.app.channel.leave()
        if not self.app.channel.shares_partitions:
            self.app.channel.assign({})
        self.owned = frozenset()

    async def stop(self) -> None:
        await self.leave()
        await self.app.channel.close()

    # what a node does with triggers ---------------------------------------------------------------

    async def claim(self, triggers: Iterable[Trigger] | None = None) -> list[ClaimedTask]:
        """Claim these triggers, or all kept ones, and drop those that the store refuses."""
        wanted = list(self._kept.values() if triggers is None else triggers)
        now = self.app.clock.now()
        await self.app.store.register_node(self.name, [], [], now, FACTS)
        claimed = await self.app.store.claim(self.name, wanted, now, {})
        self.drop(wanted)
        return claimed

    def drop(self, triggers: Iterable[Trigger]) -> None:
        """Tell the channel that these triggers are no longer needed."""
        dropped = list(triggers)
        for trigger in dropped:
            self._kept.pop(trigger.id, None)
        self.app.channel.settled(dropped)
        self.app.channel.room_freed()

    @property
    def kept(self) -> list[Trigger]:
        return list(self._kept.values())

    @property
    def news(self) -> list[Trigger]:
        """Return the received triggers without repetitions, in the order of their first arrival."""
        first: dict[tuple[str, int], Trigger] = {}
        for trigger in self.received:
            first.setdefault((trigger.id, trigger.version), trigger)
        return list(first.values())

    @property
    def ids(self) -> set[str]:
        return {trigger.id for trigger in self.received}

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the condition is true. Raise the error that broke the reader, if any."""
        async with asyncio.timeout(SOON):
            while not is_so():
                if self._work is not None and self._work.done():
                    self._work.result()
                await asyncio.sleep(0.01)

    async def until_received(self, ids: Iterable[str]) -> None:
        wanted = set(ids)
        await self.until(lambda: wanted <= self.ids)

    async def until_up_to_date(self) -> None:
        """Wait until every owned lane was read and the channel has assigned its partitions."""
        lanes = [LaneKey(*key, priority) for key in KEYS for priority in PRIORITIES]
        await self.until(
            lambda: bool(self.owned) and not any(self.app.channel.is_behind(lane) for lane in lanes)
        )


@asynccontextmanager
async def reading(app: App, **options: Any) -> AsyncIterator[Reader]:
    """Run a reader during the block."""
    reader = Reader(app, **options)
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()


def noting(app: App) -> Any:
    """Declare the queue and the task of the suite."""
    app.queue(QUEUE, partitions=PARTITIONS[QUEUE])

    @app.task(queue=QUEUE, name="note")
    async def note(n: int) -> None: ...

    return note


def is_interned(text: str) -> bool:
    """Return whether Python keeps this text in its table of interned strings."""
    copy = "".join(list(text))
    return sys.intern(copy) is not copy


async def submitted(note: Any, count: int, **options: Any) -> list[str]:
    """Submit `count` tasks at once; return their ids in the order of submission."""
    handles = await note.options(**options).submit_many_async([{"n": n} for n in range(count)])
    return [handle.id for handle in handles]


class TriggerChannelContract:
    """Promises of every channel. Subclass this class and override `kit`."""

    @pytest.fixture
    def kit(self) -> ChannelKit:
        raise NotImplementedError("a channel's suite supplies this")

    @pytest.fixture
    def apps(self, kit: ChannelKit) -> Any:
        """Return a function that makes applications, each as in a process of its own.

        Sweeps are off, so triggers arrive by announcements or are found at the start. The
        applications are closed at the end.
        """
        made: list[App] = []

        def make() -> App:
            app = kit.application()
            kit.sweep_every(app, NEVER)
            made.append(app)
            return app

        yield make
        for app in made:
            app.close()

    @pytest.fixture
    def app(self, apps: Any) -> App:
        return apps()

    @pytest.fixture
    def note(self, app: App) -> Any:
        return noting(app)

    @pytest.fixture
    def other(self, apps: Any) -> App:
        return apps()

    @pytest.fixture
    def other_note(self, other: App) -> Any:
        return noting(other)

    # arrival --------------------------------------------------------------------------------------

    async def test_a_trigger_has_the_fields_that_a_node_needs(self, app: App, note: Any) -> None:
        async with reading(app) as reader:
            await reader.until_up_to_date()
            task = await note.options(priority=3, fairness_key="acme", weight=2.5).submit_async(1)
            await reader.until_received([task.id])
            trigger = reader.received[0]
        assert (trigger.id, trigger.version, trigger.name) == (task.id, 1, "note")
        assert (trigger.queue, trigger.partition) in KEYS
        assert (trigger.priority, trigger.fairness_key) == (3, "acme")
        assert trigger.weight == 2.5
        assert trigger.path == TriggerPath.HOOK

    async def test_no_fairness_key_stays_in_memory_for_good(self, app: App, note: Any) -> None:
        """Python 3.12 never frees an interned string."""
        (id,) = await submitted(note, 1, fairness_key=f"tenant {uuid4()}")
        async with reading(app) as reader:
            await reader.until_received([id])
            assert not is_interned(reader.news[0].fairness_key)

    async def test_tasks_submitted_before_any_node_reads_are_received(
        self, app: App, note: Any
    ) -> None:
        """Triggers already in the store are received too."""
        ids = await submitted(note, 30)
        async with reading(app) as reader:
            await reader.until_received(ids)

    async def test_tasks_submitted_by_another_process_arrive_without_a_sweep(
        self, app: App, note: Any, other_note: Any
    ) -> None:
        async with reading(app) as reader:
            await reader.until_up_to_date()
            ids = await submitted(other_note, 10)
            one = await asyncio.to_thread(other_note.submit, 11)
            await reader.until_received([*ids, one.id])

    async def test_a_submit_of_thousands_arrives_whole(self, app: App, note: Any) -> None:
        async with reading(app) as reader:
            await reader.until_up_to_date()
            await reader.until_received(await submitted(note, 2500))

    async def test_a_lane_arrives_in_the_order_of_submission(self, app: App, note: Any) -> None:
        before = await submitted(note, 40)
        async with reading(app) as reader:
            await reader.until_received(before)
            after = [(await note.submit_async(n)).id for n in range(20)]
            await reader.until_received(after)
            lanes: dict[int, list[str]] = {}
            for trigger in reader.received:
                arrived = lanes.setdefault(trigger.partition, [])
                if trigger.id not in arrived:
                    arrived.append(trigger.id)
        positions = {id: n for n, id in enumerate([*before, *after])}
        for arrived in lanes.values():
            assert arrived == sorted(arrived, key=positions.__getitem__)

    async def test_a_better_priority_comes_first(self, app: App, note: Any) -> None:
        await submitted(note, 5, priority=9)
        await submitted(note, 5, priority=0)
        await submitted(note, 5, priority=4)
        app.channel.close_sender()
        async with reading(app) as reader:
            await reader.until(lambda: len(reader.ids) == 15)
        for key in KEYS:
            of_partition = [t.priority for t in reader.news if t.partition == key.partition]
            assert of_partition == sorted(of_partition)

    async def test_a_task_tried_again_arrives_again_with_a_later_version(
        self, app: App, note: Any
    ) -> None:
        async with reading(app) as reader:
            task = await note.submit_async(1)
            await reader.until_received([task.id])
            (claimed,) = await reader.claim()
            now = app.clock.now()
            finish = Finish(
                task.id,
                claimed.version,
                "retried",
                State.SUBMITTED,
                now,
                now,
                "ValueError",
                "a fault of the test",
                row=claimed.row,
            )
            completed = await app.store.complete(reader.name, [finish])
            assert not completed.refused
            if completed.notification is not None:
                app.channel.announce(completed.notification)
            first = reader.received[0].version
            await reader.until(lambda: any(t.version > first for t in reader.received))
            later = [trigger for trigger in reader.news if trigger.version > first]
            assert len(await reader.claim(later)) == 1

    async def test_a_delayed_task_arrives_when_it_is_due_and_not_before(
        self, app: App, note: Any
    ) -> None:
        async with reading(app) as reader:
            await reader.until_up_to_date()
            run_at = datetime.now(UTC) + timedelta(seconds=1)
            task = await note.options(run_at=run_at).submit_async(1)
            async with asyncio.timeout(SOON):
                while task.id not in reader.ids:
                    woken = await app.store.wake_due(app.clock.now(), 100)
                    if woken.notification is not None:
                        app.channel.announce(woken.notification)
                    await asyncio.sleep(0.02)
            assert datetime.now(UTC) >= run_at

    # at least once --------------------------------------------------------------------------------

    async def test_a_lost_announcement_is_healed_by_a_sweep(
        self, kit: ChannelKit, app: App, note: Any
    ) -> None:
        """A sweep heals a lost announcement."""
        kit.lose_announcements(app)
        async with reading(app) as reader:
            await reader.until_up_to_date()
            ids = await submitted(note, 20)
            kit.sweep_every(app, 0.3)
            await reader.until_received(ids)
            assert len(await reader.claim()) == 20

    async def test_doubled_and_empty_announcements_are_harmless(self, app: App, note: Any) -> None:
        """A trigger may come twice."""
        async with reading(app) as reader:
            ids = await submitted(note, 20)
            for _ in range(3):
                for partition in range(4):
                    app.channel.announce(Notification(ready=[Lane(QUEUE, partition, 5, 1)]))
                app.channel.announce(ANY_CHANGE)
            await reader.until_received(ids)
            assert len(await reader.claim()) == 20
            app.channel.announce(ANY_CHANGE)
            await asyncio.sleep(A_MOMENT)
            assert await reader.claim() == []
            assert len(reader.ids) == 20

    async def test_a_task_that_commits_late_below_the_reader_is_found(
        self, kit: ChannelKit, app: App, note: Any
    ) -> None:
        if not kit.commits_out_of_order:
            pytest.skip("transactions of this store commit in the order in which they begin")
        psycopg = pytest.importorskip("psycopg")
        written, may_commit = asyncio.Event(), asyncio.Event()

        async def late() -> list[str]:
            async with (
                await psycopg.AsyncConnection.connect(app.url) as connection,
                app.transaction(connection),
            ):
                handles = [
                    await note.options(connection=connection).submit_async(n) for n in range(8)
                ]
                written.set()
                await may_commit.wait()
            return [handle.id for handle in handles]

        async with reading(app) as reader:
            await reader.until_up_to_date()
            committing = asyncio.create_task(late())
            await written.wait()
            early = await submitted(note, 40)
            await reader.until_received(early)
            assert reader.ids == set(early)
            may_commit.set()
            await reader.until_received(await committing)

    async def test_dropped_triggers_come_again_when_the_node_asks_also_during_a_sweep(
        self, app: App, note: Any, kit: ChannelKit
    ) -> None:
        """Deliver again, now, the triggers that were received and may have been dropped."""
        async with reading(app) as reader:
            ids = await submitted(note, 400)
            await reader.until_received(ids)
            await reader.until_up_to_date()
            kit.sweep_every(app, NEVER)
            reader.page = 10
            reader.received.clear()
            app.channel.redeliver()
            await reader.until(lambda: len(reader.received) >= 20)
            reader.drop(reader.kept)
            reader.received.clear()
            app.channel.redeliver()
            await reader.until_received(ids)

    async def test_unread_triggers_come_again_in_their_order_when_there_is_room(
        self, app: App, note: Any
    ) -> None:
        """Deliver the triggers of a lane from some positions on again."""
        async with reading(app) as reader:
            await reader.until_received(await submitted(note, 40))
            await reader.until_up_to_date()
            lanes: dict[LaneKey, list[Trigger]] = {}
            for each in sorted(reader.kept, key=lambda each: each.seq):
                lanes.setdefault(LaneKey(each.queue, each.partition, 5), []).append(each)
            tails = {lane: found[len(found) // 2 :] for lane, found in lanes.items()}
            dropped = [each for tail in tails.values() for each in tail]
            reader.room = 0
            reader.received.clear()
            for lane, tail in tails.items():
                feeds = {Feed(each.fairness_key): each.seq - 1 for each in reversed(tail)}
                app.channel.read_later(lane, feeds)
            reader.drop(dropped)
            await asyncio.sleep(A_MOMENT)
            unread = {each.id for each in dropped}
            assert not unread & reader.ids  # a sweep may bring the others
            reader.room = 10_000
            app.channel.room_freed()
            await reader.until(lambda: unread <= reader.ids)
            again = [each for each in reader.received if each.id in unread]
            for lane, tail in tails.items():
                came = [each.id for each in again if (each.queue, each.partition) == lane[:2]]
                assert came == [each.id for each in tail]
            assert all(each.path == TriggerPath.HOOK for each in again)

    async def test_a_cancelled_receive_loses_nothing(self, app: App, note: Any) -> None:
        async with reading(app) as reader:
            await reader.until_up_to_date()
            reader.room = 0
            ids = set(await submitted(note, 300))
            for _ in range(20):
                work = reader._work
                assert work is not None
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
                reader.room += 10
                reader._work = asyncio.create_task(reader._run())
                app.channel.room_freed()
                await asyncio.sleep(0.01)
            reader.room = 10_000
            app.channel.room_freed()
            await reader.until_received(ids)

    # room -----------------------------------------------------------------------------------------

    async def test_a_lane_receives_up_to_its_room_and_the_rest_when_room_is_freed(
        self, app: App, note: Any
    ) -> None:
        ids = await submitted(note, 200)
        async with reading(app, room=20) as reader:
            ran: set[str] = set()
            while len(ran) < 200:
                await reader.until(lambda: len(reader.kept) == 20)
                await asyncio.sleep(0.02)
                assert len(reader.kept) == 20
                ran |= {task.id for task in await reader.claim()}
            assert ran == set(ids)

    async def test_a_lane_without_room_holds_up_no_other(self, app: App, note: Any) -> None:
        async with reading(app, room=10) as reader:
            await submitted(note, 100, priority=5)
            await reader.until(lambda: len(reader.kept) == 10)
            better = await submitted(note, 5, priority=2)
            worse = await submitted(note, 5, priority=8)
            await reader.until_received([*better, *worse])
            assert sum(trigger.priority == 5 for trigger in reader.kept) == 10

    async def test_a_lane_with_more_triggers_than_room_is_behind(self, app: App, note: Any) -> None:
        """Return whether the lane may have more triggers than were received."""
        await submitted(note, 200)
        async with reading(app, room=20) as reader:
            await reader.until(lambda: len(reader.kept) == 20 and len(reader.owned) == 4)
            lanes = [LaneKey(*key, 5) for key in KEYS]
            assert any(app.channel.is_behind(lane) for lane in lanes)
            reader.room = 10_000
            app.channel.room_freed()
            await reader.until_up_to_date()
            assert len(reader.ids) == 200

    async def test_receive_returns_nothing_when_a_lane_is_no_longer_behind_and_then_waits(
        self, app: App, note: Any
    ) -> None:
        """Wait while there are none; return nothing when a lane is no longer behind."""
        async with reading(app) as reader:
            await reader.until_up_to_date()
            await reader.until(lambda: reader.empty > 0)
            await asyncio.sleep(A_MOMENT)
            before = reader.empty
            await asyncio.sleep(A_MOMENT)
            assert reader.empty == before
            assert reader.received == []

    # owners ---------------------------------------------------------------------------------------

    async def test_no_trigger_comes_from_a_partition_that_is_not_owned(
        self, app: App, note: Any
    ) -> None:
        if app.channel.shares_partitions:
            pytest.skip("on this channel leases do not assign triggers")
        ids = await submitted(note, 60)
        owned = frozenset({PartitionKey(QUEUE, 1), PartitionKey(QUEUE, 3)})
        async with reading(app, owns=owned) as reader:
            more = await submitted(note, 60)
            await reader.until_up_to_date()
            await asyncio.sleep(A_MOMENT)
            assert {t.partition for t in reader.received} == {1, 3}
            reader.own(KEYS)
            await reader.until_received([*ids, *more])

    async def test_two_nodes_share_the_work_and_one_that_leaves_loses_nothing(
        self, app: App, note: Any, other: App, other_note: Any
    ) -> None:
        half = frozenset(PartitionKey(QUEUE, n) for n in (0, 1))
        async with reading(app, name="one", owns=half) as one:
            async with reading(other, name="two", owns=KEYS - half) as two:
                if app.channel.shares_partitions:
                    await one.until(lambda: len(one.owned) == len(two.owned) == 2)
                    assert one.owned | two.owned == KEYS
                ids = set(await submitted(note, 200))
                await one.until(lambda: one.ids | two.ids >= ids)
                won = [*await one.claim(), *await two.claim()]
            assert sorted(task.id for task in won) == sorted(ids)
            if app.channel.shares_partitions:
                await one.until(lambda: one.owned == KEYS)
            else:
                one.own(KEYS)
            more = await submitted(note, 40)
            await one.until_received(more)
            assert {task.id for task in await one.claim()} == set(more)

    async def test_unclaimed_triggers_of_a_node_that_leaves_go_to_another_node_at_once(
        self, app: App, note: Any, other: App, other_note: Any
    ) -> None:
        """Release all partitions and all triggers not claimed, which other nodes have once this
        returns."""
        async with reading(app, name="first") as first:
            ids = set(await submitted(note, 80))
            await first.until_received(ids)
            claimed = {task.id for task in await first.claim(first.kept[:30])}
            assert len(claimed) == 30
            await first.leave()
            async with reading(other, name="second") as second:
                left = ids - claimed
                await second.until_received(left)
                assert {task.id for task in await second.claim()} == left

    async def test_owners_that_change_often_lose_nothing(
        self, app: App, note: Any, other: App, other_note: Any
    ) -> None:
        ran: list[str] = []
        ids: set[str] = set()
        for pass_ in range(4):
            async with reading((app, other)[pass_ % 2], name=f"node {pass_}", room=25) as reader:
                ids |= set(await submitted(note, 40))
                await reader.until(lambda: len(reader.kept) >= 20)  # noqa: B023
                ran += [task.id for task in await reader.claim(reader.kept[:20])]
        async with reading(app, name="last") as last:
            await last.until_received(ids - set(ran))
            ran += [task.id for task in await last.claim()]
        assert Counter(ran) == dict.fromkeys(ids, 1)

    async def test_a_partition_assigned_again_continues_at_its_position(
        self, app: App, note: Any
    ) -> None:
        """A partition that is being read continues at its present position."""
        async with reading(app) as reader:
            first = await submitted(note, 20)
            await reader.until_received(first)
            await reader.until(lambda: reader.owned == KEYS)
            await reader.claim()
            reader.received.clear()
            reader.own(KEYS)
            second = await submitted(note, 20)
            await reader.until_received(second)
            if not app.channel.shares_partitions:  # a message may arrive after the read of its row
                assert reader.ids == set(second)
            assert {task.id for task in await reader.claim()} == set(second)

    async def test_a_reader_begins_at_the_position_given_for_a_priority(
        self, app: App, note: Any
    ) -> None:
        """Read each priority from the given position, or from the beginning; read earlier triggers
        again only afterwards, because a former owner may have kept some out of memory."""
        if app.channel.shares_partitions:
            pytest.skip("this channel also delivers triggers before the position, for safety")
        old = await submitted(note, 12, priority=5)
        async with reading(app) as reader:
            await reader.until_received(old)
            last = max(trigger.seq for trigger in reader.received)
        other_priority = await submitted(note, 4, priority=2)
        new = await submitted(note, 12, priority=5)
        async with reading(app, positions={5: last}) as reader:
            await reader.until_received([*new, *other_priority])
            first = [trigger.id for trigger in reader.received[: len(new) + len(other_priority)]]
            assert {*first} == {*new, *other_priority}

    # start and stop -----------------------------------------------------------------------------------------

    async def test_leave_and_close_may_be_called_twice_and_a_closed_channel_returns_nothing(
        self, app: App, note: Any
    ) -> None:
        reader = Reader(app)
        await reader.start()
        await submitted(note, 3)
        await reader.until(lambda: len(reader.ids) == 3)
        await reader.leave()
        await app.channel.leave()
        await app.channel.close()
        await app.channel.close()
        reader.notifications.clear()
        await submitted(note, 3)
        app.channel.announce(Notification(control=True))
        await asyncio.sleep(0.2)
        assert len(reader.ids) == 3
        assert reader.notifications == []

    async def test_a_closed_channel_can_be_opened_again(self, app: App, note: Any) -> None:
        for n in range(3):
            async with reading(app, name=f"node {n}") as reader:
                await reader.until_received(await submitted(note, 5))
                assert len(await reader.claim()) == 5

    async def test_a_notification_from_any_thread_reaches_the_node_in_its_event_loop(
        self, app: App, note: Any
    ) -> None:
        """Call `on_notification` in the event loop for every notification that arrives."""
        threads: list[threading.Thread] = []
        received: list[Notification] = []

        def on_notification(notification: Notification) -> None:
            threads.append(threading.current_thread())
            received.append(notification)

        await app.channel.open(on_notification, "one")
        notification = Notification(due=123, control=True)
        if hasattr(
            app.store, "announce"
        ):  # on PostgreSQL a notification is part of its transaction
            await app.store.database.run_async(app.store.announce(notification))  # type: ignore[attr-defined]
        await asyncio.to_thread(app.channel.announce, notification)
        async with asyncio.timeout(SOON):
            while not any(found.control for found in received):
                await asyncio.sleep(0.01)
        await app.channel.close()
        assert set(threads) == {threading.current_thread()}

    # self-description -----------------------------------------------------------------------------

    def test_the_location_of_a_channel_shows_no_secret(self, kit: ChannelKit, app: App) -> None:
        assert app.channel.location
        if kit.secret is not None:
            assert kit.secret not in app.channel.location


class ServerAwayContract:
    """Promises of a channel during an outage. Subclass this class and override `kit` with one that
    has its own `server`."""

    @pytest.fixture
    def kit(self) -> ChannelKit:
        raise NotImplementedError("a channel's suite supplies this")

    @pytest.fixture
    def app(self, kit: ChannelKit) -> Any:
        app = kit.application()
        kit.sweep_every(app, 0.5)
        yield app
        app.close()

    async def test_an_outage_of_the_server_loses_nothing_and_breaks_no_reader(
        self, kit: ChannelKit, app: App
    ) -> None:
        """`receive` raises no error but StoreUnavailable; `announce` raises none and never blocks for
        long; `status` raises StoreUnavailable; every committed task arrives eventually."""
        note = noting(app)
        async with reading(app) as reader:
            ids = set(await submitted(note, 5))
            await reader.until_received(ids)
            has_status = await app.channel.status([QUEUE]) is not None
            await reader.claim()
            kit.server.crash()
            for n in range(5):
                with suppress(StoreUnavailable):
                    ids.add((await note.submit_async(n)).id)
            began = time.monotonic()
            app.channel.announce(Notification(ready=[Lane(QUEUE, 0, 5, 1)], control=True))
            assert time.monotonic() - began < 2.0
            if has_status:
                with pytest.raises(StoreUnavailable):
                    await app.channel.status([QUEUE])
            await asyncio.sleep(1.0)
            kit.server.start()
            async with asyncio.timeout(SOON):
                while True:
                    try:
                        ids |= set(await submitted(note, 5))
                        break
                    except StoreUnavailable:
                        await asyncio.sleep(0.1)
            await reader.until_received(ids)


def secret_of(url: str) -> str | None:
    """Return the password in a URL, if any."""
    return urlsplit(url).password


__all__: Sequence[str] = (
    "ChannelKit",
    "Reader",
    "ServerAwayContract",
    "TriggerChannelContract",
    "secret_of",
)
