"""The owner of a keyspace: the row of `fairlead_keyspace` names the task store that the schedule
and the backlogs in the keyspace belong to."""

from __future__ import annotations

import asyncio

from fairlead.backends.cassandra.database import APP
from fairlead.backends.cassandra.session import CassandraSession
from fairlead.errors import StoreUnavailable
from fairlead.ports.ordered_store import OrderedStore
from fairlead.ports.owner_record import OwnedName, OwnerRecord, record_of


class KeyspaceOwner:
    """The owner of the keyspace of a session. Each method raises ConfigurationError if the keyspace
    belongs to another task store, and StoreUnavailable while Cassandra is unavailable, or the task
    store and the keyspace has no owner at its location."""

    def __init__(self, session: CassandraSession, store: OrderedStore | None) -> None:
        """`store`: the task store of this application; None checks nothing."""
        self._session = session
        self._store = store
        self._is_ours = False
        url = session.url
        self._name = OwnedName(
            f"keyspace {url.keyspace} of {url.location}",
            "the row of its table fairlead_keyspace",
            "keyspace in the URL of Cassandra",
        )

    async def require(self) -> None:
        """Check that the keyspace belongs to this application, and take a keyspace without an
        owner. Calls after the first success return at once."""
        await self._check(takes=True)

    async def check(self) -> None:
        """Check as `require` does, but take no keyspace."""
        await self._check(takes=False)

    async def _check(self, takes: bool) -> None:
        if self._is_ours or self._store is None:
            return
        owner = await self._read()
        try:
            mine = await asyncio.to_thread(record_of, self._store)
        except StoreUnavailable as away:
            self._name.require_location(owner, self._store, away)
            return
        if mine is not None:
            if owner is None and takes:
                await self._session.execute("take_keyspace", APP, mine.store_id, mine.location)
                owner = await self._read()  # another application may have been faster
            if owner is None:
                return
            self._name.require(owner, mine)
        self._is_ours = True

    async def _read(self) -> OwnerRecord | None:
        """Return the owner; None if there is none, or none that can be read."""
        rows = await self._session.execute("keyspace_owner", APP)
        return OwnerRecord(*rows[0]) if rows and None not in rows[0] else None
