"""The owner of a folder: the znode `owner` names the task store that the leases and permits in the
folder belong to."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from fairlead.backends.zookeeper.session import Session, ZooKeeperEndpoint
from fairlead.errors import StoreUnavailable
from fairlead.ports.ordered_store import OrderedStore
from fairlead.ports.owner_record import OwnedName, OwnerRecord, decode, encode, record_of

log = logging.getLogger("fairlead.zookeeper")

_TRIES = 5


class FolderOwner:
    """The owner of the folder of an endpoint, for any thread."""

    def __init__(self, endpoint: ZooKeeperEndpoint, store: OrderedStore | None) -> None:
        """`store`: the task store of this application; None checks nothing."""
        self._store = store
        self._lock = threading.Lock()
        self._is_ours = False
        self._path = f"{endpoint.folder}/owner"
        self._name = OwnedName(
            f"folder {endpoint.folder} of {endpoint}",
            f"the znode {self._path}",
            "folder in the URL of the coordinator",
            "folder",
        )

    def require(self, session: Session) -> None:
        """Check that the folder belongs to this application, and take a folder without an owner.
        Later calls return at once. While the task store is unavailable, an owner at its location
        will do. Raise ConfigurationError if the folder belongs to another task store,
        StoreUnavailable while ZooKeeper is unavailable, or the task store and there is no such
        owner."""
        with self._lock:
            if self._is_ours or self._store is None:
                return
            try:
                mine = record_of(self._store)
            except StoreUnavailable as away:
                self._name.require_location(self._read(session)[0], self._store, away)
                return
            if mine is None:
                self._is_ours = True
                return
            client, data = session.client, encode(mine)
            for _ in range(_TRIES):
                owner, found = self._read(session)
                if owner is not None:
                    self._name.require(owner, mine)
                    self._name.require_part(owner, self._store)
                    self._is_ours = True
                    return
                write: Any = partial(client.create_async, self._path, data)
                if not isinstance(found, NoNodeError):
                    fields = {"path": self._path}
                    log.error("the owner record cannot be read; it is replaced", extra=fields)
                    write = partial(client.set_async, self._path, data, found[1].version)
                # another application may be faster: read again
                session.send([write], NodeExistsError, BadVersionError, NoNodeError)
            raise StoreUnavailable(f"the znode {self._path} changes all the time")

    def _read(self, session: Session) -> tuple[OwnerRecord | None, Any]:
        """Return the owner, or None if there is none or it cannot be read; and the response."""
        client = session.client
        [found] = session.send([partial(client.get_async, self._path)], NoNodeError)
        return (None if isinstance(found, NoNodeError) else decode(found[0])), found
