"""Leases in the task store's own database."""
from __future__ import annotations
from collections.abc import Sequence
import time
import msgspec
from fairlead.ports.coordinator import Lease

class DatabaseCoordinator:
    def __init__(self, store): self._store=store; self._db=store.database
    def _now(self): return time.time_ns()//1000
    def _acq(self, names, owner, ttl):
        now=self._now(); got={}
        for n in sorted(names):
            rows = yield self._store.statement("acquire_lease", n, owner, now+round(ttl*1e6), now)
            for name, rid in rows: got[name]=rid
        return got
    async def acquire(self, names, owner, ttl): return await self._db.run_async(self._acq(names, owner, ttl))
    def _ren(self, owner, ttl):
        now=self._now()
        rows = yield self._store.statement("renew_leases", owner, now+round(ttl*1e6), now)
        return {n:r for n,r in rows}
    async def renew(self, owner, ttl): return await self._db.run_async(self._ren(owner, ttl))
    def _rel(self, names, owner):
        yield self._store.statement("release_leases", owner, msgspec.json.encode(list(names)).decode())
        return None
    async def release(self, names, owner): return await self._db.run_async(self._rel(names, owner))
    def _ls(self):
        rows = yield self._store.statement("leases", self._now())
        return [Lease(*r) for r in rows]
    async def leases(self): return await self._db.read(self._ls())
