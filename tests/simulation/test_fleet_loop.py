"""The loop of simulated processes."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.simulation.fleet_loop import FleetLoop
from tests.simulation.fleet_store import Link, Machine
from tests.virtual_loop import VirtualTime


def test_a_stopped_process_keeps_its_lock_and_runs_nothing_until_it_proceeds() -> None:
    clock, ran = VirtualTime(0), []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1.0)
            ran.append(clock.monotonic())

    async def main() -> None:
        machine = Machine(random.Random(1))
        link = Link(machine)
        held, other = (
            machine.connections(link).presence,
            machine.connections(Link(machine)).presence,
        )
        assert held is not None and other is not None
        await held.hold("node", lambda: None)
        began = clock.monotonic()
        ticking = asyncio.get_running_loop().create_task(tick(), context=link.process.context)
        await asyncio.sleep(2.5)
        link.process.stop()
        await asyncio.sleep(10.0)
        assert await other.released(["node"]) == set()
        link.process.proceed()
        await asyncio.sleep(1.7)
        ticking.cancel()
        assert [at - began for at in ran] == [1.0, 2.0, 12.5, 13.5]

    with asyncio.Runner(loop_factory=lambda: FleetLoop(clock)) as runner:
        runner.run(main())


def test_a_run_that_never_ends_is_reported() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def wait() -> None:
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=lambda: FleetLoop(VirtualTime(0))) as runner:
        with pytest.raises(RuntimeError, match="time stands still"):
            runner.run(spin())
    with asyncio.Runner(loop_factory=lambda: FleetLoop(VirtualTime(0))) as runner:
        with pytest.raises(RuntimeError, match="nothing is left"):
            runner.run(wait())
