"""Triggers that arrive during a read of the store, or arrive again, are neither lost nor skipped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.backends.memory.backlog import MemoryBacklogStore
from fairlead.backends.memory.notifier import MemoryNotifier
from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.clock import SYSTEM_CLOCK
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.core.triggers.table import TriggerTable
from fairlead.engine.backlogs import Backlogs
from fairlead.engine.fair_partition import LaneContext
from fairlead.engine.intake import Intake
from fairlead.engine.look_ahead import LookAhead
from fairlead.engine.ordering import Ordering
from fairlead.engine.queue_kinds import kinds_of
from fairlead.engine.settings import NodeSettings
from fairlead.model import LaneKey, PartitionKey, State, Trigger
from tests.builders import trigger

SOON = 20.0
KEY = OrderingKey("q", "o")
PARTITION = PartitionKey("q", 0)
LANE = LaneKey("q", 0, 5)


class SlowStore:
    """A task store and its database, whose reads wait until `respond`."""

    def __init__(self) -> None:
        self.reads: asyncio.Queue[Any] = asyncio.Queue()
        """Subject of each read, in the order in which the reads began."""
        self._response: list[Any] | Exception = []
        self._may_respond = asyncio.Event()

    @property
    def database(self) -> SlowStore:
        return self

    def ordered(self, keys: Sequence[tuple[str, str]], limit: int) -> Any:
        return keys

    def ready(self, lane: LaneKey, above: int, limit: int) -> Any:
        return lane

    def lanes(self) -> Any:
        return "lanes"

    async def read(self, about: Any) -> list[Any]:
        if about == "lanes":
            return [LANE]
        self.reads.put_nowait(about)
        await self._may_respond.wait()
        self._may_respond.clear()
        if isinstance(self._response, Exception):
            raise self._response
        return self._response

    def respond(self, response: list[Any] | Exception) -> None:
        self._response = response
        self._may_respond.set()


# reservations of an ordering key ------------------------------------------------------------------


class ReadUnderWay:
    """An `Ordering` with a read of one key under way, and its table."""

    def __init__(self) -> None:
        self.store = SlowStore()
        ledger = SlotLedger(10)
        self.table = TriggerTable(ledger)
        self.removed: list[Trigger] = []
        self._settled = asyncio.Event()
        self.ordering = Ordering(
            SimpleNamespace(
                store=self.store,
                table=self.table,
                ledger=ledger,
                events=self,
                in_flight={},
                clock=SYSTEM_CLOCK,
            )
        )

    def on_runnable(self, triggers: Collection[Trigger]) -> None:
        for one in triggers:
            self.table.push(one)

    def on_outdated(self, triggers: Collection[Trigger]) -> None:
        self.removed.extend(triggers)

    def on_kept_out(self, triggers: Collection[Trigger]) -> None:
        self.table.remove(triggers)
        self.removed.extend(triggers)

    def on_ready(self) -> None:
        self._settled.set()

    def waiting(self) -> list[str]:
        return sorted(one.id for one in self.table.waiting(KEY))

    async def settle(self, answer: list[tuple[Trigger, State]]) -> None:
        self._settled.clear()
        self.store.respond(answer)
        await self._settled.wait()


@asynccontextmanager
async def read_under_way(*in_the_table: Trigger) -> AsyncIterator[ReadUnderWay]:
    """Run the block during a read of the key, which began when `first` was refused; the given triggers
    wait in the table."""
    one = ReadUnderWay()
    for waiting in in_the_table:
        one.table.push(waiting)
    one.ordering.refused(trigger("first", ordering_key="o"))
    async with asyncio.timeout(SOON):
        running = asyncio.create_task(one.ordering.run())
        try:
            assert await one.store.reads.get() == [KEY]
            yield one
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_a_trigger_that_arrives_during_a_read_stays_although_the_read_lacks_it() -> None:
    second, third = (
        trigger("second", ordering_key="o", order_at=2),
        trigger("third", ordering_key="o", order_at=3),
    )
    async with read_under_way(second) as here:
        here.table.push(third)
        await here.settle([(second, State.SUBMITTED)])
        assert here.waiting() == ["second", "third"]
        assert here.removed == []


async def test_the_first_trigger_of_a_key_that_arrives_during_an_empty_read_stays_and_may_run() -> (
    None
):
    late = trigger("late", ordering_key="o", order_at=3)
    async with read_under_way() as here:
        here.table.push(late)
        await here.settle([])
        assert here.removed == []
        assert here.table.take(10, 0.0) == ([late], [])


async def test_an_outdated_trigger_that_comes_during_a_read_does_not_stop_its_key() -> None:
    """An earlier read of the key let its task run while the backlog stored the trigger."""
    second, outdated = (
        trigger("second", ordering_key="o", order_at=2),
        trigger("outdated", ordering_key="o", order_at=1),
    )
    async with read_under_way(second) as here:
        here.table.push(outdated)
        await here.settle([(second, State.SUBMITTED)])
        assert await here.store.reads.get() == [KEY]
        await here.settle([(second, State.SUBMITTED)])
        assert here.removed == [outdated]
        assert here.table.take(10, 0.0) == ([second], [])


async def test_an_outdated_trigger_that_comes_after_a_read_does_not_stop_its_key() -> None:
    second, third = (
        trigger("second", ordering_key="o", order_at=2),
        trigger("third", ordering_key="o", order_at=3),
    )
    async with read_under_way() as here:
        await here.settle([(second, State.SUBMITTED)])
        assert here.table.take(10, 0.0) == ([second], [])
        here.ordering.ended(second, is_done=True)
        assert await here.store.reads.get() == [KEY]
        await here.settle([(third, State.SUBMITTED)])
        assert here.ordering.admits(second)
        here.table.push(second)
        assert await here.store.reads.get() == [KEY]
        await here.settle([(third, State.SUBMITTED)])
        assert here.removed == [second]
        assert here.table.take(10, 0.0) == ([third], [])


async def test_triggers_behind_a_first_task_that_waits_leave_memory_until_the_key_is_free() -> None:
    first, second = (
        trigger("first", ordering_key="o", order_at=1),
        trigger("second", ordering_key="o", order_at=2),
    )
    async with read_under_way(second) as here:
        await here.settle([(first, State.WAITING)])
        assert here.removed == [second]
        assert not here.ordering.admits(second)
        assert here.ordering.admits(first)
        assert here.ordering.admits(trigger("skipped before", ordering_key="o", order_at=0))


# triggers of a fair queue that arrive again -------------------------------------------------------


class Engine:
    """The intake and one fair partition behind it, as in a node, over a backlog store in memory."""

    def __init__(self, look_ahead: int) -> None:
        self.store = MemoryBacklogStore()
        self.table = TriggerTable(SlotLedger(1000))
        self.admits = True
        self._told = asyncio.Event()
        ordering = SimpleNamespace(admits=lambda one: self.admits)
        # This channel delivers nothing.
        channel = DatabaseChannel(None, MemoryNotifier(), SYSTEM_CLOCK)
        budget = LookAhead(64_000_000, SYSTEM_CLOCK)
        lanes = LaneContext(
            store=self.store,
            table=self.table,
            channel=SimpleNamespace(
                is_behind=lambda lane: False, floor=lambda lane: None, room_freed=self._told.set
            ),
            ordering=ordering,
            events=self,
            most=look_ahead,
            look_ahead=budget,
            clock=SYSTEM_CLOCK,
        )
        self.backlogs = Backlogs({"q"}, lanes)
        context = SimpleNamespace(
            channel=channel,
            table=self.table,
            look_ahead=budget,
            served=SimpleNamespace(handlers={}),
            events=self,
            observer=None,
            clock=SYSTEM_CLOCK,
            settings=NodeSettings("n", look_ahead=look_ahead),
            kinds=kinds_of([]),
        )
        self.intake = Intake(context, self.backlogs, ordering)

    def on_ready(self) -> None:
        self._told.set()

    def on_positions_changed(self, key: PartitionKey) -> None:
        self._told.set()

    def on_dropped(self, triggers: Collection[Trigger]) -> None:
        self.intake.drop(triggers)

    def on_incidents(self, reports: Collection[Any]) -> None:
        assert not reports

    def receive(self, *triggers: Trigger) -> None:
        """Pass triggers on, as Intake does with triggers of the channel."""
        self.intake.take_in(triggers)
        self.backlogs.on_drained()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._told.clear()
            await self._told.wait()

    def is_stored(self, one: Trigger) -> bool:
        return one.id in {row.id for row in self.store.rows(LANE)}

    def knows(self, one: Trigger) -> bool:
        return one.id in self.intake._known

    def dispatch(self) -> list[Trigger]:
        """Take all triggers out of the table, to claim them."""
        taken, _ = self.table.take(1000, 0.0)
        self.intake.taken(taken)
        return taken


@asynccontextmanager
async def engine(look_ahead: int) -> AsyncIterator[Engine]:
    one = Engine(look_ahead)
    one.backlogs.assign([PARTITION])
    async with asyncio.timeout(SOON):
        running = asyncio.create_task(one.backlogs.run())
        try:
            await one.until(lambda: one.backlogs.positions(PARTITION) is not None)
            yield one
        finally:
            running.cancel()
            await asyncio.wait([running])


def kept_out_because_of_its_ordering_key(here: Engine, one: Trigger) -> None:
    here.admits = False
    here.receive(one)
    here.admits = True


def refused_by_the_store(here: Engine, one: Trigger) -> None:
    here.receive(one)
    (taken,) = here.dispatch()
    here.intake.refused([taken])
    here.intake.claim_ended([taken])


def removed_from_the_table(here: Engine, one: Trigger) -> None:
    """Drop a trigger as Ordering does when a read of the store lacks it."""
    here.receive(one)
    (waiting,) = here.table.waiting(KEY)
    here.table.remove([waiting])
    here.intake.taken([waiting])
    here.intake.claim_ended([waiting])
    here.intake.refused([waiting])


leaving = pytest.mark.parametrize(
    "leave", [kept_out_because_of_its_ordering_key, refused_by_the_store, removed_from_the_table]
)


@leaving
async def test_a_trigger_dropped_without_a_run_is_held_in_memory_when_it_arrives_again_though_others_are_stored(
    leave: Callable[[Engine, Trigger], None],
) -> None:
    ordered = trigger("ordered", ordering_key="o", key="a", seq=1)
    others = [trigger(f"other {n}", seq=2 + n) for n in range(20)]
    last = trigger("last", seq=100)
    async with engine(look_ahead=1) as here:
        leave(here, ordered)
        assert not here.knows(ordered) and not here.table.waiting(KEY)
        here.receive(*others)
        await here.until(lambda: here.is_stored(others[-1]))
        here.receive(ordered, last)  # the store is asked about the first one meanwhile
        await here.until(lambda: here.is_stored(last))
        await here.until(lambda: bool(here.table.waiting(KEY)))
        assert [one.id for one in here.table.waiting(KEY)] == ["ordered"]
        assert here.knows(ordered)


async def test_a_partition_lost_while_its_owner_is_fenced_ends_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loss comes while the lookup of a repeated trigger is being cancelled."""
    many = [trigger(f"task {n}", seq=1 + n) for n in range(10)]
    is_asked, is_ending, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def levelled(*_: object) -> set[str]:
        is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_ending.set()
            await may_end.wait()
        raise AssertionError

    async with engine(look_ahead=1) as here:
        monkeypatch.setattr(here.store, "levelled", levelled)
        here.receive(*many)
        await here.until(lambda: here.is_stored(many[-1]))
        here.receive(trigger("repeated", seq=1))
        await is_asked.wait()
        await here.store.take_over([PARTITION])
        here.receive(trigger("new", seq=100))
        await is_ending.wait()
        task = here.backlogs._tasks[PARTITION]
        here.backlogs.assign([])
        may_end.set()
        await asyncio.wait([task])
        assert task.cancelled()
