"""The owner of a folder: the znode `owner` names the task store that the leases and permits in the
folder belong to."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from fairlead.backends.zookeeper.session import Session, ZooKeeperEndpoint
from fairlead.errors import StoreUnavailable
from fairlead.ports.cluster import Cluster
from fairlead.ports.owner_record import NameOwner, OwnedName, OwnerRecord, decode, encode

log = logging.getLogger("fairlead.zookeeper")

_TRIES = 5


class FolderOwner:
    """The owner of the folder of an endpoint, for any thread."""

    def __init__(self, endpoint: ZooKeeperEndpoint, store: Cluster | None) -> None:
        """`store`: the task store of this application; None checks nothing."""
        self._path = f"{endpoint.folder}/owner"
        name = OwnedName(
            f"folder {endpoint.folder} of {endpoint}",
            f"the znode {self._path}",
            "folder in the URL of the coordinator",
            "folder",
        )
        self._owner = NameOwner(name, store)

    def require(self, session: Session) -> None:
        """Check that the folder belongs to this application, and take a folder without an owner;
        see `NameOwner`."""
        self._owner.require(lambda: self._read(session)[0], partial(self._take, session))

    def _take(self, session: Session, mine: OwnerRecord) -> OwnerRecord:
        client, data = session.client, encode(mine)
        for _ in range(_TRIES):
            owner, found = self._read(session)
            if owner is not None:
                return owner
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
