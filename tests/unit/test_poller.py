"""A poller ends when it is cancelled, whatever its round raises meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.engine.poller import Poller
from fairlead.errors import StoreUnavailable


@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("wrong")])
async def test_a_cancellation_beside_an_error_of_a_group_ends_the_poller(error: Exception) -> None:
    begun, failing = asyncio.Event(), asyncio.Event()

    async def part() -> None:
        begun.set()
        await failing.wait()
        raise error

    async def round() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(part())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    polling = asyncio.create_task(Poller("p", 60.0, round).run(lambda name: True))
    await begun.wait()
    failing.set()
    await asyncio.sleep(0)  # the part has failed, and its group does not know it yet
    polling.cancel()
    ended, _ = await asyncio.wait([polling], timeout=5)
    polling.cancel()  # the next one is not forgotten
    assert ended and polling.cancelled()
