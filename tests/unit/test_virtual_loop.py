"""The virtual event loop: time jumps when nothing else can proceed, and at no other moment."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fairlead import App, Exponential, State, current_task
from fairlead.testing import drain
from fairlead.testing.contract.tasks import FACTS
from tests.virtual_loop import VirtualLoop, VirtualTime, virtual_system_clock

HOUR = 3600.0


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


def test_readable_sockets_come_before_any_timer() -> None:
    async def test(clock: VirtualTime) -> None:
        began = clock.monotonic()
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        for n in range(50):
            there.sendall(bytes([n]))
            async with asyncio.timeout(0.001):
                assert await reader.readexactly(1) == bytes([n])
        assert clock.monotonic() == began
        writer.close()
        there.close()

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


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_waits_for_retries_take_almost_no_real_time(tmp_path: Path, kind: str) -> None:
    began = time.monotonic()
    ran: list[float] = []

    async def test(clock: VirtualTime) -> None:
        with virtual_system_clock(clock):
            app = App(f"sqlite:///{tmp_path / 'tasks.db'}")
            app.migrate()

            def fail() -> None:
                task = current_task()
                assert task is not None
                ran.append(clock.monotonic())
                if task.attempt < 4:
                    raise ConnectionError("the partner is down")

            retry = Exponential(max_attempts=4, first=20.0, factor=2.0, jitter=0)
            if kind == "async":

                @app.task(retry=retry)
                async def pay() -> None:
                    fail()

            else:

                @app.task(retry=retry)
                def pay() -> None:
                    fail()

            handle = pay.submit()
            await drain(app, timeout=HOUR)
            assert handle.state() == State.DONE
            app.close()

    run(test)
    waits = [after - before for before, after in zip(ran, ran[1:], strict=False)]
    assert len(waits) == 3
    for wait, least in zip(waits, (20, 40, 80), strict=True):
        assert least - 0.001 <= wait < least + 2
    assert time.monotonic() - began < 20.0
