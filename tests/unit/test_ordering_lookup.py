"""Triggers that arrive during a read of the store, or arrive again, are neither lost nor skipped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from fairlead.clock import SYSTEM_CLOCK
from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.engine.ordering import Ordering
from fairlead.model import State, Trigger
from tests.builders import trigger

SOON = 20.0
KEY = OrderingKey("q", "o")
FIRST, SECOND, THIRD = (
    trigger(name, ordering_key="o", order_at=n)
    for n, name in enumerate(("first", "second", "third"), start=1)
)


class SlowStore:
    """A task store and its database, whose reads wait until `respond`."""

    def __init__(self) -> None:
        self.reads: asyncio.Queue[Any] = asyncio.Queue()
        """Subject of each read, in the order in which the reads began."""
        self._response: list[Any] = []
        self._may_respond = asyncio.Event()

    @property
    def database(self) -> SlowStore:
        return self

    def ordered(self, keys: Sequence[tuple[str, str]], limit: int) -> Any:
        return keys

    async def read(self, about: Any) -> list[Any]:
        self.reads.put_nowait(about)
        await self._may_respond.wait()
        self._may_respond.clear()
        return self._response

    def respond(self, response: list[Any]) -> None:
        self._response = response
        self._may_respond.set()


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
                lane_reads=self.store,
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
    """Run the block during a read of the key, which began when a trigger was refused; the given triggers
    wait in the table."""
    one = ReadUnderWay()
    for waiting in in_the_table:
        one.table.push(waiting)
    one.ordering.refused(trigger("refused", ordering_key="o"))
    async with asyncio.timeout(SOON):
        running = asyncio.create_task(one.ordering.run())
        try:
            assert await one.store.reads.get() == [KEY]
            yield one
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_a_trigger_that_arrives_during_a_read_stays_although_the_read_lacks_it() -> None:
    async with read_under_way(SECOND) as here:
        here.table.push(THIRD)
        await here.settle([(SECOND, State.SUBMITTED)])
        assert here.waiting() == ["second", "third"]
        assert here.removed == []


async def test_an_outdated_trigger_that_comes_during_a_read_does_not_stop_its_key() -> None:
    """An earlier read of the key let its task run while the backlog stored the trigger."""
    async with read_under_way(SECOND) as here:
        here.table.push(FIRST)
        await here.settle([(SECOND, State.SUBMITTED)])
        assert await here.store.reads.get() == [KEY]
        await here.settle([(SECOND, State.SUBMITTED)])
        assert here.removed == [FIRST]
        assert here.table.take(10, 0.0) == ([SECOND], [])
