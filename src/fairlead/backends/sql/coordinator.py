"""The coordinator over the task store's own database: leases are rows, and its clock says when they
expire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from fairlead.clock import MICROS, SYSTEM_CLOCK, Clock
from fairlead.ports.coordinator import Lease
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Database, Row, Statement, Steps


class LeaseStore(Protocol):
    """What the coordinator needs of a task store."""

    @property
    def database(self) -> Database:
        """Where the leases are kept."""

    @property
    def sql(self) -> Mapping[str, str]:
        """Statements by name: acquire_lease, renew_leases, release_leases, leases, read_book,
        new_book, change_book. Where writers do not exclude each other: lock_leases. Where nodes
        need not share a machine: lease_clock, in microseconds since 1970."""

    def statement(self, name: str, *params: Any) -> Statement:
        """The named statement with its parameters."""

    def announce(self, notification: Notification) -> Steps[None]:
        """Send the wake with the transaction's commit, where the database can."""


class DatabaseCoordinator:
    """See `fairlead.ports.coordinator.Coordinator`.

    Where all nodes share a machine, as on SQLite, `clock` is its clock; otherwise only the server's
    clock is asked.
    """

    def __init__(self, store: LeaseStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._database = store.database
        self._clock = clock

    @property
    def location(self) -> str:
        return self._database.location

    def check_limits(self, names: Sequence[str]) -> None:
        """Keep a book for any limit."""

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        if not owner:
            raise ValueError("a lease needs an owner: the empty name means that it is free")
        if not names:
            return {}
        return await self._database.run_async(self._acquire(names, owner, ttl))

    def _acquire(self, names: Sequence[str], owner: str, ttl: float) -> Steps[dict[str, int]]:
        won: dict[str, int] = {}
        for name in sorted(set(names)):
            now = yield from self.lease_clock()
            rows = yield self._store.statement(
                "acquire_lease", name, owner, now + _micros(ttl), now
            )
            won |= _range_ids(rows)
        return won

    async def renew(self, owner: str, ttl: float) -> dict[str, int]:
        # Not durable on its own: a power cut that undoes it leaves a lease that expires sooner.
        return await self._database.run_async(self._renew(owner, ttl), durable=False)

    def _renew(self, owner: str, ttl: float) -> Steps[dict[str, int]]:
        yield from self._lock_held(owner)
        now = yield from self.lease_clock()
        return _range_ids(
            (yield self._store.statement("renew_leases", owner, now + _micros(ttl), now))
        )

    async def release(self, names: Sequence[str], owner: str) -> Notification | None:
        if not names:
            return None
        return await self._database.run_async(self._release(names, owner))

    def _release(self, names: Sequence[str], owner: str) -> Steps[Notification]:
        yield from self._lock_held(owner)
        yield self._store.statement(
            "release_leases", owner, msgspec.json.encode(list(names)).decode()
        )
        notification = Notification(control=True)
        yield from self._store.announce(notification)
        return notification

    async def leases(self) -> list[Lease]:
        return await self._database.read(self._leases())

    async def read_ledger(self, limit: str) -> tuple[bytes, int]:
        return await self._database.read(self._read_ledger(limit))

    def _read_ledger(self, limit: str) -> Steps[tuple[bytes, int]]:
        rows = yield self._store.statement("read_ledger", limit)
        return (rows[0][0].encode(), rows[0][1]) if rows else (b"", 0)

    async def write_ledger(self, limit: str, ledger: bytes, version: int) -> bool:
        return await self._database.run_async(self._write_ledger(limit, ledger.decode(), version))

    def _write_ledger(self, limit: str, ledger: str, version: int) -> Steps[bool]:
        if version == 0:
            return bool((yield self._store.statement("new_ledger", limit, ledger)))
        return bool((yield self._store.statement("change_ledger", limit, ledger, version)))

    def close(self) -> None:
        pass  # the database is the task store's

    def _leases(self) -> Steps[list[Lease]]:
        now = yield from self.lease_clock()
        return [Lease(*row) for row in (yield self._store.statement("leases", now))]

    def lease_clock(self) -> Steps[int]:
        """Return microseconds since 1970 by the one clock that all nodes of this database
        share."""
        if "lease_clock" not in self._store.sql:
            return self._clock.now()
        now: int = (yield self._store.statement("lease_clock"))[0][0]
        return now

    def _lock_held(self, owner: str) -> Steps[None]:
        if "lock_leases" in self._store.sql:
            yield self._store.statement("lock_leases", owner)


def _micros(seconds: float) -> int:
    return round(seconds * MICROS)


def _range_ids(rows: Sequence[Row]) -> dict[str, int]:
    return {row[0]: row[1] for row in rows}
