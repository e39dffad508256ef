"""A poller: a round repeated on one elected node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fairlead.errors import StoreUnavailable
from fairlead.pauses import event_or_pause

log = logging.getLogger("fairlead.pollers")


class Poller:
    """Run `round` every `interval` seconds while this node is elected for `name`; `round` may
    return a shorter time until the next one, in seconds. Call `replaced` when another node is
    elected."""

    def __init__(
        self,
        name: str,
        interval: float,
        round: Callable[[], Awaitable[float | None]],
        replaced: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._interval = interval
        self._round = round
        self._replaced = replaced
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """Begin the next round now."""
        self._poked.set()

    async def run(self, is_elected: Callable[[str], bool]) -> None:
        """Poll until cancelled, whenever `is_elected` returns True for the poller's name."""
        was_elected = False
        while True:
            pause = self._interval
            self._poked.clear()
            was_elected, before = is_elected(self.name), was_elected
            if before and not was_elected:
                self._replaced()
            if was_elected:
                try:
                    wanted = await self._round()
                    pause = (
                        self._interval if wanted is None else min(self._interval, max(0.0, wanted))
                    )
                except StoreUnavailable as error:
                    log.warning(
                        "poller waits for the store",
                        extra={"poller": self.name, "error": str(error)},
                    )
                except Exception:
                    log.exception("poller failed and will run again", extra={"poller": self.name})
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    # A round that ends with an error of a group forgets a cancellation meanwhile.
                    raise asyncio.CancelledError
            await event_or_pause(self._poked, pause)
