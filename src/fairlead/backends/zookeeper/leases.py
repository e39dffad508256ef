"""The leases that one ZooKeeper session sees: read once, then again only after they change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from fairlead.backends.zookeeper.session import Session

log = logging.getLogger("fairlead.zookeeper")


class HeldLease(NamedTuple):
    """A lease as stored in its ephemeral znode, and the id of the session that owns the znode."""

    name: str
    owner: str
    range_id: int
    session: int


class LeaseCache:
    """The leases in a folder, as one session last saw them. Usable from any thread.

    A watch on the list of znodes and a watch on each znode report changes. ZooKeeper reports a
    change before any later response of the session, and a lost connection ends all watches, so
    `read` is as fresh as a read of every lease. Ownership does not rest on it: a lease changes by
    transactions on the version of its range id only.
    """

    def __init__(self, session: Session, folder: str) -> None:
        self._session = session
        self._folder = folder
        self._lock = threading.Lock()
        self._leases: dict[str, HeldLease] = {}
        """Leases by znode."""
        self._unreadable: set[str] = set()
        """Znodes without a readable lease; they are read again with each new list."""
        self._is_listed = False
        """Whether the list of znodes has not changed since it was read."""
        self._changed: set[str | None] = set()
        """Znodes that changed since they were read; None if the watches ended."""

    def read(self) -> list[HeldLease]:
        """Return the leases, in the order of their names. Raise StoreUnavailable if the session has
        no connection."""
        with self._lock:
            # The response proves that the session is alive, and follows all earlier events.
            exists = partial(self._session.client.exists_async, self._folder)
            if self._session.send([exists]) == [None]:
                self._session.make_folder(self._folder)  # somebody has deleted it
            self._drop_changed()
            if not self._is_listed:
                self._is_listed = True  # an event from now on says otherwise
                try:
                    self._read_list()
                except BaseException:
                    self._is_listed = False
                    raise
            return sorted(self._leases.values())

    def _read_list(self) -> None:
        client = self._session.client
        [nodes] = self._session.send(
            [partial(client.get_children_async, self._folder, self._on_event)]
        )
        self._drop_changed()
        new = [node for node in nodes if node not in self._leases]
        reads: list[Callable[..., Any]] = [
            partial(client.get_async, self._path(node), self._on_event) for node in new
        ]
        found = self._session.send(reads, NoNodeError, NoAuthError)
        self._leases = {node: self._leases[node] for node in nodes if node in self._leases}
        self._unreadable.intersection_update(nodes)
        for node, result in zip(new, found, strict=True):
            if isinstance(result, NoNodeError):
                continue  # deleted since it was listed
            try:
                self._leases[node] = _decoded(node, result)
            except (NoAuthError, msgspec.DecodeError) as error:
                self._log_unreadable(node, error)

    def _log_unreadable(self, node: str, error: Exception) -> None:
        if node not in self._unreadable:
            self._unreadable.add(node)
            log.error(
                "a znode among the leases cannot be read: delete it, so that workers can acquire"
                " its lease",
                extra={"path": self._path(node), "error": str(error) or type(error).__name__},
            )

    def _drop_changed(self) -> None:
        """Drop the leases that changed before the last response."""
        self._session.handle_events()
        while self._changed:
            self._is_listed = False
            if (node := self._changed.pop()) is None:
                self._leases.clear()
            else:
                self._leases.pop(node, None)

    def _on_event(self, event: WatchedEvent) -> None:
        if event.type == EventType.NONE:
            self._changed.add(None)
        elif event.path != self._folder:
            self._changed.add(event.path.rpartition("/")[2])
        self._is_listed = False

    def _path(self, node: str) -> str:
        return f"{self._folder}/{node}"


def _decoded(node: str, result: Any) -> HeldLease:
    """Return the lease that a read of its znode returned. Raise msgspec.DecodeError, or the error
    of ZooKeeper."""
    if isinstance(result, Exception):
        raise result
    data, stat = result
    owner, range_id = msgspec.json.decode(data, type=tuple[str, int])
    return HeldLease(unquote(node), owner, range_id, stat.ephemeralOwner)
