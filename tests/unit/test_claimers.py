"""Claimers, which claim the tasks of one kind of queue each: the choice among them, the order of
their calls, and claims and rounds of pollers that a server refuses for their size."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from fairlead.engine.claimers import TaskClaimer
from fairlead.engine.liveness import Expiry
from fairlead.engine.pollers import Pollers
from fairlead.engine.run import Run
from fairlead.errors import BatchTooLarge
from fairlead.model import ClaimedTask, Trigger
from fairlead.ports.observer import Silent
from fairlead.ports.task_store import Woken
from tests.builders import trigger
from tests.simulation.virtual_clock import VirtualClock


class Limited:
    """A store that claims at most `most` tasks at once, and refuses rounds of more rows."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.sizes: list[int] = []
        self.rows = 1000

    def _check(self, count: int) -> None:
        self.sizes.append(count)
        if count > self.most:
            raise BatchTooLarge("raise temp_file_limit")

    async def claim(self, node: str, triggers: Sequence[Trigger], *_: Any) -> list[ClaimedTask]:
        self._check(len(triggers))
        return [
            ClaimedTask(each.id, each.version + 1, 1, 1, b"{}", "json", 0, False, None)
            for each in triggers
        ]

    async def wake_due(self, now: int, limit: int) -> Woken:
        self._check(limit)
        moved = min(limit, self.rows)
        self.rows -= moved
        return Woken(moved, None)

    async def next_due(self) -> int | None:
        return 0 if self.rows else None


def make_claimer(store: object) -> tuple[TaskClaimer, list[str]]:
    """Return a claimer, and the ids of the runs that it drops."""
    back: list[str] = []
    context = SimpleNamespace(
        name="a",
        claims=store,
        ports=SimpleNamespace(tables=None),
        clock=VirtualClock(),
        served=SimpleNamespace(handlers={}),
        notes=None,
        heartbeats=Expiry(VirtualClock()),
        in_flight={},
        observer=Silent(),
        channel=SimpleNamespace(redeliver=lambda: None),
        ledger=SimpleNamespace(cancel=lambda trigger, now: []),
        table=SimpleNamespace(freed=lambda limits: None, ended=lambda trigger, cost: None),
        events=SimpleNamespace(
            on_incidents=lambda reports: None,
            on_ready=lambda: None,
            on_settled=lambda runs: back.extend(each.claimed.id for each in runs),
            on_claim_unknown=lambda: None,
        ),
    )
    sources = SimpleNamespace(
        taken=lambda triggers: None,
        claim_ended=lambda triggers: None,
    )
    context.heartbeats.extend(context.heartbeats.now(), 60.0)
    return TaskClaimer(context, sources, None), back  # type: ignore[arg-type]


async def test_a_claim_that_the_limits_of_the_server_refuse_is_made_in_smaller_ones() -> None:
    store = Limited(30)
    claimer, _ = make_claimer(store)
    triggers = [trigger(n) for n in range(200)]
    runs = await claimer.claim(triggers, True)
    assert [each.claimed.id for each in runs] == [f"{n}" for n in range(200)]
    assert sum(size > 30 for size in store.sizes) <= 6
    store.sizes.clear()
    await claimer.claim(triggers[:60], True)
    assert sum(size > 30 for size in store.sizes) <= 1


async def test_a_round_of_a_poller_that_the_limits_of_the_server_refuse_becomes_smaller() -> None:
    store = Limited(100)
    context = SimpleNamespace(
        ports=SimpleNamespace(tasks=store, tables=None),
        claims=store,
        channel=SimpleNamespace(announce=lambda notification: None),
        clock=VirtualClock(),
    )
    pollers = Pollers(context, None)  # type: ignore[arg-type]
    assert await pollers.due() is None
    assert store.rows == 0
    assert sum(size > 100 for size in store.sizes) <= 6


async def test_a_store_that_refuses_to_take_tasks_back_does_not_keep_a_node_from_stopping() -> None:
    class Store:
        async def hand_back(self, node: str, held: Sequence[tuple[str, int]]) -> None:
            raise ValueError("no changes before Monday")

    claimer, settled = make_claimer(Store())
    task = ClaimedTask("1", 2, 1, 1, b"{}", "json", 0, False, None)
    run = Run(trigger(1), task, None, True)
    await claimer.hand_back([run])
    assert settled == ["1"]
