"""Heartbeats for handlers that work longer than a claim lasts: they extend the claim again and
again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Self

from fairlead.errors import ConfigurationError, StoreUnavailable


class _Claims:
    """The claims that a heartbeat extends."""

    def __init__(self, ids: Sequence[str], every: float) -> None:
        if not every > 0:
            raise ConfigurationError(
                f"every={every}: more than 0 s, and well below the min_idle of the reclaimers"
            )
        self.lost: set[str] = set()
        """Ids of messages that belong to another consumer by now, or have left the queue. Check it
        before a step that must not happen twice."""
        self._ids = list(ids)
        self._every = every

    def _note(self, held: Sequence[str]) -> None:
        """Note which messages the last extension has found claimed."""
        self.lost.update(set(self._ids).difference(held))
        self._ids = list(held)


class Heartbeat(_Claims):
    """Extends the claims of a consumer within an `async with` block, from its start on."""

    def __init__(
        self,
        extend: Callable[[Sequence[str]], Awaitable[list[str]]],
        ids: Sequence[str],
        every: float,
    ) -> None:
        """`extend`: extends the claims of these messages, and returns the ids that are still held.
        `every`: seconds between two extensions."""
        super().__init__(ids, every)
        self._extend = extend

    async def __aenter__(self) -> Self:
        self._beating = asyncio.create_task(self._beat(), name="fairlead-heartbeat")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._beating.cancel()
        await asyncio.wait([self._beating])
        if kind is None and not self._beating.cancelled():
            self._beating.result()  # raises the error that has ended the heartbeat

    async def _beat(self) -> None:
        while self._ids:
            with suppress(StoreUnavailable):  # the next extension may come in time
                self._note(await self._extend(self._ids))
            await asyncio.sleep(self._every)


class SyncHeartbeat(_Claims):
    """Extends the claims of a consumer within a `with` block, in a thread."""

    def __init__(
        self, extend: Callable[[Sequence[str]], list[str]], ids: Sequence[str], every: float
    ) -> None:
        """`extend`: extends the claims of these messages, and returns the ids that are still held.
        `every`: seconds between two extensions."""
        super().__init__(ids, every)
        self._extend = extend
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._beating = threading.Thread(target=self._beat, name="fairlead-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._beating.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._beating.join()
        if kind is None and self._error is not None:
            raise self._error

    def _beat(self) -> None:
        try:
            while self._ids and not self._ended.is_set():
                with suppress(StoreUnavailable):  # the next extension may come in time
                    self._note(self._extend(self._ids))
                self._ended.wait(self._every)
        except Exception as error:
            self._error = error
