"""A poller: a round repeated on one elected node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fairlead.errors import StoreUnavailable

log = logging.getLogger("fairlead.pollers")


class Poller:
    """Run `round` every `interval` seconds while this node is elected for `name`; `round` may
    return fewer seconds until the next one."""

    def __init__(
        self, name: str, interval: float, round: Callable[[], Awaitable[float | None]]
    ) -> None:
        self.name = name
        self._interval = interval
        self._round = round
        self._look = asyncio.Event()

    def poke(self) -> None:
        """Begin the next round now."""
        self._look.set()

    async def run(self, is_elected: Callable[[str], bool]) -> None:
        """Poll until cancelled, whenever `is_elected` returns True for the poller's name."""
        while True:
            pause = self._interval
            self._look.clear()
            if is_elected(self.name):
                try:
                    sooner = await self._round()
                    pause = (
                        self._interval if sooner is None else min(self._interval, max(0.0, sooner))
                    )
                except StoreUnavailable as error:
                    log.warning(
                        "poller waits for the store",
                        extra={"poller": self.name, "error": str(error)},
                    )
                except Exception:
                    log.exception("poller failed and will run again", extra={"poller": self.name})
            try:
                async with asyncio.timeout(pause):
                    await self._look.wait()
            except TimeoutError:
                pass
