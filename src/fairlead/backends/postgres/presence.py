"""The presence of nodes in PostgreSQL: each node's listening connection holds an advisory lock.

The server releases the lock when the connection ends
(https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS). Others try the lock
instead of waiting for it: a statement that waits would keep VACUUM from removing dead rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

from fairlead.backends.postgres.notifier import PostgresNotifier
from fairlead.errors import StoreUnavailable
from fairlead.ports.statements import Database, Row, Statement, Steps

_UNLOCKED = """
SELECT pg_postmaster_start_time()::text,
       ARRAY(SELECT key FROM unnest($1::bigint[]) AS key
              WHERE pg_try_advisory_xact_lock_shared(key # 'fairlead_tasks'::regclass::oid::bigint))
"""
"""A shared lock, which ends with the statement: two nodes that try at once do not disturb each
other. Returns also a text that another server, or the server after a restart, does not return."""


class SessionPresence:
    """A `fairlead.ports.presence.Presence` on the connection of a `PostgresNotifier`.

    A connection can be lost while its process lives, so a free lock needs confirmation.
    """

    confirm_seconds = 0.5

    def __init__(self, database: Database, notifier: PostgresNotifier) -> None:
        self._database = database
        self._notifier = notifier
        self._seen: set[str] = set()
        """Nodes whose lock was seen held; empty after an outage, because the server may have
        closed the connections of all nodes."""
        self._server = ""
        """Server on which the locks were seen; no lock moves to another server."""

    async def hold(self, node: str, on_lost: Callable[[], None]) -> None:
        self._notifier.hold_lock(key_of(node), on_lost)

    async def released(self, nodes: Collection[str]) -> set[str]:
        keys = {key_of(node): node for node in nodes}
        try:
            server, free = await self._database.read(_unlocked([*keys]))
        except StoreUnavailable:
            self._seen.clear()
            raise
        if server != self._server:
            self._server = server
            self._seen.clear()
        unlocked = {keys[key] for key in free}
        self._seen |= set(nodes) - unlocked
        return self._seen & unlocked

    async def close(self) -> None:
        self._notifier.release_locks()


def _unlocked(keys: list[int]) -> Steps[Row]:
    return (yield Statement(_UNLOCKED, (keys,)))[0]


def key_of(node: str) -> int:
    """Return the number of a node's advisory lock, a signed integer of 64 bits.

    The lock itself has another number in each schema, so that equal names in two schemas are two
    nodes.
    """
    digest = hashlib.blake2b(f"fairlead node {node}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
