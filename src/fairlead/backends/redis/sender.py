"""Writes triggers to Redis from any thread, without blocking it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlead.backends.memory.notifier import drop_when_forked
from fairlead.backends.redis.sharded.endpoint import Endpoint
from fairlead.backends.redis.sharded.lanes import Lanes
from fairlead.backends.redis.sharded.running import run
from fairlead.backends.redis.trigger_messages import encode
from fairlead.model import Trigger

log = logging.getLogger("fairlead.redis")

MOST_WAITING = 50_000
"""Triggers that wait to be sent; what is beyond is left to the rows."""

ANSWER_SECONDS = 2.0
"""Redis answers within so long, or is away."""

FLUSH_SECONDS = 4.0
"""Whoever closes the application waits for so long until all is sent."""

_MOST_DELIVERIES = 1  # says nothing to a writer


class Sender:
    """Sends what has piled up, in a thread of its own. What cannot be sent is counted, and left to
    whoever keeps the rows."""

    def __init__(self, endpoint: Endpoint, counted: Callable[[str, int], None]) -> None:
        self._endpoint = endpoint
        self._counted = counted
        self.after_fork()
        drop_when_forked(self)
        weakref.finalize(self, _shut, weakref.ref(self))  # a script may end right after its submit

    def after_fork(self) -> None:
        # Thread and socket stay with the parent, and what waits is sent there.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: deque[Trigger] = deque()
        self._news = threading.Event()
        self._is_over = threading.Event()
        self._lanes: dict[str, Lanes] = {}
        self._trouble = ""

    def send(self, triggers: Sequence[Trigger]) -> None:
        """After the commit."""
        if len(self._waiting) + len(triggers) > MOST_WAITING:
            self._unsent("too many wait to be sent", len(triggers))
            return
        self._waiting.extend(triggers)
        if self._thread is None:
            self._start()
        self._news.set()

    def close(self) -> None:
        """Send what is left, for some seconds at most; it may be used again."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._is_over.set()
        if thread is None:
            return
        self._news.set()
        thread.join(FLUSH_SECONDS)
        if left := len(self._waiting):
            self._waiting.clear()
            self._unsent("the application was closed", left)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._is_over = threading.Event()
                redis = Redis.from_url(
                    self._endpoint.url,
                    socket_timeout=ANSWER_SECONDS,
                    socket_connect_timeout=ANSWER_SECONDS,
                    # Once more at once: the connection may have been lost long ago. To write twice
                    # writes once.
                    retry=Retry(NoBackoff(), 1),
                )
                self._thread = threading.Thread(
                    target=self._serve,
                    args=(redis, self._is_over),
                    name="fairlead-redis-sender",
                    daemon=True,
                )
                self._thread.start()

    def _serve(self, redis: Any, is_over: threading.Event) -> None:
        """In the thread."""
        with redis:
            while True:
                self._news.wait()
                self._news.clear()
                while self._waiting:
                    self._send_waiting(redis)
                if is_over.is_set():
                    return

    def _send_waiting(self, redis: Any) -> None:
        lanes: defaultdict[tuple[str, int], list[Trigger]] = defaultdict(list)
        with suppress(IndexError):
            for _ in range(len(self._waiting)):
                trigger = self._waiting.popleft()
                lanes[trigger.queue, trigger.priority].append(trigger)
        for (queue, priority), triggers in sorted(lanes.items(), key=lambda lane: lane[0][1]):
            try:
                if queue not in self._lanes:
                    self._lanes[queue] = self._endpoint.lanes(queue, _MOST_DELIVERIES)
                run(
                    redis,
                    queue,
                    self._lanes[queue].at(priority).put([encode(trigger) for trigger in triggers]),
                )
                self._trouble = ""
            except Exception as error:
                # Whatever it was: the thread must not end while others hand it triggers.
                self._unsent(f"{type(error).__name__}: {error}", len(triggers))

    def _unsent(self, why: str, count: int) -> None:
        self._counted("unsent_triggers", count)
        if why != self._trouble:
            self._trouble = why
            told = {"channel": self._endpoint.location, "error": why}
            log.warning("triggers were not sent; the keepers of their rows will", extra=told)


def _shut(sender: weakref.ref[Sender]) -> None:
    if (found := sender()) is not None:  # its thread keeps it alive
        found.close()
