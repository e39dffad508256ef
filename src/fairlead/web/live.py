"""Live updates: one hub tells all viewers together, at most once a second, that something changed.

The hub costs nothing without viewers. A viewer's page then loads its own part again, from reads
that viewers share (`SharedReads`), so that many viewers of one screen cost as much as one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from fairlead.app import App
from fairlead.connections import connect
from fairlead.errors import FairleadError
from fairlead.ports.notification import Notification
from fairlead.ports.notifier import Notifier

LOOK_SECONDS = 1.0
"""Seconds between two refreshes of the hub, and so between two events of a viewer, at least."""
REST_SECONDS = 5.0
"""Seconds between two reads of the store's mark, by which viewers hear of ends and incidents, which
have no notification."""
LONGEST_REST_SECONDS = 60.0
"""Seconds after which open pages are loaded again though nothing has changed."""
VIEWER_SECONDS = 0.5
"""Seconds between two events for each viewer, so that many viewers beside busy workers do not take
the processor from them."""
LONGEST_PACE_SECONDS = 30.0
"""Seconds between two events of a busy application, at most."""
LONGEST_SECONDS = 600.0
"""Seconds after which a stream ends; the browser opens a new one, and the guard checks it again."""
MOST_VIEWERS = 500
"""Greatest number of streams at once."""

_RECONNECT = b"retry: 3000\n\n"  # milliseconds

_log = logging.getLogger("fairlead.web")


class Changes:
    """Number of changes that the hub has announced, and when. No clock: the caller gives seconds of
    a clock that never goes back."""

    def __init__(
        self,
        look: float = LOOK_SECONDS,
        rest: float = REST_SECONDS,
        longest_rest: float = LONGEST_REST_SECONDS,
    ) -> None:
        self.number = 0
        self.is_pending = False
        """Whether a change is known that was not announced."""
        self._look_seconds = look
        self._rest_seconds = rest
        self._longest_rest_seconds = longest_rest
        self._mark: object = None
        self._changed_at = self._again_at = float("-inf")

    def add(self) -> None:
        """Record a notification."""
        self.is_pending = True

    def see(self, mark: object) -> None:
        """Record a mark of the store; one that differs from the last is a change."""
        if mark != self._mark and self._mark is not None:
            self.is_pending = True
        self._mark = mark

    def refresh(self, now: float, viewers: int = 1) -> int:
        """Return the number of changes; it grows by one at most, once for all viewers in
        LOOK_SECONDS and VIEWER_SECONDS for each viewer. It grows again REST_SECONDS after a change,
        because a task may have started since, and LONGEST_REST_SECONDS after the last."""
        pace = max(self._look_seconds, min(VIEWER_SECONDS * viewers, LONGEST_PACE_SECONDS))
        if now - self._changed_at >= pace and (self.is_pending or now >= self._again_at):
            rest = self._rest_seconds if self.is_pending else self._longest_rest_seconds
            self._again_at = now + rest
            self._changed_at = now
            self.is_pending = False
            self.number += 1
        return self.number


class LiveHub:
    """Streams of events for the viewers of one console. Used in one event loop."""

    def __init__(self, app: App) -> None:
        self.changes = Changes()
        self.viewers = 0
        self.streams = 0
        """Responses that stream or are about to; `viewers` counts those that have begun."""
        self.most_viewers = MOST_VIEWERS
        """Greatest number of streams at once; a server with fewer connections sets fewer."""
        self._app = app
        self._notifier: Notifier | None = None
        self._watch: asyncio.Task[None] | None = None
        self._is_ending = False

    @property
    def is_full(self) -> bool:
        """Whether no more viewers fit."""
        return self.streams >= self.most_viewers

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a response from before its head, so that a burst of requests finds the hub full."""
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    def end(self) -> None:
        """End all streams within a second, and let new ones end at once."""
        self._is_ending = True

    async def stream(self, *, is_limited: bool = False) -> AsyncIterator[bytes]:
        """Yield server-sent events named `changed`, until the viewer leaves, the hub ends or
        LONGEST_SECONDS have passed. `is_limited`: one every REST_SECONDS whatever happens, so that
        a viewer of some tenants learns nothing of what others do."""
        changes = Changes(REST_SECONDS, REST_SECONDS, REST_SECONDS) if is_limited else self.changes

        def viewers() -> int:
            return 1 if is_limited else self.viewers

        async with self._viewing():
            yield _RECONNECT
            begin = time.monotonic()
            sent = changes.refresh(begin, viewers())
            while not self._is_ending and time.monotonic() - begin < LONGEST_SECONDS:
                await asyncio.sleep(LOOK_SECONDS)
                number = changes.refresh(time.monotonic(), viewers())
                if number != sent:
                    sent = number
                    yield b"event: changed\ndata: %d\n\n" % number

    @asynccontextmanager
    async def _viewing(self) -> AsyncIterator[None]:
        """Count a viewer; listen to notifications from the first viewer to the last."""
        self.viewers += 1
        try:
            if self.viewers == 1 and not self._is_ending:
                self._watch = asyncio.create_task(self._watch_mark())
                await self._listen()
            yield
        finally:
            self.viewers -= 1
            if self.viewers == 0:
                await asyncio.shield(self._stop())

    async def _stop(self) -> None:
        """Stop to listen and to read marks."""
        watch, self._watch = self._watch, None
        notifier, self._notifier = self._notifier, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])
        if notifier is not None:
            await notifier.close()

    async def _watch_mark(self) -> None:
        """Read the store's mark every REST_SECONDS, unless a change is known already."""
        while True:
            if not self.changes.is_pending:
                self.changes.see(await asyncio.to_thread(self._mark))
            await asyncio.sleep(REST_SECONDS)

    def _mark(self) -> object:
        """Return the store's mark; a new one each time if the store has none or cannot be read."""
        try:
            context = self._app.operate_context
            return context.sql_store.database.read_now(context.reads.mark())
        except FairleadError:
            return object()

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
                "the console cannot listen for changes: it reads every %g s instead (%s)",
                REST_SECONDS,
                error,
            )

    def _on_notification(self, notification: Notification) -> None:
        if notification.peer is None:
            self.changes.add()
