"""The notifier inside one process: listeners, and threads that wait for tasks to finish."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

from fairlead.forks import drop_when_forked
from fairlead.model.peer import PeerMessage, recipient_of
from fairlead.ports.notification import ANY_CHANGE, Notification

log = logging.getLogger("fairlead.notifier")

OnNotification = Callable[[Notification], None]
OnFinished = Callable[[Collection[str]], None]

LINGER = 10.0
"""Seconds that a listener stays open after the last thread stopped waiting, so that the next thread
need not open another."""

_FIRST_RETRY, _LAST_RETRY = 0.1, 5.0  # seconds
_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.25
"""Seconds between two reads of a `PollingListener`: the first pause, and the longest one."""


_Listener = tuple[asyncio.AbstractEventLoop, OnNotification, str | None]
"""Event loop, callback, and node if the listener is one."""


class MemoryNotifier:
    """A `fairlead.ports.notifier.Notifier` inside one process.

    A notifier made with `beside` reaches the same listeners as that one.
    """

    def __init__(self, beside: MemoryNotifier | None = None) -> None:
        self._hub: _Hub = beside._hub if beside is not None else _Hub()

    def notify(self, notification: Notification) -> None:
        self._hub.notify(notification)

    def send(self, message: PeerMessage) -> None:
        self._hub.send(message)

    async def listen(self, on_notification: OnNotification, node: str | None = None) -> None:
        self._hub.listeners[self] = (asyncio.get_running_loop(), on_notification, node)

    async def close(self) -> None:
        self._hub.listeners.pop(self, None)

    def watch_finished(self, on_finished: OnFinished) -> Callable[[], None]:
        return self._hub.finishes.watch(on_finished)


class _Hub:
    """Listeners and watchers that several notifiers share."""

    def __init__(self) -> None:
        self.listeners: dict[MemoryNotifier, _Listener] = {}
        self.finishes = FinishWatchers()

    def notify(self, notification: Notification) -> None:
        for notifier in list(self.listeners):
            self._post(notifier, notification)
        self.finishes.notify(notification)

    def send(self, message: PeerMessage) -> None:
        recipient = recipient_of(message)
        for notifier, (_, _, node) in list(self.listeners.items()):
            if node is not None and recipient in (None, node):
                self._post(notifier, Notification(peer=message))

    def _post(self, notifier: MemoryNotifier, notification: Notification) -> None:
        loop, on_notification, _ = self.listeners[notifier]
        try:
            loop.call_soon_threadsafe(self._deliver, notifier, on_notification, notification)
        except RuntimeError:  # the loop was closed before the notifier
            self.listeners.pop(notifier, None)

    def _deliver(
        self, notifier: MemoryNotifier, on_notification: OnNotification, notification: Notification
    ) -> None:
        if notifier in self.listeners:  # unless it was closed meanwhile
            on_notification(notification)


class ThreadListener(Protocol):
    """Receiver, in a thread, of notifications from other processes."""

    def receive(self, timeout: float) -> Sequence[Notification]:
        """Return the next notifications, or none after `timeout` seconds without one.

        Raise any Exception if the listener has lost its connection.
        """

    def close(self) -> None:
        """Stop listening."""


class PollingListener:
    """A `ThreadListener` that lets the waiting threads read their tasks again and again."""

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE

    def receive(self, timeout: float) -> Sequence[Notification]:
        time.sleep(min(self._pause, timeout))
        self._pause = min(self._pause * 1.5, _LAST_PAUSE)
        return (ANY_CHANGE,)

    def close(self) -> None:
        """Do nothing: nothing is open."""


class FinishWatchers:
    """Watchers of this process that wait for tasks to finish, and the one listener they share.

    The first watcher starts a thread that opens the listener. The listener stays open for LINGER
    seconds after the last one stopped. Notifications from before it opened are lost, so each
    watcher is then called without ids, and looks at all its tasks.
    """

    def __init__(self, open_listener: Callable[[], ThreadListener] | None = None) -> None:
        self._open_listener = open_listener
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[object, OnFinished] = {}
        self._listener: threading.Thread | None = None
        self._is_closing = False

    def watch(self, on_finished: OnFinished) -> Callable[[], None]:
        """Call `on_finished` for each notification until the returned function is called."""
        key = object()
        with self._lock:
            self._watchers[key] = on_finished
            self._start_listener()

        def stop() -> None:
            with self._lock:
                self._watchers.pop(key, None)

        return stop

    def _start_listener(self) -> None:
        """Start the thread that listens, unless it runs. The caller holds the lock."""
        self._is_closing = False
        if self._listener is None and self._open_listener is not None:
            self._listener = threading.Thread(
                target=self._listen,
                args=(self._open_listener,),
                name="fairlead-waiting",
                daemon=True,
            )
            self._listener.start()

    def close(self) -> None:
        """Close the listener within a second, unless somebody watches."""
        with self._lock:
            self._is_closing = True

    def notify(self, notification: Notification) -> None:
        """Call the watchers if tasks may have finished."""
        if not (notification.finished or notification.is_empty):
            return
        with self._lock:
            watchers = list(self._watchers.values())
        for on_finished in watchers:
            with suppress(RuntimeError):  # the loop of the watcher was closed
                on_finished(notification.finished)

    def _listen(self, open_listener: Callable[[], ThreadListener]) -> None:
        last_reason = ""
        delay = _FIRST_RETRY
        while True:
            try:
                self._listen_until_unused(open_listener())
                return
            except Exception as error:
                # Try again after any error, so that watchers get notifications again.
                if self._is_unused_for(0.0):
                    return
                if (reason := f"{type(error).__name__}: {error}") != last_reason:
                    log.warning(
                        "cannot listen for finished tasks, trying again", extra={"error": reason}
                    )
                    last_reason = reason
                else:
                    delay = min(delay * 2, _LAST_RETRY)
            if self._is_unused_for(delay):
                return

    def _listen_until_unused(self, listener: ThreadListener) -> None:
        try:
            self.notify(ANY_CHANGE)
            used_at = time.monotonic()
            while True:
                for notification in listener.receive(1.0):
                    self.notify(notification)
                with self._lock:
                    now = time.monotonic()
                    if self._watchers:
                        used_at = now
                    elif self._is_closing or now - used_at > LINGER:
                        self._listener = None
                        return
        finally:
            listener.close()

    def _is_unused_for(self, seconds: float) -> bool:
        """Wait, then return whether no watcher needs the listener."""
        threading.Event().wait(seconds)
        with self._lock:
            if not self._watchers:
                self._listener = None
            return self._listener is None
