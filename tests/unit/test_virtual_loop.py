"""The virtual event loop: time jumps when nothing else can proceed, and at no other moment."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.testing.contract.tasks import FACTS
from tests.virtual_loop import VirtualLoop, VirtualTime


def run(test: Callable[[VirtualTime], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine on a new virtual loop, with the time of the loop as argument."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(test(loop.clock))


@pytest.mark.parametrize("awaits", [True, False], ids=["awaited", "cancelled"])
def test_time_does_not_move_while_a_thread_works(awaits: bool) -> None:
    async def test(clock: VirtualTime) -> None:
        began, ended = clock.monotonic(), threading.Event()

        def work() -> float:
            time.sleep(0.1)
            ended.set()
            return clock.monotonic()

        sleeping = asyncio.create_task(asyncio.sleep(1.0))
        working = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.sleep(0)
        if awaits:
            assert await working == began
            assert clock.monotonic() == began
            assert not sleeping.done()
        else:
            working.cancel()
        await sleeping
        assert ended.is_set()
        assert clock.monotonic() == pytest.approx(began + 1.0)

    run(test)


def test_time_does_not_move_while_sqlite_writes(tmp_path: Path) -> None:
    async def test(clock: VirtualTime) -> None:
        app = App(f"sqlite:///{tmp_path / 'tasks.db'}", clock=clock)
        began = clock.monotonic()
        app.migrate()
        for n in range(30):
            async with asyncio.timeout(0.001):
                await app.store.register_node(f"node {n}", [], [], clock.now(), FACTS)
        assert clock.monotonic() == began
        await app.store.database.close_async()
        app.close()

    run(test)
