"""Live updates: one hub tells all viewers together, at most once a second, that something changed.

The hub costs nothing without viewers. A viewer's page then loads its own part again, from reads
that viewers share (`SharedReads`), so that many viewers of one screen cost as much as one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead.app import App
from fairlead.connections import connect
from fairlead.errors import FairleadError
from fairlead.ports.notification import Notification
from fairlead.ports.notifier import Notifier

LOOK_SECONDS = 1.0
"""Seconds between two looks of the hub, and so between two events of a viewer, at least."""
REST_SECONDS = 5.0
"""Seconds after which viewers hear of a change without a notification: tasks start and end without
one."""
LONGEST_SECONDS = 600.0
"""Seconds after which a stream ends; the browser opens a new one, and the guard checks it again."""
MOST_VIEWERS = 500
"""Greatest number of streams at once."""

_RECONNECT = b"retry: 3000\n\n"  # milliseconds

_log = logging.getLogger("fairlead.web")


class Changes:
    """Number of changes that the hub has announced, and when. No clock: the caller gives seconds of
    a clock that never goes back."""

    def __init__(self, look: float = LOOK_SECONDS, rest: float = REST_SECONDS) -> None:
        self.number = 0
        self._look_seconds = look
        self._rest_seconds = rest
        self._is_notified = False
        self._looked_at = self._changed_at = float("-inf")

    def add(self) -> None:
        """Record a notification."""
        self._is_notified = True

    def look(self, now: float) -> int:
        """Return the number of changes; it grows by one at most, once in LOOK_SECONDS for all
        viewers."""
        if now - self._looked_at >= self._look_seconds:
            self._looked_at = now
            if self._is_notified or now - self._changed_at >= self._rest_seconds:
                self._is_notified = False
                self._changed_at = now
                self.number += 1
        return self.number


class LiveHub:
    """Streams of events for the viewers of one console. Used in one event loop."""

    def __init__(self, app: App) -> None:
        self.changes = Changes()
        self.viewers = 0
        self._app = app
        self._notifier: Notifier | None = None
        self._is_ending = False

    @property
    def is_full(self) -> bool:
        """Whether no more viewers fit."""
        return self.viewers >= MOST_VIEWERS

    def end(self) -> None:
        """End all streams within a second, and let new ones end at once."""
        self._is_ending = True

    async def stream(self, *, is_limited: bool = False) -> AsyncIterator[bytes]:
        """Yield server-sent events named `changed`, until the viewer leaves, the hub ends or
        LONGEST_SECONDS have passed. `is_limited`: one every REST_SECONDS whatever happens, so that
        a viewer of some tenants learns nothing of what others do."""
        changes = Changes(REST_SECONDS, REST_SECONDS) if is_limited else self.changes
        async with self._viewing():
            yield _RECONNECT
            begin = time.monotonic()
            told = changes.look(begin)
            while not self._is_ending and time.monotonic() - begin < LONGEST_SECONDS:
                await asyncio.sleep(LOOK_SECONDS)
                number = changes.look(time.monotonic())
                if number != told:
                    told = number
                    yield b"event: changed\ndata: %d\n\n" % number

    @asynccontextmanager
    async def _viewing(self) -> AsyncIterator[None]:
        """Count a viewer; listen to notifications from the first viewer to the last."""
        self.viewers += 1
        try:
            if self.viewers == 1 and not self._is_ending:
                await self._listen()
            yield
        finally:
            self.viewers -= 1
            if self.viewers == 0 and self._notifier is not None:
                notifier, self._notifier = self._notifier, None
                await asyncio.shield(notifier.close())

    async def _listen(self) -> None:
        """Listen on a connection of the hub's own, because a worker in this process may listen on
        that of the application. Without one, viewers hear of changes every REST_SECONDS."""
        connector = self._app.connector
        try:
            made = connect(
                connector.settings,
                self._app.clock,
                {name: queue.partitions for name, queue in self._app.queues.items()},
                lambda _name, _number: None,
            )
            self._notifier = made.notifier
            await made.notifier.listen(self._on_notification)
        except FairleadError as error:
            _log.warning(
                "the console cannot listen for changes: it looks every %g s instead (%s)",
                REST_SECONDS,
                error,
            )

    def _on_notification(self, notification: Notification) -> None:
        if notification.peer is None:
            self.changes.add()
