"""Sharded permits: a limit by key keeps its ledger in shards, small records of some pools each. No
I/O and no clock.

A pool belongs to the shard whose name begins the hash of the pool, in octal digits. A limit begins
with one shard, named "". A node whose entry does not fit into a shard closes the shard by
compare-and-set, copies its pools to up to eight smaller shards, and then empties it. A closed
ledger never changes otherwise, so every node that finds it can do the same copy, and no node does
anything else with its pools before the copy is complete. The store thereby decides which shards
exist; shards are never joined, so what a node knows of them is true or is corrected by its next
read. Within a shard, `permits` has the rules.

Source: extendible hashing (Fagin, Nievergelt, Pippenger and Strong, 1979), without its directory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from fairlead.core.limits.permits import (
    Holding,
    PermitLedger,
    Pool,
    ShardPermits,
    Share,
    decode,
    encode,
)

T = TypeVar("T")

SPLIT_BYTES = 32 * 1024
"""Size above which a shard with several pools is split."""

FULL_BYTES = 256 * 1024
"""Size above which a shard with one pool, which cannot be split, accepts no more entries. Renewals
add a few bytes at most, so that no record comes near the 1 MB that ZooKeeper accepts."""

READ_EVERY = 1.0
"""Seconds between two reads of a shard by a node that holds permits of it."""

_DIGITS = "01234567"
_DEPTH = 10
"""Digits of the hash of a pool."""

_TRIES_TO_LEAVE = 20


class ReadShard(NamedTuple):
    """Request for the bytes of a shard and their version; (b"", 0) before the first write."""

    shard: str


class WriteShard(NamedTuple):
    """Request to replace the bytes of a shard if they still have the version. The result is whether
    they had it."""

    shard: str
    ledger: bytes
    version: int


class FindEnded(NamedTuple):
    """Request for those of the nodes whose processes have surely ended."""

    nodes: frozenset[str]


Step = ReadShard | WriteShard | FindEnded

LedgerSteps = Generator[Step, Any, T]
"""Requests, mostly to the coordinator, which the caller carries out one by one."""


class LedgerFull(Exception):
    """A shard has no room for an entry of this node."""


class Permits:
    """Permits of one limit on one node. Times are monotonic seconds of this node's clock."""

    def __init__(
        self,
        node: str,
        ttl: float,
        linger: float = 0.0,
        busy: Callable[[bool], None] = lambda is_busy: None,
        ends_at_once: bool = False,
    ) -> None:
        """See `ShardPermits`. `busy` is called for each shard."""
        self._node = node
        self._ttl = ttl
        self._shards = {"": ShardPermits(node, ttl, linger, busy, ends_at_once)}

    # acquire and release --------------------------------------------------------------------------

    def take(self, pool: str, total: int, now: float) -> bool:
        """Acquire one permit of a pool of `total`; return False if this node has none free."""
        return self._shard_of(pool).take(pool, total, now)

    def release(self, pool: str) -> bool:
        """Release a permit; return True if this node may acquire it again at once, False if other
        nodes wait for it."""
        return self._shard_of(pool).release(pool)

    def pool(self, pool: str) -> Pool:
        """Return a pool that this node has acquired permits of, or tried to."""
        return self._shard_of(pool).pool(pool)

    def must_return(self, pool: str) -> bool:
        """Return whether other nodes wait for a permit that is free here, so that a round should
        begin at once."""
        return self._shard_of(pool).must_return(pool)

    @property
    def running(self) -> int:
        """Permits in use, in all pools."""
        return sum(permits.running for permits in self._shards.values())

    @property
    def until(self) -> float | None:
        """Time up to which runs on permits must have ended, for the permits in use that expire
        first; None if no permit is in use."""
        shards = list(self._shards.values())  # another thread may ask
        return min((each.until for each in shards if each.running), default=None)

    @property
    def holds(self) -> bool:
        """Whether the ledger records permits of this node, which have to be renewed."""
        return any(permits.holds for permits in self._shards.values())

    @property
    def shards(self) -> list[str]:
        """Names of the shards that this node knows."""
        return list(self._shards)

    @property
    def shards_in_use(self) -> list[str]:
        """Names of the shards with permits in use."""
        return [shard for shard, permits in list(self._shards.items()) if permits.running]

    def due(self, now: float) -> list[str]:
        """Return the shards that need a round, beginning with the permits that expire first."""
        due = [(each.until, shard) for shard, each in self._shards.items() if each.is_due(now)]
        return [shard for _, shard in sorted(due)]

    # steps on the ledger --------------------------------------------------------------------------

    def round(self, shard: str, clock: Callable[[], float]) -> LedgerSteps[list[str]]:
        """Acquire, renew and return permits of a shard; return the pools that have room. Raises
        LedgerFull, msgspec.DecodeError."""
        permits = self._shards[shard]
        data, version = yield ReadShard(shard)
        ledger = decode(data)
        if ledger.is_closed:
            yield from _copy(shard, ledger, version)
            self._split(shard)
            return []
        nodes = permits.may_have_ended(ledger)
        ended = (yield FindEnded(nodes)) if nodes else ()
        now = clock()
        permits.read_at = now + READ_EVERY
        proposal = permits.propose(ledger, now, ended)
        if not proposal.is_change and now < permits.renew_at:
            permits.unchanged()
            return []
        written = encode(proposal.ledger)
        if len(written) > SPLIT_BYTES and _is_divisible(shard, proposal.ledger):
            closed = encode(PermitLedger(ledger.nodes, ledger.rotation, is_closed=True))
            if (yield WriteShard(shard, closed, version)):
                return (yield from self.round(shard, clock))
        elif len(written) > max(FULL_BYTES, len(data)):
            if now >= permits.renew_at and (yield from self.renew(shard, clock)):
                permits.renew_at = now + self._ttl / 3
            raise LedgerFull(f"{len(data)} bytes of {FULL_BYTES}: too many nodes use one key")
        elif (yield WriteShard(shard, written, version)):
            permits.renew_at = proposal.began + self._ttl / 3
            return permits.written(proposal)
        permits.read_at = float("-inf")  # another node wrote the ledger first
        return []

    def renew(self, shard: str, clock: Callable[[], float]) -> LedgerSteps[bool]:
        """Only renew the permits of a shard; return whether they are renewed. Another thread may do
        this while the event loop is blocked. Raises msgspec.DecodeError."""
        permits, began = self._shards.get(shard), clock()
        if permits is None or not (yield from self._renew(shard, permits)):
            return False  # other nodes have the permits, or the event loop has split the shard
        permits.renewed(began)
        return True

    def _renew(self, shard: str, permits: ShardPermits) -> LedgerSteps[bool]:
        data, version = yield ReadShard(shard)
        ledger = decode(data)
        if not ledger.is_closed:
            renewal = permits.renewal(ledger)
            return renewal is not None and (yield WriteShard(shard, encode(renewal), version))
        yield from _copy(shard, ledger, version)
        # The event loop will learn of the split. Until then `permits` are those of all parts.
        for part in {_part(shard, pool) for pool in permits.pools_in_use}:
            if part.startswith(shard) and not (yield from self._renew(part, permits)):
                return False
        return True

    def leave(self, shard: str, clock: Callable[[], float]) -> LedgerSteps[None]:
        """Remove this node from a shard; from now on, the node acquires no permits of it. Permits
        still in use stay recorded until other nodes take them back. Raises
        msgspec.DecodeError."""
        for _ in range(_TRIES_TO_LEAVE):
            data, version = yield ReadShard(shard)
            ledger = decode(data)
            if ledger.is_closed:
                yield from _copy(shard, ledger, version)
                self._split(shard)
                for digit in _DIGITS:
                    yield from self.leave(shard + digit, clock)
                return
            if self._node not in ledger.nodes:
                return
            left = self._shards[shard].leave(ledger, clock())
            if (yield WriteShard(shard, encode(left), version)):
                return

    def _shard_of(self, pool: str) -> ShardPermits:
        shards = self._shards
        if len(shards) == 1:
            return shards[""]
        path = _path(pool)
        return next(shards[path[:n]] for n in range(1, _DEPTH + 1) if path[:n] in shards)

    def _split(self, shard: str) -> None:
        permits = self._shards.pop(shard)
        pools: dict[str, set[str]] = {shard + digit: set() for digit in _DIGITS}
        for pool in permits.pools:
            pools[_part(shard, pool)].add(pool)
        self._shards.update((part, permits.part(each)) for part, each in pools.items())


def held_permits(shard: str = "") -> LedgerSteps[dict[str, int]]:
    """Return the number of permits of each pool that nodes hold, in a shard and its parts. Raises
    msgspec.DecodeError."""
    held: dict[str, int] = {}
    for (pool, _), permits in (yield from permit_holders(shard)).items():
        held[pool] = held.get(pool, 0) + permits
    return held


def permit_holders(shard: str = "") -> LedgerSteps[dict[tuple[str, str], int]]:
    """Return the number of permits by (pool, node), in a shard and its parts. Raises
    msgspec.DecodeError."""
    data, _ = yield ReadShard(shard)
    ledger = decode(data)
    held = {
        (pool, node): share.held
        for node, holding in ledger.nodes.items()
        for pool, share in holding.shares.items()
    }
    if ledger.is_closed and not ledger.nodes:
        for digit in _DIGITS:
            held |= yield from permit_holders(shard + digit)
    return held


def _copy(shard: str, ledger: PermitLedger, version: int) -> LedgerSteps[None]:
    """Copy the pools of a closed ledger to its parts, then empty it; do nothing that another node
    has done."""
    if not ledger.nodes:
        return
    parts: dict[str, dict[str, Holding]] = {}
    for node, holding in ledger.nodes.items():
        shares: dict[str, dict[str, Share]] = {}
        for pool, share in holding.shares.items():
            shares.setdefault(_part(shard, pool), {})[pool] = share
        for part, each in shares.items():
            parts.setdefault(part, {})[node] = Holding(holding.beat, each, holding.ends_at_once)
    for part, nodes in parts.items():
        # A part that exists already is the same copy, or what nodes have made of it since.
        yield WriteShard(part, encode(PermitLedger(nodes, ledger.rotation)), 0)
    yield WriteShard(shard, encode(PermitLedger(is_closed=True)), version)


def _is_divisible(shard: str, ledger: PermitLedger) -> bool:
    """Return whether a shard has several pools, of which smaller shards would have fewer."""
    paths = {_path(pool) for holding in ledger.nodes.values() for pool in holding.shares}
    return len(paths) > 1 and len(shard) < _DEPTH


def _part(shard: str, pool: str) -> str:
    """Return the part of a shard that a pool belongs to."""
    return _path(pool)[: len(shard) + 1]


@lru_cache(1 << 16)
def _path(pool: str) -> str:
    """Return the name of the smallest shard of a pool: octal digits of the hash of its name."""
    return f"{int.from_bytes(blake2b(pool.encode(), digest_size=4).digest()) >> 2:0{_DEPTH}o}"
