"""The presence of nodes in PostgreSQL: each node's listening connection holds an advisory lock.

The server releases the lock when the connection ends
(https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS). Others try the lock
instead of waiting for it: a statement that waits would keep VACUUM from removing dead rows.

Each heartbeat records whether the server saw the lock of its node held. So a process that has just
started knows a dead node by its free lock, although it has never seen the lock held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from fairlead.backends.postgres.notifier import PostgresNotifier
from fairlead.ports.statements import Database, Statement, Steps

_RELEASED = """
SELECT asked FROM unnest($1::text[]) AS asked
 WHERE CASE WHEN pg_try_advisory_xact_lock_shared(hashtextextended(
                     'fairlead node ' || asked, 'fairlead_tasks'::regclass::oid::bigint))
            THEN EXISTS (SELECT 1 FROM fairlead_heartbeats h
                          WHERE h.node = asked
                            AND h.locked_on =
                                (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint)
            END
"""
"""A shared lock, which ends with the statement: two nodes that try at once do not disturb each
other. The start of the server is of no other server, and of this one only until its restart: no
lock moves to another server."""


class SessionPresence:
    """A `fairlead.ports.presence.Presence` on the connection of a `PostgresNotifier`.

    A connection can be lost while its process lives, so a free lock needs confirmation: the next
    heartbeat of a living node records that it does not hold its lock.
    """

    confirm_seconds = 0.5
    check_seconds = 1.25

    def __init__(self, database: Database, notifier: PostgresNotifier) -> None:
        self._database = database
        self._notifier = notifier

    async def hold(self, node: str, on_changed: Callable[[], None]) -> None:
        self._notifier.hold_lock(node, on_changed)

    async def released(self, nodes: Collection[str]) -> set[str]:
        return await self._database.read(_released([*nodes]))

    async def close(self) -> None:
        self._notifier.release_locks()


def _released(nodes: list[str]) -> Steps[set[str]]:
    return {row[0] for row in (yield Statement(_RELEASED, (nodes,)))}
