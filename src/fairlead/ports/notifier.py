"""The notifier: brings wakes to the other processes that share a database. A wake may be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fairlead.ports.notification import Notification


class Notifier(Protocol):
    """How wakes travel between processes that share a database."""

    def notify(self, notification: Notification) -> None:
        """Tell all listeners, from any thread; never blocks, never raises."""

    async def listen(self, on_notification: Callable[[Notification], None]) -> None:
        """Start listening; `on_wake` runs in the event loop. An interruption ends with a "look
        everywhere"."""

    async def close(self) -> None:
        """Stop listening."""

    def wait_finished(self, task_id: str, timeout: float) -> None:
        """Block this thread until the task may have finished, or `timeout` seconds have passed."""
