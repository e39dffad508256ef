"""The leases that one ZooKeeper session sees: each is read once, and their list again only after a
change."""

from __future__ import annotations

import logging
import re
import threading
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.states import WatchedEvent

from fairlead.backends.zookeeper.session import Session
from fairlead.model.reading import json_reader

log = logging.getLogger("fairlead.zookeeper")

_read_owner = json_reader(str)

_MOST_VERSION = (1 << 31) - 1
"""Greatest version of a znode, and so the greatest range id."""


class HeldLease(NamedTuple):
    """A lease as stored in its ephemeral znode, and the id of the session that owns the znode."""

    name: str
    owner: str
    range_id: int
    session: int


class LeaseCache:
    """The leases in a folder, as one session last saw them. Usable from any thread.

    The name of a znode contains the range id, so that a znode with a known name is a known lease,
    and one watch, on the list of znodes, reports every change. ZooKeeper reports a change before
    any later response of the session, and a lost connection ends the watch, so `read` is as fresh
    as a read of every lease. Ownership does not rest on it: only transactions change leases.
    """

    def __init__(self, session: Session, folder: str) -> None:
        self._session = session
        self._folder = folder
        self._lock = threading.Lock()
        self._is_listed = False
        """Whether the list of znodes has not changed since it was read."""
        self._leases: dict[str, HeldLease | None] = {}
        """Leases by znode; None for one that cannot be read."""

    def read(self) -> list[HeldLease]:
        """Return the leases, in the order of their names. Raise StoreUnavailable if the session has
        no connection."""
        # The response proves that the session is alive, and follows the events before it. Callers
        # wait for it side by side, so that an outage delays each by the time of one response.
        exists = partial(self._session.client.exists_async, self._folder)
        if self._session.send([exists]) == [None]:
            self._session.make_folder(self._folder)  # somebody has deleted it
        with self._lock:
            self._session.handle_events()
            if not self._is_listed:
                self._is_listed = True  # an event from now on says otherwise
                try:
                    self._read_list()
                except BaseException:
                    self._is_listed = False
                    raise
            return sorted(lease for lease in self._leases.values() if lease is not None)

    def _read_list(self) -> None:
        client = self._session.client
        [nodes] = self._session.send(
            [partial(client.get_children_async, self._folder, self._on_event)]
        )
        self._leases = {node: self._leases[node] for node in nodes if node in self._leases}
        new = [node for node in nodes if node not in self._leases]
        reads = [partial(client.get_async, f"{self._folder}/{node}") for node in new]
        for node, result in zip(
            new, self._session.send(reads, NoNodeError, NoAuthError), strict=True
        ):
            if not isinstance(result, NoNodeError):  # deleted since it was listed
                self._leases[node] = self._decoded(node, result)

    def _decoded(self, node: str, result: Any) -> HeldLease | None:
        """Return the lease that a read of its znode returned; None if it cannot be read."""
        try:
            if isinstance(result, Exception):
                raise result
            data, stat = result
            return decode_lease(node, data, stat.ephemeralOwner)
        except (NoAuthError, ValueError) as error:
            log.error(
                "a znode among the leases cannot be read: delete it, so that workers can acquire"
                " its lease",
                extra={
                    "path": f"{self._folder}/{node}",
                    "error": str(error) or type(error).__name__,
                },
            )
            return None

    def _on_event(self, event: WatchedEvent) -> None:
        self._is_listed = False


def znode_name(name: str) -> str:
    """Return the name of a znode for any text. A valid name has no slash and is not "." or ".."."""
    return quote(name, safe="").replace(".", "%2E")


def held_znode(name: str, range_id: int) -> str:
    """Return the name of the znode of a lease while its owner has the range id."""
    return f"{znode_name(name)};{range_id}"


def decode_lease(node: str, data: bytes, session: int) -> HeldLease:
    """Return the lease of a znode. `session`: id of the session that owns the znode; 0 if the znode
    outlives all sessions. Raise ValueError for a znode that is no lease."""
    name, range_id = parse_znode(node)
    owner = _read_owner(data)
    if not owner:
        raise ValueError("it names no owner")
    if not session:
        raise ValueError("it is not ephemeral, so that its lease would never end")
    return HeldLease(name, owner, range_id, session)


def parse_znode(node: str) -> tuple[str, int]:
    """Return the lease and the range id of a znode. Raise ValueError for a name that `held_znode`
    does not make."""
    name, _, number = node.rpartition(";")
    if re.fullmatch(r"[1-9][0-9]{0,9}", number) is None or int(number) > _MOST_VERSION:
        raise ValueError("its name does not end with ; and a range id")
    found = unquote(name), int(number)
    if held_znode(*found) != node:
        raise ValueError("its name is no quoted name of a lease")
    return found
