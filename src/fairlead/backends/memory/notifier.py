"""The notifier inside one process: its listeners, and its threads that wait for tasks to finish."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from fairlead.ports.notification import LOOK_EVERYWHERE, Notification

log = logging.getLogger("fairlead.notifier")

OnNotification = Callable[[Notification], None]

LINGER = 10.0
"""Seconds an ear stays open after the last thread stopped waiting: the next one finds it listening
already."""

_REMEMBERED = 1000
"""Finished tasks remembered, for threads that looked just before the wake and begin to wait just
after it."""

_FIRST_RETRY, _LAST_RETRY = 0.1, 5.0  # seconds


class MemoryNotifier:
    """See `fairlead.ports.trigger_channel.Notifier`. Reaches the notifiers of this process that
    were made beside each other."""

    def __init__(self, beside: MemoryNotifier | None = None) -> None:
        self._tower: _Tower = beside._tower if beside is not None else _Tower()

    def notify(self, notification: Notification) -> None:
        self._tower.notify(notification)

    async def listen(self, on_notification: OnNotification) -> None:
        self._tower.listeners[self] = (asyncio.get_running_loop(), on_notification)

    async def close(self) -> None:
        self._tower.listeners.pop(self, None)

    def wait_finished(self, task_id: str, timeout: float) -> None:
        self._tower.waiting.wait(task_id, timeout)


class _Tower:
    """What notifiers beside each other share."""

    def __init__(self) -> None:
        self.listeners: dict[MemoryNotifier, tuple[asyncio.AbstractEventLoop, OnNotification]] = {}
        self.waiting = WaitingThreads()

    def notify(self, notification: Notification) -> None:
        for notifier, (loop, on_notification) in list(self.listeners.items()):
            try:
                loop.call_soon_threadsafe(self._deliver, notifier, on_notification, notification)
            except RuntimeError:  # its loop was closed without closing the notifier
                self.listeners.pop(notifier, None)
        self.waiting.tell(notification)

    def _deliver(
        self, notifier: MemoryNotifier, on_notification: OnNotification, notification: Notification
    ) -> None:
        if notifier in self.listeners:  # not closed since
            on_notification(notification)


class Listener(Protocol):
    """Hears, in a thread, what notifiers of other processes ring."""

    def hear(self, timeout: float) -> Sequence[Notification]:
        """The next wakes, none after `timeout` seconds of silence. Raises any Exception when the
        ear is lost."""

    def close(self) -> None:
        """Stop hearing."""


class WaitingThreads:
    """The threads of this process that wait for tasks to finish, and the one ear they share.

    The first thread that waits has the ear opened, by a thread of its own; it stays open for LINGER
    seconds after the last. What was rung before it opened was not heard, so whoever waits at that
    moment is sent to look once.
    """

    def __init__(self, open_listener: Callable[[], Listener] | None = None) -> None:
        self._open_listener = open_listener
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[threading.Event]] = {}
        self._finished: dict[str, None] = {}
        self._listener: threading.Thread | None = None
        self._is_closing = False

    def wait(self, task_id: str, timeout: float) -> None:
        """Block until the task may have finished, or `timeout` seconds have passed."""
        event = threading.Event()
        with self._lock:
            if task_id in self._finished:
                del self._finished[
                    task_id
                ]  # once only: whoever comes again has seen that it was not the end
                return
            self._is_closing = False
            self._waiting.setdefault(task_id, []).append(event)
            if self._listener is None and self._open_listener is not None:
                self._listener = threading.Thread(
                    target=self._listen,
                    args=(self._open_listener,),
                    name="fairlead-waiting",
                    daemon=True,
                )
                self._listener.start()
        event.wait(timeout)
        with self._lock:
            events = self._waiting.get(task_id, [])
            with suppress(ValueError):
                events.remove(event)
            if not events:
                self._waiting.pop(task_id, None)

    def close(self) -> None:
        """Let the ear go, within a second, unless somebody waits."""
        with self._lock:
            self._is_closing = True

    def tell(self, notification: Notification) -> None:
        """Let those threads go on whose tasks may have finished."""
        if not (notification.finished or notification.is_empty):
            return
        with self._lock:
            for task_id in notification.finished:
                self._finished[task_id] = None
            while len(self._finished) > _REMEMBERED:
                del self._finished[next(iter(self._finished))]
            for task_id in list(self._waiting) if notification.is_empty else notification.finished:
                if events := self._waiting.pop(task_id, None):
                    self._finished.pop(task_id, None)
                    for event in events:
                        event.set()

    def _listen(self, open_listener: Callable[[], Listener]) -> None:
        trouble = ""
        delay = _FIRST_RETRY
        while True:
            try:
                self._hear_until_unused(open_listener())
                return
            except Exception as error:
                # Whatever it was: threads that wait must not be left deaf. Their own time-outs end
                # their waiting.
                if self._is_unused_for(0.0):
                    return
                if (reason := f"{type(error).__name__}: {error}") != trouble:
                    log.warning(
                        "cannot hear which tasks finish, trying again", extra={"error": reason}
                    )
                    trouble = reason
                else:
                    delay = min(delay * 2, _LAST_RETRY)
            if self._is_unused_for(delay):
                return

    def _hear_until_unused(self, listener: Listener) -> None:
        try:
            self.tell(LOOK_EVERYWHERE)
            used_at = time.monotonic()
            while True:
                for notification in listener.hear(1.0):
                    self.tell(notification)
                with self._lock:
                    now = time.monotonic()
                    if self._waiting:
                        used_at = now
                    elif self._is_closing or now - used_at > LINGER:
                        self._listener = None
                        return
        finally:
            listener.close()

    def _is_unused_for(self, seconds: float) -> bool:
        """Wait; True when nobody needs an ear after that."""
        threading.Event().wait(seconds)
        with self._lock:
            if not self._waiting:
                self._listener = None
            return self._listener is None


class Forkable(Protocol):
    """Something that a forked child must let go of: locks, threads and file descriptors that are
    its parent's."""

    def after_fork(self) -> None:
        """Called in the child, before anything else runs there."""


_forkable: weakref.WeakSet[Forkable] = weakref.WeakSet()


def drop_when_forked(one: Forkable) -> None:
    """Call its `after_fork` in every forked child, for as long as it lives."""
    _forkable.add(one)


def _after_fork() -> None:
    for one in list(_forkable):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
