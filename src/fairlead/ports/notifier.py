"""The notifier: carries notifications to other processes that share a database. A notification may
be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fairlead.model.peer import PeerMessage
from fairlead.ports.notification import Notification


class Notifier(Protocol):
    """Carries notifications between processes that share a database."""

    def notify(self, notification: Notification) -> None:
        """Notify all listeners, from any thread; never blocks, never raises."""

    def send(self, message: PeerMessage) -> None:
        """Send a message between nodes, which belongs to no transaction, from the event loop of
        the listener; never blocks, never raises. Without a connection it is lost."""

    async def listen(self, on_notification: Callable[[Notification], None]) -> None:
        """Start listening; `on_notification` runs in the event loop. After an interruption it gets
        LOOK_EVERYWHERE. Raises RuntimeError if this notifier listens already."""

    async def close(self) -> None:
        """Stop listening."""

    def wait_finished(self, task_id: str, timeout: float) -> None:
        """Block this thread until the task may have finished, or `timeout` seconds have passed."""
