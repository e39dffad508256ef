"""The notifier: carries notifications to other processes that share a database. A notification may
be lost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from fairlead.model.peer import PeerMessage
from fairlead.ports.notification import Notification


class Notifier(Protocol):
    """Carries notifications between processes that share a database."""

    def notify(self, notification: Notification) -> None:
        """Notify all listeners, from any thread; never blocks, never raises."""

    def send(self, message: PeerMessage) -> None:
        """Send a message to the node it is for, or to all nodes if it is for none, outside of any
        transaction. Call it in the event loop of the listener. Never blocks, never raises. Without
        a connection the message is lost."""

    async def listen(
        self, on_notification: Callable[[Notification], None], node: str | None = None
    ) -> None:
        """Start listening; `on_notification` runs in the event loop. After an interruption it gets
        ANY_CHANGE. `node`: name by which messages between nodes reach this listener. Raises
        RuntimeError if this notifier listens already."""

    async def close(self) -> None:
        """Stop listening."""

    def watch_finished(self, on_finished: Callable[[Collection[str]], None]) -> Callable[[], None]:
        """Call `on_finished`, from any thread, with the ids of tasks that have finished, until the
        returned function is called. Without ids, any task may have finished."""
