"""Stuck runs, and runs of nodes that died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Literal
from unittest.mock import AsyncMock

import pytest

from fairlead import (
    App,
    Processing,
    State,
)
from fairlead.engine.liveness import HEARTBEAT_SECONDS, SILENT_SECONDS
from fairlead.engine.pollers import Pollers
from fairlead.engine.settings import Intervals, NodeSettings
from fairlead.ports.notification import Notification
from fairlead.ports.observer import Silent
from fairlead.testing import drain, running
from fairlead.testing.contract.tasks import FACTS, wanted
from tests.attempts import outcomes, reaches
from tests.builders import idle

pytestmark = pytest.mark.virtual_time


def pollers(app: App, announce: Callable[[Notification], None]) -> Pollers:
    context = SimpleNamespace(
        cluster=app.store,
        ports=SimpleNamespace(tasks=app.store, tables=app.store),
        claims=app.store,
        channel=SimpleNamespace(announce=announce),
        observer=Silent(),
        clock=app.clock,
        settings=NodeSettings(name="here"),
        events=SimpleNamespace(on_incidents=lambda reports: None),
    )
    return Pollers(context, silent_nodes=AsyncMock())  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["resume", "error", "ignore"])
async def test_a_stuck_task_is_judged_by_the_policy_of_its_own_application(
    app: App, what: Literal["resume", "error", "ignore"]
) -> None:
    """The poller knows no handlers; the claim stores the policy of the task."""
    gate = asyncio.Event()

    @app.task(processing=Processing(max_stuck=0.05, when_stuck=what), on_failure="skip")
    async def slow() -> None:
        await gate.wait()

    handle = slow.options(ordering_key="k").submit()
    following = slow.options(ordering_key="k").submit()
    async with running(app, intervals=Intervals(stuck=1e9), concurrency=1) as node:
        await reaches(app, handle, State.PROCESSING)
        await asyncio.sleep(0.1)
        await pollers(app, node.parts.context.channel.announce).stuck()
        state = handle.state()
        gate.set()
        if what == "error":  # "skip": the next task of the key runs
            await reaches(app, following, State.DONE)
    expected = {
        "resume": State.SUBMITTED,  # the stuck run keeps the only slot
        "error": State.ERROR,
        "ignore": State.PROCESSING,
    }
    assert state == expected[what]


def ghost_beats(app: App, ago_seconds: float) -> None:
    """Register the node `ghost` with one heartbeat, `ago_seconds` ago."""

    def steps():
        at = app.clock.now() - round(ago_seconds * 1e6)
        facts = (FACTS.slots, FACTS.version, FACTS.python)
        yield app.store.statement("register_node", "ghost", at, "[]", "[]", "", *facts)
        yield from app.store._first_heartbeat("ghost", at)

    app.store.database.run(steps())


async def test_tasks_of_a_lost_node_are_resumed_once(app: App) -> None:
    runs: list[int] = []

    @app.task
    async def note(n: int) -> None:
        runs.append(n)

    handles = note.submit_many([{"n": n} for n in range(50)])
    ghost_beats(app, 60)
    now = app.clock.now()
    assert len(await app.store.claim("ghost", wanted(handles), now, {})) == 50
    await drain(app)
    assert sorted(runs) == list(range(50))
    assert {tuple(outcomes(app, handle)) for handle in handles} == {("lost", "done")}
    assert app.management.nodes() == []


async def test_the_start_of_a_node_changes_no_task_of_a_living_node(app: App) -> None:
    @app.task(processing=Processing(when_stuck="error"))
    async def note(n: int) -> None: ...

    held = note.submit(n=1)
    ghost_beats(app, 0)
    now = app.clock.now()
    assert len(await app.store.claim("ghost", wanted([held]), now, {})) == 1
    other = note.submit(n=2)
    async with running(app):
        await reaches(app, other, State.DONE)
    record = held.record()
    assert (record.state, record.node, record.version) == (State.PROCESSING, "ghost", 2)


async def test_a_node_that_starts_after_an_outage_waits_for_the_heartbeats_of_the_others(
    app: App,
) -> None:
    """All nodes were silent during the outage, and the others do not notice its end at once."""
    note = idle(app, "note")
    held = note.submit()
    ghost_beats(app, 60)
    assert await app.store.claim("ghost", wanted([held]), app.clock.now(), {})
    async with running(app):
        await asyncio.sleep(SILENT_SECONDS - HEARTBEAT_SECONDS)
        for _ in range(3):
            assert await app.store.heartbeat("ghost", app.clock.now())
            await asyncio.sleep(HEARTBEAT_SECONDS)
        assert held.state() is State.PROCESSING
        await reaches(app, held, State.DONE)  # the ghost is silent from now on
    assert outcomes(app, held) == ["lost", "done"]
