"""The coordinator in the task store's database: leases are rows, and end when the row of their
holder expires by the database's clock."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from fairlead.clock import MICROS, SYSTEM_CLOCK, Clock
from fairlead.errors import StoreUnavailable
from fairlead.ports.notification import Notification
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Row, Steps

T = TypeVar("T")

MOST_TTL = 300.0
"""Most seconds until a lease expires. One that expires later was acquired before the clock was set
back, and counts as expired."""


class _Leases:
    """The leases as last read. Safe to use from several threads."""

    def __init__(self) -> None:
        self.seen = 0
        """Number of the last change read."""
        self._lock = threading.Lock()
        self._leases: dict[str, tuple[str, int]] = {}
        """Owner and range id by lease; a free lease has the owner ''."""
        self._held: dict[str, Mapping[str, int]] = {}
        """Results of `held` since the last change."""
        self._living: frozenset[str] = frozenset()
        self._owners: Mapping[str, str] | None = None
        """Result of `owners` for `_living` since the last change."""

    def update(self, rows: Sequence[Row]) -> frozenset[str]:
        """Apply rows of lease_changes that were read after change `seen`; return the living
        holders."""
        changes = [row for row in rows if row[0] is not None]
        last = max((row[3] for row in changes), default=0)
        with self._lock:
            if last > self.seen:
                self.seen = last
                self._leases.update((name, (owner, id)) for name, owner, id, _ in changes)
                self._held, self._owners = {}, None
        return frozenset(row[1] for row in rows if row[0] is None)

    def held(self, owner: str) -> Mapping[str, int]:
        """Return the range ids of the owner's leases; the same object until a lease changes."""
        with self._lock:
            if owner not in self._held:
                self._held[owner] = {
                    name: id for name, (other, id) in self._leases.items() if other == owner
                }
            return self._held[owner]

    def owners(self, living: frozenset[str]) -> Mapping[str, str]:
        """Return the owner of each lease of a living holder; the same object until one changes."""
        with self._lock:
            if self._owners is None or self._living != living:
                self._living = living
                self._owners = {
                    name: owner for name, (owner, _) in self._leases.items() if owner in living
                }
            return self._owners


class DatabaseCoordinator:
    """A `fairlead.ports.coordinator.Coordinator` in a database.

    All leases of an owner expire together, so a renewal writes one row, and an acquisition renews
    the owner's other leases too. On SQLite all nodes share a machine, and leases expire by `clock`.
    On other databases leases expire by the clock of the server.

    Each change of leases has a number, and changes commit in the order of their numbers. A read
    returns only the leases that changed after the last number read.
    """

    def __init__(self, store: SqlStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._database = store.database
        self._clock = clock
        self._leases = _Leases()
        self._renewed: tuple[_Leases, frozenset[str]] | None = None
        """Leases of the last renewal, and the holders that lived then; None if it renewed none."""
        self._versions: dict[tuple[str, str], int] = {}
        """Version of each ledger that was read last, by limit and shard. Replaced versions are
        lower, and a read passes none of them."""
        self._server: str | None = None
        """Server from which the leases were read; None for a database of one machine."""

    @property
    def location(self) -> str:
        return self._database.location

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        if not owner:
            raise ValueError("a lease needs an owner: the empty name means that it is free")
        if ttl > MOST_TTL:
            raise ValueError(f"a lease of {ttl:g} seconds: {MOST_TTL:g} are the most")
        if not names:
            return {}
        return await self._database.run_async(self._acquire(names, owner, ttl))

    def _acquire(self, names: Sequence[str], owner: str, ttl: float) -> Steps[dict[str, int]]:
        change = yield from self._begin_change()
        now = yield from self.lease_clock()
        if ended := (yield self._store.statement("end_holders", *_unexpired(now))):
            yield self._store.statement("free_leases", _json_array(row[0] for row in ended), change)
        rows = yield self._store.statement("acquire_leases", _json_array(set(names)), owner, change)
        if rows:
            yield self._store.statement("hold_leases", owner, now + _micros(ttl))
        return {row[0]: row[1] for row in rows}

    async def renew(self, owner: str, ttl: float) -> Mapping[str, int]:
        # Need not be durable: a power cut that undoes it leaves leases that expire sooner.
        renewing = self._database.run_async(self._renew(owner, ttl), durable=False)
        is_holder, (leases, rows) = await self._reading(renewing)
        self._renewed = leases, leases.update(rows)
        return leases.held(owner) if is_holder else {}

    def _renew(self, owner: str, ttl: float) -> Steps[tuple[bool, tuple[_Leases, Sequence[Row]]]]:
        now = yield from self.lease_clock()
        renewed = yield self._store.statement("renew_leases", owner, now + _micros(ttl), now)
        return bool(renewed), (yield from self._changes(now))

    async def release(self, names: Sequence[str], owner: str) -> Notification | None:
        if not names:
            return None
        return await self._database.run_async(self._release(names, owner))

    def _release(self, names: Sequence[str], owner: str) -> Steps[Notification]:
        change = yield from self._begin_change()
        yield self._store.statement("release_leases", owner, _json_array(names), change)
        notification = Notification(control=True)
        yield from self._store.announce(notification)
        return notification

    async def owners(self, *, at_renewal: bool = False) -> Mapping[str, str]:
        if at_renewal and self._renewed is not None and self._renewed[0] is self._leases:
            return self._leases.owners(self._renewed[1])
        leases, rows = await self._reading(self._database.read(self._read_changes()))
        return leases.owners(leases.update(rows))

    def _read_changes(self) -> Steps[tuple[_Leases, Sequence[Row]]]:
        now = yield from self.lease_clock()
        return (yield from self._changes(now))

    def _changes(self, now: int) -> Steps[tuple[_Leases, Sequence[Row]]]:
        """Return the leases as last read, and what changed since."""
        leases = self._leases
        rows = yield self._store.statement("lease_changes", leases.seen, *_unexpired(now))
        return leases, rows

    async def _reading(self, rows: Awaitable[T]) -> T:
        """Return the rows. After a failure, read all leases again: a server that comes back may
        have lost changes, and use their numbers again."""
        try:
            return await rows
        except StoreUnavailable:
            self._leases = _Leases()
            raise

    def _begin_change(self) -> Steps[int]:
        """Lock the leases for this transaction; return the number of the change."""
        number: int = (yield self._store.statement("change_leases"))[0][0]
        return number

    async def read_ledger(self, limit: str, shard: str) -> tuple[bytes, int]:
        return await self._database.read(self._read_ledger(limit, shard))

    def _read_ledger(self, limit: str, shard: str) -> Steps[tuple[bytes, int]]:
        known = self._versions.get((limit, shard), 0)
        rows = yield self._store.statement("read_ledger", limit, shard, known)
        if not rows and known:  # another server may have lost versions
            rows = yield self._store.statement("read_ledger", limit, shard, 0)
        if not rows:
            return b"", 0
        ledger, version = rows[0]
        self._versions[limit, shard] = version
        return ledger.encode(), version

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

    def lease_clock(self) -> Steps[int]:
        """Return the instant of the clock that all nodes of this database share, in microseconds
        since 1970. If another server responds, read all leases again."""
        if "lease_clock" not in self._store.sql:
            return self._clock.now()
        [(now, server)] = yield self._store.statement("lease_clock")
        if server != self._server:
            # A standby that became the primary may have missed the last changes.
            self._server, self._leases = server, _Leases()
        instant: int = now
        return instant


def _micros(seconds: float) -> int:
    return round(seconds * MICROS)


def _unexpired(now: int) -> tuple[int, int]:
    """Return the first and the last instant at which an unexpired lease may end."""
    return now, now + _micros(MOST_TTL)


def _json_array(names: Iterable[str]) -> str:
    return msgspec.json.encode(list(names)).decode()
