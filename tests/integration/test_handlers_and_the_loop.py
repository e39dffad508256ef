"""A handler that misuses the event loop of its worker hurts no other task and ends no node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import App, NoRetry, State
from fairlead.engine.executors.handler_tasks import guard_loop
from fairlead.engine.lifecycle import PartCancelled, SimplePart, serve
from fairlead.testing import running, settled
from tests.waiting import until

pytestmark = pytest.mark.virtual_time


class Misuses:
    """Ways in which a handler can reach the asyncio tasks of others; `spared` stay alone."""

    def __init__(self) -> None:
        self.spared = {asyncio.current_task()}

    def cancels_all(self) -> None:
        for task in asyncio.all_tasks() - self.spared:
            task.cancel()

    def cancels_all_three_times(self) -> None:
        for _ in range(3):
            self.cancels_all()

    def cancels_all_in_a_callback(self) -> None:
        asyncio.get_running_loop().call_soon(self.cancels_all)

    def cancels_all_in_a_timer_after_its_end(self) -> None:
        asyncio.get_running_loop().call_later(0.01, self.cancels_all)

    def cancels_all_in_a_child(self) -> None:
        async def child() -> None:
            self.cancels_all()

        self.child = asyncio.ensure_future(child())

    def closes_the_loop(self) -> None:
        asyncio.get_running_loop().close()

    def stops_the_loop(self) -> None:
        asyncio.get_running_loop().stop()

    def stops_the_loop_in_a_callback(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.stop)


MISUSES = [name for name in vars(Misuses) if name.split("_")[0] in ("cancels", "closes", "stops")]


@pytest.mark.parametrize("how", MISUSES)
async def test_a_handler_that_misuses_the_loop_hurts_no_other_task(app: App, how: str) -> None:
    guard_loop(asyncio.get_running_loop())
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    misuse: Callable[[], None] = getattr(Misuses(), how)
    release = asyncio.Event()

    @app.task(retry=NoRetry())
    async def odd() -> None:
        misuse()
        await asyncio.sleep(0.1)

    @app.task(retry=NoRetry())
    async def waiting() -> None:
        await release.wait()

    @app.task(retry=NoRetry())
    def plain(n: int) -> None: ...

    innocent = waiting.submit()
    async with running(app) as node:
        await until(lambda: node.in_flight)
        handle = odd.submit()
        await until(lambda: app.management.attempts(handle.id))
        await asyncio.sleep(20)  # several heartbeats, renewals and rounds of all parts
        release.set()
        others = [plain.submit(n=n) for n in range(20)]
        await settled(app, node)
        assert node.parts.context.ledger.acquired == 0
    assert {each.state() for each in (innocent, *others)} == {State.DONE}
    (attempt,) = app.management.attempts(handle.id)
    assert attempt.outcome in ("done", "failed")


class Endless(SimplePart):
    """A part that serves until it is cancelled."""

    task: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        self.task = asyncio.current_task()
        await asyncio.Event().wait()


async def test_a_part_that_is_cancelled_alone_ends_its_node_with_an_error() -> None:
    first, second = Endless(), Endless()
    serving = asyncio.create_task(serve([first, second], asyncio.Event()))
    await asyncio.sleep(0.01)
    assert first.task is not None
    first.task.cancel()
    with pytest.raises(ExceptionGroup) as caught:
        await serving
    (error,) = caught.value.exceptions
    assert isinstance(error, PartCancelled)
    assert "Endless" in str(error)
