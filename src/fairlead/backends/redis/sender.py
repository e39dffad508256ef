"""The sender of triggers to Redis. Any thread may call `send`, which never blocks."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlead.backends.memory.notifier import drop_when_forked
from fairlead.backends.redis.sharded.endpoint import RedisEndpoint
from fairlead.backends.redis.sharded.lanes import Lanes
from fairlead.backends.redis.sharded.running import run
from fairlead.backends.redis.trigger_messages import encode
from fairlead.model import Trigger

log = logging.getLogger("fairlead.redis")

MOST_WAITING = 50_000
"""Greatest number of triggers that wait to be sent. Further triggers are not sent from here: the
owner of their partition compares its rows with Redis and sends missing triggers."""

RESPONSE_SECONDS = 2.0
"""Seconds without a response after which Redis is unavailable."""

FLUSH_SECONDS = 4.0
"""Seconds that closing the application waits for the last triggers to be sent."""

_MOST_DELIVERIES = 1  # required by `lanes`, but only readers count deliveries


class RedisSender:
    """Send waiting triggers in a separate thread. Triggers that cannot be sent are counted, and the
    owner of their partition sends them later."""

    def __init__(self, endpoint: RedisEndpoint, counted: Callable[[str, int], None]) -> None:
        self._endpoint = endpoint
        self._counted = counted
        self.after_fork()
        drop_when_forked(self)
        weakref.finalize(self, _close, weakref.ref(self))  # a script may end right after its submit

    def after_fork(self) -> None:
        # Thread and socket stay with the parent process, which sends the waiting triggers.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: deque[Trigger] = deque()
        self._has_work = threading.Event()
        self._is_over = threading.Event()
        self._lanes: dict[str, Lanes] = {}
        self._last_error = ""

    def send(self, triggers: Sequence[Trigger]) -> None:
        """Queue triggers of a committed submit."""
        if len(self._waiting) + len(triggers) > MOST_WAITING:
            self._unsent("too many wait to be sent", len(triggers))
            return
        self._waiting.extend(triggers)
        if self._thread is None:
            self._start()
        self._has_work.set()

    def close(self) -> None:
        """Send the waiting triggers, for at most FLUSH_SECONDS. The sender may be used again."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._is_over.set()
        if thread is None:
            return
        self._has_work.set()
        thread.join(FLUSH_SECONDS)
        if left := len(self._waiting):
            self._waiting.clear()
            self._unsent("the application was closed", left)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._is_over = threading.Event()
                redis = self._endpoint.server.client(
                    socket_timeout=RESPONSE_SECONDS,
                    socket_connect_timeout=RESPONSE_SECONDS,
                    # One retry, since an idle connection may have been lost. Writing a trigger
                    # twice is harmless.
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
        """Send until the sender is closed. Runs in the thread."""
        with redis:
            while True:
                self._has_work.wait()
                self._has_work.clear()
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
                self._last_error = ""
            except Exception as error:
                # Catch everything: the thread must not end while others hand it triggers.
                self._unsent(f"{type(error).__name__}: {error}", len(triggers))

    def _unsent(self, why: str, count: int) -> None:
        self._counted("unsent_triggers", count)
        if why != self._last_error:
            self._last_error = why
            fields = {"channel": self._endpoint.location, "error": why}
            log.warning(
                "triggers were not sent; owners of their partitions send them later", extra=fields
            )


def _close(sender: weakref.ref[RedisSender]) -> None:
    if (found := sender()) is not None:  # the thread keeps its sender alive
        found.close()
