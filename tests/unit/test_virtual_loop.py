"""The virtual event loop: time jumps when nothing else can proceed, and at no other moment."""

from __future__ import annotations

import asyncio
import random
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


def test_a_hundred_sleeps_of_an_hour_take_almost_no_real_time() -> None:
    async def test(clock: VirtualTime) -> tuple[float, int]:
        before, now = clock.monotonic(), clock.now()
        for _ in range(100):
            await asyncio.sleep(HOUR)
        return clock.monotonic() - before, clock.now() - now

    began = time.monotonic()
    passed, micros = run(test)
    assert time.monotonic() - began < 2.0
    assert passed == pytest.approx(100 * HOUR)
    assert micros == pytest.approx(100 * HOUR * 1e6, abs=1000)


def test_sleeps_timeouts_and_timers_follow_the_same_clock() -> None:
    async def test(clock: VirtualTime) -> None:
        began = clock.monotonic()
        loop = asyncio.get_running_loop()
        assert loop.time() == began
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HOUR):
                await asyncio.Event().wait()
        assert clock.monotonic() - began == pytest.approx(HOUR)
        called = asyncio.Event()
        loop.call_later(HOUR, called.set)
        await called.wait()
        assert clock.monotonic() - began == pytest.approx(2 * HOUR)
        await clock.sleep(HOUR)
        assert clock.monotonic() - began == pytest.approx(3 * HOUR)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), HOUR)
        assert clock.monotonic() - began == pytest.approx(4 * HOUR)

    run(test)


def test_timers_go_off_in_their_order_and_at_their_time() -> None:
    chance = random.Random(7)
    seconds = [chance.uniform(0, 1000) for _ in range(500)]

    async def test(clock: VirtualTime) -> list[tuple[float, float]]:
        began, found = clock.monotonic(), []

        async def one(wait: float) -> None:
            await asyncio.sleep(wait)
            found.append((wait, clock.monotonic() - began))

        await asyncio.gather(*map(one, seconds))
        return found

    first, second = run(test), run(test)
    assert first == second
    assert [wait for wait, _ in first] == sorted(seconds)
    assert all(at == pytest.approx(wait, abs=1e-6) for wait, at in first)


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


def test_time_does_not_pass_during_the_work_of_many_concurrent_threads() -> None:
    """Each step works in a thread, then sleeps; its total time is the sum of its sleeps."""

    async def test(clock: VirtualTime) -> None:
        began = clock.monotonic()

        async def steps(seed: int) -> None:
            chance, slept = random.Random(seed), 0.0
            for _ in range(20):
                await asyncio.to_thread(time.sleep, chance.random() / 1000)
                assert clock.monotonic() - began == pytest.approx(slept)
                wait = chance.choice([0.001, 1.0, 60.0])
                await asyncio.sleep(wait)
                slept += wait

        await asyncio.gather(*map(steps, range(20)))

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
