"""Ends of runs of an ordered queue, when the store refuses large batches or single ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.errors import BatchTooLarge, StoreUnavailable
from fairlead.model import IncidentReport
from fairlead.ordered.completion import OrderedCompletion, write_once
from fairlead.ports.schedule_store import Fenced
from tests.simulation.virtual_clock import VirtualClock


class Bench:
    """A completion with a store that takes at most `most` ends at once, and refuses some alone."""

    def __init__(self, most: int = 500) -> None:
        self.clock = VirtualClock()
        self.most = most
        self.refuses: dict[str, Exception] = {}
        self.sizes: list[int] = []
        """Numbers of ends in all writes."""
        self.written: list[str] = []
        self.deferred: list[str] = []
        self.incidents: list[IncidentReport] = []
        self.completion = OrderedCompletion(
            self.clock,
            lambda ends: self.written.extend(map(id_of, ends)),
            lambda end: self.deferred.append(id_of(end)),
            self.incidents.extend,
        )

    def add(self, ids: Sequence[int]) -> None:
        for n in ids:
            self.completion.add(end(n))

    async def write(self, ends: Sequence[Any]) -> None:
        await asyncio.sleep(0)
        self.sizes.append(len(ends))
        if len(ends) > self.most:
            raise BatchTooLarge("raise temp_file_limit")
        for each in ends:
            if (error := self.refuses.get(id_of(each))) is not None:
                raise error

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Sequence[asyncio.Future[None]]]:
        running = [
            asyncio.ensure_future(self.completion.run(self.write)),
            asyncio.ensure_future(self.completion.run_retries(self.write)),
        ]
        try:
            yield running
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def end(n: int) -> Any:
    return SimpleNamespace(
        scheduled=SimpleNamespace(task=SimpleNamespace(id=f"{n}", queue="q", name="work"))
    )


def id_of(one: Any) -> str:
    return str(one.scheduled.task.id)


async def test_ends_that_the_server_refuses_together_are_written_in_smaller_batches() -> None:
    bench = Bench(most=60)
    bench.add(range(200))
    async with bench.serving():
        await bench.clock.run(lambda: len(bench.written) == 200, 1)
    assert bench.written == [f"{n}" for n in range(200)]
    assert sum(size > 60 for size in bench.sizes) <= 4


@pytest.mark.parametrize("error", [RuntimeError("a trigger"), BatchTooLarge("too large")])
async def test_an_end_that_the_store_refuses_alone_holds_back_no_other(error: Exception) -> None:
    bench = Bench()
    bench.refuses["77"] = error
    bench.add(range(300))
    async with bench.serving() as running:
        await bench.clock.run(lambda: len(bench.written) == 299, 1)
        assert bench.deferred == ["77"] and bench.completion.refused == 1
        bench.add(range(300, 800))
        await bench.clock.run(lambda: len(bench.written) == 799, 1)
        await bench.clock.run(lambda: False, 300)
        assert {(each.kind, each.subject) for each in bench.incidents} == {("write_refused", "77")}
        bench.refuses.clear()
        assert await bench.clock.run(lambda: len(bench.written) == 800, 2)
        assert not any(each.done() for each in running)
    assert len(set(bench.written)) == 800


@pytest.mark.parametrize("error", [StoreUnavailable("an outage"), Fenced("taken over")])
async def test_an_outage_and_a_fence_end_the_tenure_and_drop_no_end(error: Exception) -> None:
    bench = Bench()
    bench.refuses = {"3": RuntimeError("a trigger")}
    bench.add(range(10))
    async with bench.serving():
        await bench.clock.run(lambda: len(bench.written) == 9, 1)
    bench.refuses = {f"{n}": error for n in range(20)}
    bench.add(range(10, 20))
    async with bench.serving() as running:
        await bench.clock.run(lambda: all(each.done() for each in running), 61)
        for each in running:
            with pytest.raises(type(error)):
                each.result()
    bench.refuses = {}
    async with bench.serving():
        assert await bench.clock.run(lambda: len(bench.written) == 20, 61)
    assert sorted(map(int, bench.written)) == [*range(20)]


async def test_the_last_write_of_a_lost_partition_leaves_out_refused_ends_only() -> None:
    bench = Bench(most=4)
    refused = RuntimeError("a trigger")
    bench.refuses = {"3": refused}
    written: list[str] = []

    async def write(ends: Sequence[Any]) -> None:
        await bench.write(ends)
        written.extend(map(id_of, ends))

    ends = [end(n) for n in range(10)]
    assert await write_once(ends, write, bench.clock, 10.0) == (1, refused)
    assert sorted(map(int, written)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


async def test_the_end_of_a_task_that_a_person_ended_is_dropped_if_refused() -> None:
    bench = Bench()
    bench.refuses = {"3": RuntimeError("a trigger")}
    bench.add(range(5))
    async with bench.serving():
        await bench.clock.run(lambda: len(bench.written) == 4, 1)
        assert not bench.completion.drop_refused("4")
        assert bench.completion.drop_refused("3") and bench.completion.refused == 0
        bench.refuses.clear()
        await bench.clock.run(lambda: False, 100)
    assert "3" not in bench.written
