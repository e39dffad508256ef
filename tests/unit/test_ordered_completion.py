"""Ends of runs of an ordered queue, when the limits of the server refuse large batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.errors import BatchTooLarge
from fairlead.ordered.completion import OrderedCompletion


def written_by(most: int, ends: int) -> tuple[list[int], list[int]]:
    """Return the sizes of the writes, and the ends in the order in which they were written by a
    store that takes at most `most` at once."""
    sizes: list[int] = []
    written: list[Any] = []

    async def write(batch: Sequence[Any]) -> None:
        sizes.append(len(batch))
        if len(batch) > most:
            raise BatchTooLarge("raise temp_file_limit")

    async def run() -> None:
        all_written = asyncio.Event()

        def on_written(batch: Sequence[Any]) -> None:
            written.extend(batch)
            if len(written) == ends:
                all_written.set()

        completion = OrderedCompletion(on_written)
        for end in range(ends):
            completion.add(end)  # type: ignore[arg-type]
        running = asyncio.ensure_future(completion.run(write))
        await asyncio.wait(
            [running, asyncio.ensure_future(all_written.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        if running.done():
            running.result()
        running.cancel()

    asyncio.run(run())
    return sizes, written


def test_ends_that_the_server_refuses_together_are_written_in_smaller_batches() -> None:
    sizes, written = written_by(most=60, ends=500)
    assert written == [*range(500)]
    assert sizes == [500, 250, 125, 62, *[31] * 16, 4]


def test_an_end_that_the_server_refuses_alone_ends_the_tenure() -> None:
    with pytest.raises(BatchTooLarge):
        written_by(most=0, ends=3)
