"""The owner of a keyspace: the row of `fairlead_keyspace` names the task store that the schedule
and the backlogs in the keyspace belong to."""

from __future__ import annotations

import asyncio

from fairlead.backends.cassandra.database import APP
from fairlead.backends.cassandra.session import CassandraSession
from fairlead.ports.cluster import Cluster
from fairlead.ports.owner_record import NameOwner, OwnedName, OwnerRecord


class KeyspaceOwner:
    """The owner of the keyspace of a session; see `NameOwner`."""

    def __init__(self, session: CassandraSession, store: Cluster | None) -> None:
        """`store`: the task store of this application; None checks nothing."""
        self._session = session
        url = session.url
        name = OwnedName(
            f"keyspace {url.keyspace} of {url.location}",
            "the row of its table fairlead_keyspace",
            "keyspace in the URL of Cassandra",
        )
        self._owner = NameOwner(name, store)

    async def require(self) -> None:
        """Check that the keyspace belongs to this application, and take a keyspace without an
        owner. Calls after the first success return at once."""
        await asyncio.to_thread(self._owner.require, self._read, self._take)

    async def check(self) -> None:
        """Check as `require` does, but take no keyspace."""
        await asyncio.to_thread(self._owner.check, self._read)

    def _take(self, mine: OwnerRecord) -> OwnerRecord | None:
        self._session.execute_now("take_keyspace", (APP, mine.store_id, mine.location))
        return self._read()  # another application may have been faster

    def _read(self) -> OwnerRecord | None:
        """Return the owner; None if there is none, or none that can be read."""
        rows = self._session.execute_now("keyspace_owner", (APP,))
        return OwnerRecord(*rows[0]) if rows and None not in rows[0] else None
