"""The coordinator over ZooKeeper: a lease is an ephemeral znode, and its range id is the version of
a persistent znode beside it.

One transaction raises the version, creates the ephemeral znode of the new range id, and fails if
that of the last range id exists. So a lease has one owner at most, with a greater range id than all
owners before. A node that dies or is cut off loses its leases when
ZooKeeper ends the node's session; ZooKeeper measures sessions by a monotonic clock. The permit
ledger of a limit is a persistent znode. Source: the lock recipe in ZooKeeper's documentation, with
the range id as fencing token.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial

import msgspec
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from fairlead.backends.zookeeper.folder_owner import FolderOwner
from fairlead.backends.zookeeper.leases import LeaseCache, held_znode, znode_name
from fairlead.backends.zookeeper.session import Session, ZooKeeperEndpoint
from fairlead.ports.cluster import Cluster
from fairlead.ports.notification import Notification

_READING_SECONDS = 10.0
"""Timeout of the session for reads and permit ledgers, which belongs to no owner."""


class _LeaseSession(Session):
    """A session, and the leases that it sees."""

    def __init__(self, endpoint: ZooKeeperEndpoint, seconds: float, folder: str) -> None:
        super().__init__(endpoint, seconds)
        self.leases = LeaseCache(self, folder)

    def range_ids(self) -> dict[str, int]:
        """Return the range ids of the leases that this session holds, by name. Raise
        StoreUnavailable unless a response of ZooKeeper proves that the session is alive."""
        held = self.leases.read()
        return {lease.name: lease.range_id for lease in held if lease.session == self.id}


class ZooKeeperCoordinator:
    """A `fairlead.ports.coordinator.Coordinator` on ZooKeeper.

    All leases of an owner expire together, `ttl` seconds after the owner's last heartbeat to
    ZooKeeper. The server may replace `ttl` by its own least or greatest session timeout.
    """

    def __init__(self, url: str, store: Cluster | None = None) -> None:
        """Parse the URL; the first call connects. `store`: task store that the folder must belong
        to; None checks nothing. Raise ConfigurationError for a URL that names no server."""
        self._endpoint = ZooKeeperEndpoint.of(url)
        self._owner = FolderOwner(self._endpoint, store)
        self._held_folder = f"{self._endpoint.folder}/leases/held"
        self._ids_folder = f"{self._endpoint.folder}/leases/ids"
        self._ledgers_folder = f"{self._endpoint.folder}/permits"
        self._sessions: dict[str, _LeaseSession] = {}
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return f"{self._endpoint}, folder {self._endpoint.folder}"

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        if not owner:
            raise ValueError("a lease needs an owner: an empty owner means that the lease is free")
        return (
            await asyncio.to_thread(self._acquire, sorted(set(names)), owner, ttl) if names else {}
        )

    async def renew(self, owner: str, ttl: float) -> dict[str, int]:
        return await asyncio.to_thread(self._renew, owner, ttl)

    async def release(self, names: Sequence[str], owner: str) -> Notification | None:
        return await asyncio.to_thread(self._release, set(names), owner) if names else None

    async def owners(self, *, at_renewal: bool = False) -> dict[str, str]:
        return await asyncio.to_thread(self._owners)

    async def read_ledger(self, limit: str, shard: str) -> tuple[bytes, int]:
        return await asyncio.to_thread(self._read_ledger, self._ledger_path(limit, shard))

    async def write_ledger(self, limit: str, shard: str, ledger: bytes, version: int) -> bool:
        path = self._ledger_path(limit, shard)
        return await asyncio.to_thread(self._write_ledger, path, ledger, version)

    def close(self) -> None:
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()

    # in a thread ----------------------------------------------------------------------------------

    def _acquire(self, names: list[str], owner: str, ttl: float) -> dict[str, int]:
        session = self._session(owner, ttl)
        session.renew(ttl)
        versions = dict(zip(names, self._versions(session, names), strict=True))
        transactions = []
        for name, version in versions.items():
            change = session.client.transaction()
            change.set_data(f"{self._ids_folder}/{znode_name(name)}", b"", version)
            # If the last znode can be created, nobody holds the lease.
            change.create(self._held_path(name, version))
            change.delete(self._held_path(name, version))
            data = msgspec.json.encode(owner)
            change.create(self._held_path(name, version + 1), data, ephemeral=True)
            transactions.append(change.commit_async)
        won = {}
        for (name, version), results in zip(
            versions.items(), session.send(transactions), strict=True
        ):
            # If another owner has the lease or has just acquired it, ZooKeeper changes nothing and
            # returns errors.
            if not any(isinstance(result, Exception) for result in results):
                won[name] = version + 1
        return won

    def _versions(self, session: Session, names: list[str]) -> list[int]:
        """Return the last range id of each lease, in the order of `names`; 0 for a new one."""
        paths = [f"{self._ids_folder}/{znode_name(name)}" for name in names]
        reads = [partial(session.client.exists_async, path) for path in paths]
        found = session.send(reads)
        new = [path for path, stat in zip(paths, found, strict=True) if stat is None]
        if new:
            session.send(
                [partial(session.client.create_async, path) for path in new], NodeExistsError
            )
            found = session.send(reads)
        return [stat.version for stat in found]

    def _renew(self, owner: str, ttl: float) -> dict[str, int]:
        session = self._session(owner, ttl)
        range_ids = session.range_ids()
        session.renew(ttl)
        return range_ids

    def _release(self, names: set[str], owner: str) -> Notification:
        with self._lock:
            session = self._sessions.get(owner)
        if session is not None and not session.is_closed:
            paths = [
                self._held_path(name, range_id)
                for name, range_id in session.range_ids().items()
                if name in names
            ]
            session.send(
                [partial(session.client.delete_async, path) for path in paths], NoNodeError
            )
        return Notification(control=True)

    def _owners(self) -> dict[str, str]:
        with self._lock:
            sessions = [each for each in self._sessions.values() if not each.is_closed]
        # The first session, which is that of an owner in a worker, reads the leases anyway.
        session = sessions[0] if sessions else self._session("", _READING_SECONDS)
        return {lease.name: lease.owner for lease in session.leases.read()}

    def _held_path(self, name: str, range_id: int) -> str:
        return f"{self._held_folder}/{held_znode(name, range_id)}"

    def _ledger_path(self, limit: str, shard: str) -> str:
        """Return the path of a shard, which is a child of the first shard."""
        path = f"{self._ledgers_folder}/{znode_name(limit)}"
        return f"{path}/{shard}" if shard else path

    def _read_ledger(self, path: str) -> tuple[bytes, int]:
        session = self._session("", _READING_SECONDS)
        # A server may lag behind the leader; `sync` brings it up to date before the read.
        [_, found] = session.send(
            [partial(session.client.sync_async, path), partial(session.client.get_async, path)],
            NoNodeError,
        )
        if isinstance(found, NoNodeError):
            return b"", 0
        data, stat = found
        return data, stat.version + 1

    def _write_ledger(self, path: str, ledger: bytes, version: int) -> bool:
        client = (session := self._session("", _READING_SECONDS)).client
        write = (
            partial(client.set_async, path, ledger, version - 1)
            if version
            else partial(client.create_async, path, ledger)
        )
        [result] = session.send([write], NodeExistsError, BadVersionError, NoNodeError)
        return not isinstance(result, Exception)

    def _session(self, owner: str, seconds: float) -> _LeaseSession:
        with self._lock:
            session = self._sessions.get(owner)
            if session is None or session.is_closed:
                session = _LeaseSession(self._endpoint, seconds, self._held_folder)
                try:
                    for folder in (self._held_folder, self._ids_folder, self._ledgers_folder):
                        session.make_folder(folder)
                    self._owner.require(session)
                except BaseException:
                    session.close()
                    raise
                self._sessions[owner] = session
            return session
