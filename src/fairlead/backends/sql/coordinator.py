"""The coordinator in the task store's database: leases are rows that expire by the database's
clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from fairlead.clock import MICROS, SYSTEM_CLOCK, Clock
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Database, Row, Statement, Steps

_Mark = tuple[int, int]
"""The sum of all range ids and the number of held leases."""
_NO_MARK: _Mark = (-1, -1)


class LeaseStore(Protocol):
    """The part of a task store that the coordinator uses."""

    @property
    def database(self) -> Database:
        """The database with the leases."""

    @property
    def sql(self) -> Mapping[str, str]:
        """Statements by name: acquire_leases, renew_leases, release_leases, lease_mark,
        held_leases, lease_owners, read_ledger, new_ledger, change_ledger; lock_leases, if writers
        run concurrently; lease_clock (returns microseconds since 1970), if nodes may run on several
        machines."""

    def statement(self, name: str, *params: Any) -> Statement:
        """Return the named statement with its parameters."""

    def announce(self, notification: Notification) -> Steps[None]:
        """Send the notification when the transaction commits, if the database can."""


class DatabaseCoordinator:
    """A `fairlead.ports.coordinator.Coordinator` in a database.

    On SQLite all nodes share a machine, and leases expire by `clock`. On other databases leases
    expire by the clock of the server.

    Leases are read again only after a change of owner. The statement lease_mark returns the sum of
    all range ids, which each acquisition raises, and the number of held leases, which each release
    and expiry lowers: while both are equal, every lease has the same owner.
    """

    def __init__(self, store: LeaseStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._database = store.database
        self._clock = clock
        self._owners: tuple[_Mark, Mapping[str, str]] = (_NO_MARK, {})
        self._held: dict[str, tuple[_Mark, Mapping[str, int]]] = {}
        """Range ids of the leases that each owner held at its last renewal."""

    @property
    def location(self) -> str:
        return self._database.location

    def check_limits(self, names: Sequence[str]) -> None:
        """Accept any limit names."""

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        if not owner:
            raise ValueError("a lease needs an owner: the empty name means that it is free")
        if not names:
            return {}
        return await self._database.run_async(self._acquire(names, owner, ttl))

    def _acquire(self, names: Sequence[str], owner: str, ttl: float) -> Steps[dict[str, int]]:
        now = yield from self.lease_clock()
        asked = _json_array(set(names))
        return _range_ids(
            (yield self._store.statement("acquire_leases", asked, owner, now + _micros(ttl), now))
        )

    async def renew(self, owner: str, ttl: float) -> Mapping[str, int]:
        # Need not be durable: a power cut that undoes it leaves a lease that expires sooner.
        return await self._database.run_async(self._renew(owner, ttl), durable=False)

    def _renew(self, owner: str, ttl: float) -> Steps[Mapping[str, int]]:
        yield from self._lock_held(owner)
        now = yield from self.lease_clock()
        yield self._store.statement("renew_leases", owner, now + _micros(ttl), now)
        mark = yield from self._mark(now)
        seen, held = self._held.get(owner, (_NO_MARK, {}))
        if seen != mark:
            held = _range_ids((yield self._store.statement("held_leases", owner, now)))
            self._held[owner] = (mark, held)
        return held

    async def release(self, names: Sequence[str], owner: str) -> Notification | None:
        if not names:
            return None
        return await self._database.run_async(self._release(names, owner))

    def _release(self, names: Sequence[str], owner: str) -> Steps[Notification]:
        yield from self._lock_held(owner)
        yield self._store.statement("release_leases", owner, _json_array(names))
        notification = Notification(control=True)
        yield from self._store.announce(notification)
        return notification

    async def owners(self) -> Mapping[str, str]:
        return await self._database.read(self._read_owners())

    async def read_ledger(self, limit: str, shard: str) -> tuple[bytes, int]:
        return await self._database.read(self._read_ledger(limit, shard))

    def _read_ledger(self, limit: str, shard: str) -> Steps[tuple[bytes, int]]:
        rows = yield self._store.statement("read_ledger", limit, shard)
        return (rows[0][0].encode(), rows[0][1]) if rows else (b"", 0)

    async def write_ledger(self, limit: str, shard: str, ledger: bytes, version: int) -> bool:
        return await self._database.run_async(
            self._write_ledger((limit, shard), ledger.decode(), version)
        )

    def _write_ledger(self, record: tuple[str, str], ledger: str, version: int) -> Steps[bool]:
        if version == 0:
            return bool((yield self._store.statement("new_ledger", *record, ledger)))
        return bool((yield self._store.statement("change_ledger", *record, ledger, version)))

    def close(self) -> None:
        """Do nothing: the task store closes the database."""

    def _read_owners(self) -> Steps[Mapping[str, str]]:
        now = yield from self.lease_clock()
        mark = yield from self._mark(now)
        seen, owners = self._owners
        if seen != mark:
            owners = dict(map(tuple, (yield self._store.statement("lease_owners", now))))
            self._owners = (mark, owners)
        return owners

    def _mark(self, now: int) -> Steps[_Mark]:
        range_ids, held = (yield self._store.statement("lease_mark", now))[0]
        return range_ids, held

    def lease_clock(self) -> Steps[int]:
        """Return the instant of the clock that all nodes of this database share, in microseconds
        since 1970."""
        if "lease_clock" not in self._store.sql:
            return self._clock.now()
        now: int = (yield self._store.statement("lease_clock"))[0][0]
        return now

    def _lock_held(self, owner: str) -> Steps[None]:
        if "lock_leases" in self._store.sql:
            yield self._store.statement("lock_leases", owner)


def _micros(seconds: float) -> int:
    return round(seconds * MICROS)


def _json_array(names: Iterable[str]) -> str:
    return msgspec.json.encode(list(names)).decode()


def _range_ids(rows: Sequence[Row]) -> dict[str, int]:
    return {row[0]: row[1] for row in rows}
