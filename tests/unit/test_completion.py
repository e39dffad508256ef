"""The completion of ended runs, when the store responds with errors."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.engine.completion import Completion
from fairlead.engine.context import NodeContext
from fairlead.engine.run import Run
from fairlead.errors import BatchTooLarge, StoreUnavailable, WriteRefused
from fairlead.model import INCIDENT_ENDS, ClaimedTask, Finish, IncidentReport
from fairlead.ports.observer import Silent
from fairlead.ports.task_store import Completed
from fairlead.refused_writes import MOST_REPORTED
from tests import tiers
from tests.builders import trigger
from tests.simulation.virtual_clock import VirtualClock
from tests.tiers import seeds

FIRST = tiers.seed()


class Events:
    """Events of a node, noted."""

    def __init__(self) -> None:
        self.incidents: list[IncidentReport] = []
        self.settled: list[str] = []
        self.deferred: list[str] = []

    def on_settled(self, runs: Sequence[Any]) -> None:
        self.settled += [run.trigger.id for run in runs]

    def on_end_refused(self, run: Any) -> None:
        if not run.is_refused:
            self.deferred.append(run.trigger.id)
        run.is_refused = True

    def on_incidents(self, reports: Sequence[IncidentReport]) -> None:
        self.incidents += reports


def completion_with(
    store: Any,
    clock: Any,
    ends: int,
    events: Events | None = None,
    **fields: Any,
) -> Completion:
    context = SimpleNamespace(
        name="a",
        claims=store,
        clock=clock,
        events=events or Events(),
        observer=Silent(),
    )
    completion = Completion(cast(NodeContext, context))
    for n in range(ends):
        add(completion, f"{n}", **fields)
    return completion


def add(completion: Completion, id: str, **fields: Any) -> None:
    claimed = ClaimedTask(id, 2, 1, 1, b"{}", "json", 0, False, None)
    run = Run(trigger(id, "send", queue="mail"), claimed, None)
    run.end(Finish(id, 2, "done", "DONE", 0, 1, **fields))
    completion.add(run)


@contextlib.asynccontextmanager
async def serving(completion: Completion) -> AsyncIterator[None]:
    """Run a completion."""
    running = asyncio.ensure_future(completion.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Picky:
    """A store that refuses the ends of some tasks, and has them in `written` otherwise."""

    def __init__(self, refuses: Mapping[str, Exception]) -> None:
        self.refuses = dict(refuses)
        self.written: list[str] = []
        self.sizes: list[int] = []
        """Numbers of ends in the writes that were accepted."""
        self.calls = 0

    async def complete(self, node: str, finishes: Sequence[Finish]) -> Completed:
        await asyncio.sleep(0)
        self.calls += 1
        for finish in finishes:
            if (error := self.refuses.get(finish.id)) is not None:
                raise error
        self.sizes.append(len(finishes))
        self.written += [finish.id for finish in finishes]
        return Completed([], None)


async def test_an_end_that_makes_the_store_unavailable_holds_back_no_other() -> None:
    """A trigger of the user may hang, until the server's time limit ends each try."""
    clock, events = VirtualClock(), Events()
    store = Picky({"7": StoreUnavailable("the connection was lost")})
    completion = completion_with(store, clock, 200, events=events)
    async with serving(completion):
        assert await clock.run(lambda: len(store.written) == 199, 600)
        for n in range(200, 400):
            add(completion, f"{n}")
            await clock.run(lambda: False, 0.1)
        assert await clock.run(lambda: len(store.written) == 399, 10)
        assert not events.deferred
        store.refuses.clear()
        assert await clock.run(lambda: "7" in store.written, 2)
    assert len(store.written) == 400


async def test_incidents_of_many_refused_ends_are_reported_as_long_as_the_store_refuses_them() -> (
    None
):
    clock, events = VirtualClock(), Events()
    ends = [f"{n}" for n in range(2 * MOST_REPORTED)]
    store = Picky(dict.fromkeys(ends, WriteRefused("a trigger")))
    completion = completion_with(store, clock, len(ends), events=events)
    async with serving(completion):
        for _ in range(20):
            events.incidents.clear()
            await clock.run(lambda: False, INCIDENT_ENDS / 2)
            assert {each.subject for each in events.incidents} == set(ends[:MOST_REPORTED])
        store.refuses = dict.fromkeys(ends[MOST_REPORTED:], WriteRefused("a trigger"))
        assert await clock.run(lambda: len(store.written) == MOST_REPORTED, 3 * len(ends))
        await clock.run(lambda: False, len(ends))
        events.incidents.clear()
        await clock.run(lambda: False, INCIDENT_ENDS / 2)
        assert {each.subject for each in events.incidents} == set(ends[MOST_REPORTED:])


@pytest.mark.parametrize("number", seeds(4))
async def test_all_ends_but_refused_ones_are_written_once_and_in_their_batch(number: int) -> None:
    """Draw which ends are refused, by which errors and for how long, and outages."""
    draw = random.Random(FIRST + number)
    clock, store, events = VirtualClock(), Drawn(draw), Events()
    completion = completion_with(store, clock, 0, events=events)
    ids: list[str] = []
    until: dict[str, float] = {}
    async with serving(completion):
        for _ in range(draw.randint(1, 12)):
            new = [f"{len(ids) + n}" for n in range(draw.choice((1, 7, 300, 2500)))]
            ids += new
            for id in draw.sample(new, min(len(new), draw.choice((0, 0, 1, 3, 40)))):
                until[id] = clock.monotonic() + draw.choice((0.5, 30.0, 900.0))
                store.refuses[id] = (draw.choice(REFUSALS), until[id])
            store.most = draw.choice((None, None, 40))
            store.clock = clock
            if draw.random() < 0.2:
                store.away_until = clock.monotonic() + draw.choice((0.3, 5.0, 200.0))
            for id in new:
                add(completion, id)
            first = set(new) - until.keys()
            left = max(0.0, store.away_until - clock.monotonic())
            # Ends that nobody refuses are written within their batch, as soon as the store is there.
            assert await clock.run(lambda: first <= store.written.keys(), left + 1.5), number
            await clock.run(lambda: False, draw.choice((0.0, 0.0, 5.0, 100.0)))
        store.away_until = 0.0
        last = max(until.values(), default=0.0)
        await clock.run(lambda: False, max(0.0, last - clock.monotonic()))
        assert await clock.run(lambda: completion.unwritten == 0, 10)
    assert all(times == 1 for times in store.written.values())
    assert store.written.keys() == set(ids)
    assert sorted(events.settled) == sorted(ids)
    assert set(events.deferred) <= until.keys()


REFUSALS = (
    RuntimeError("a trigger of the user"),
    BatchTooLarge("raise temp_file_limit"),
    WriteRefused("Redis refused a command"),
)


class Drawn:
    """A store that refuses some ends for some time, large batches, and all while it is away."""

    clock: VirtualClock

    def __init__(self, draw: random.Random) -> None:
        self.refuses: dict[str, tuple[Exception, float]] = {}
        """Errors, and the ends of the refusals in monotonic seconds, by task id."""
        self.most: int | None = None
        self.away_until = 0.0
        self.written = Counter[str]()
        self._draw = draw

    async def complete(self, node: str, finishes: Sequence[Finish]) -> Completed:
        await asyncio.sleep(0)
        now = self.clock.monotonic()
        if now < self.away_until:
            raise StoreUnavailable("the connection is gone")
        if self.most is not None and len(finishes) > self.most:
            raise BatchTooLarge("raise temp_file_limit")
        for finish in finishes:
            error, end = self.refuses.get(finish.id, (None, 0.0))
            if error is not None and now < end:
                raise error
        refused = [finish.id for finish in finishes if finish.id in self.written]
        self.written.update(finish.id for finish in finishes if finish.id not in refused)
        assert not refused, "written twice"
        return Completed([], None)
