"""Permits: cluster-wide limits whose slots each node acquires locally. No I/O and no clock.

Each node holds some of a limit's permits and acquires slots from those. A ledger records what each
node holds; it is changed by compare-and-set only, so that the sum never exceeds the limit. A limit
by key has one ledger per shard of its keys: see `sharded_permits`. A node uses its permits until
`ttl` after it began the last confirmed write; a node that sees another node's heartbeat unchanged
for longer, by its own clock, takes that node's permits back. Where the end of another node's
process, and so of its runs, is certain, it takes them back at once. So no clocks are compared and
setting a clock does no harm; only the rates of the clocks must agree within `DRIFT`.

Source: leases (Gray and Cheriton, 1989), with expiry by observation as in the lock client of
Amazon's DynamoDB; shares by max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

import msgspec

from fairlead.model.fields import Count
from fairlead.model.reading import json_reader

DRIFT = 0.05
"""Fraction by which one clock may run faster than another; those of today's machines differ by less
than a thousandth."""

STOP_AT = 0.8
"""Fraction of the `ttl` without a renewal after which no permit is acquired and runs have to
end."""

ROTATION_SECONDS = 1.0
"""Time for which a node may use permits that it has just got for one run after the other, although
other nodes wait for them."""

CERTAIN_SECONDS = 3.0
"""Shortest time after which the starts of a node whose process seems to have ended no longer count:
a node that has lost its connection only sees within it that others have its permits."""

KEEP_SECONDS = 60.0
"""Time for which a node keeps a permit for a trigger that waits for another limit, although other
nodes wait for the permit. It ends because two tasks may acquire two shared limits in opposite
orders."""


class Share(msgspec.Struct, array_like=True, frozen=True):
    """Share of a node in one pool: a level of a limit, or one key of it."""

    held: Count
    wanted: Count
    """Permits that the node could use now."""
    rotation: Count = 0
    """Number of the rotation in which the node began to wait, or got or returned a permit last."""
    left: tuple[Count, ...] = ()
    """Milliseconds after which each permit of a rate limit is free, if the node has left."""


class Holding(msgspec.Struct, array_like=True, frozen=True):
    """Permits of a limit that a node holds."""

    beat: Count
    """Heartbeat: a number that each write of this node raises."""
    shares: dict[str, Share]
    ends_at_once: bool = False
    """Whether the runs on these permits end with the process of the node."""


class PermitLedger(msgspec.Struct, array_like=True, frozen=True):
    """Permits of one shard of a limit, by node."""

    nodes: dict[str, Holding] = {}
    rotation: Count = 0
    """Number of the last rotation: of the last write after which a node waits or holds another
    number of permits."""
    is_closed: bool = False
    """Whether the pools move to smaller shards; the only change to come removes the nodes."""


_read = json_reader(PermitLedger)


def encode(ledger: PermitLedger) -> bytes:
    """Return the ledger as stored bytes."""
    return msgspec.json.encode(ledger)


def decode(data: bytes) -> PermitLedger:
    """Return the ledger of stored bytes. Raises msgspec.DecodeError."""
    return _read(data) if data else PermitLedger()


def fair_shares(total: int, shares: Mapping[str, Share]) -> dict[str, int]:
    """Return whole permits for each node, at most what it wants: max-min fair.

    The rest goes one by one to the nodes that hold fewest, and of these to those whose rotation was
    longest ago, so that all nodes get it one after the other. Sums to min(total, wants).
    """
    wanted = {node: share.wanted for node, share in shares.items()}
    if sum(wanted.values()) <= total:
        return wanted
    due = dict.fromkeys(wanted, 0)
    wanting = [node for node, want in wanted.items() if want > 0]
    left = total
    while wanting and left >= len(wanting):
        # All nodes get as much as the node that wants least, or as much as there is.
        each = min(left // len(wanting), min(wanted[node] - due[node] for node in wanting))
        for node in wanting:
            due[node] += each
        left -= each * len(wanting)
        wanting = [node for node in wanting if due[node] < wanted[node]]
    wanting.sort(key=lambda node: (shares[node].held, shares[node].rotation, node))
    for node in wanting[:left]:
        due[node] += 1
    return due


class _Awaited(NamedTuple):
    """A pool, of any limit, that refused a trigger which had a permit of another pool."""

    pool: Pool
    refusal: int
    """Number of that refusal."""


@dataclass(slots=True, eq=False)
class Pool:
    """One pool on this node."""

    total: int
    recorded: int = 0
    """Permits of this node in the last confirmed ledger."""
    usable: int = 0
    """Recorded permits that this node may still acquire; the others are being returned."""
    due: int = 0
    """Fair share of this node in the last round; free permits above it are returned."""
    rotate_at: float = 0.0
    """Monotonic seconds up to which all recorded permits are due to this node."""
    unused_since: float | None = None
    """Time since when no node holds a permit that this node wants and that is due to another
    one."""
    running: int = 0
    cooling: list[float] = field(default_factory=list)
    """End of use of each permit of a rate limit with which a task has started (monotonic seconds),
    ascending."""
    most: int = 0
    """Maximum number of permits in use at once since the last round."""
    refused: bool = False
    """Whether a trigger had to wait and there has been no room since."""
    is_untried: bool = False
    """Whether there is room since the last round, and no trigger has used it yet."""
    refusals: int = 0
    """Number of times `refused` was set."""
    awaited: _Awaited | None = None
    """Pool for which the trigger waits that acquired a permit of this one."""
    keep_until: float = 0.0
    """Monotonic seconds up to which a permit is kept for that trigger."""

    def refuse(self) -> None:
        """Let a trigger wait for a permit."""
        if not self.refused:
            self.refused = True
            self.refusals += 1

    def keep(self, awaited: Pool, now: float) -> None:
        """Keep a permit for a trigger that acquired it, and then found the pool `awaited` empty.

        The trigger needs both permits at once. Permits of a wider pool are asked for while those
        of the narrower ones are kept, never the other way round. So two nodes do not wait for each
        other.
        """
        found = _Awaited(awaited, awaited.refusals)
        if self.awaited != found:
            self.awaited, self.keep_until = found, now + KEEP_SECONDS

    @property
    def is_awaiting(self) -> bool:
        """Whether a trigger that needs a permit of this pool waits for the awaited one, or has not
        been tried again since that one came."""
        if self.awaited is None:
            return False
        pool, refusal = self.awaited
        return pool.refusals == refusal and (pool.refused or pool.is_untried)

    def needed(self, now: float) -> int:
        """Return the number of permits in use or kept."""
        is_kept = self.running < self.usable and now < self.keep_until and self.is_awaiting
        return self.running + is_kept

    @property
    def is_asking(self) -> bool:
        """Whether a trigger needs a permit of this pool that the node has not."""
        return self.refused or (self.running >= self.usable and self.is_awaiting)

    @property
    def must_return(self) -> bool:
        """Whether free permits may no longer be acquired and have to be returned."""
        return self.recorded > max(self.usable, self.running)

    def want(self, inherited: int) -> int:
        """Return how many permits the node could use beside those `inherited`: the most in use
        lately; twice as many as it has if that was not enough."""
        want = max(self.running + self.is_awaiting, self.most) + inherited
        if self.refused:
            want = max(want + 1, 2 * self.usable)
        return min(want, self.total)


class LedgerProposal(NamedTuple):
    """A ledger to write, and its effects on this node."""

    ledger: PermitLedger
    began: float
    """Monotonic seconds before the write is sent; the permits' `ttl` begins here."""
    is_change: bool
    """Whether it changes more than our heartbeat, so that the write should not wait for the
    renewal."""
    inherited: Mapping[str, list[float]] = {}
    """Ends of use of the permits that each pool gets from nodes that have left (monotonic
    seconds)."""


class ShardPermits:
    """Permits of one shard of a limit on one node. Times are monotonic seconds of the node's clock.

    A round: read the ledger, `propose`, write the proposal by compare-and-set on the version that
    was read and, if the write is confirmed, call `written`.
    """

    def __init__(
        self,
        node: str,
        ttl: float,
        linger: float = 0.0,
        busy: Callable[[bool], None] = lambda is_busy: None,
        ends_at_once: bool = False,
    ) -> None:
        """`linger`: seconds for which a permit stays in use after its node may no longer acquire
        it. `busy`: called with True when the first permit is acquired, before anything runs on it,
        and with False when the last one is released. `ends_at_once`: whether runs end with the
        process of this node."""
        self._node = node
        self._ttl = ttl
        self._linger = linger
        self._busy = busy
        self._ends_at_once = ends_at_once
        self.running = 0
        """Permits in use, in all pools."""
        self._pools: dict[str, Pool] = {}
        self.until = float("-inf")
        """Time up to which permits may be used; runs on them must have ended by then."""
        self._heartbeats: dict[str, tuple[int, float]] = {}
        """Heartbeat of each other node, and when this node first saw it (monotonic seconds)."""
        self._ended: dict[str, float] = {}
        """Time at which this node found that the process of another node had ended."""
        self._beat = 0
        self.read_at = float("-inf")
        """Time from which the ledger is read again while this node holds permits."""
        self.renew_at = float("-inf")
        """Time from which the permits are renewed although nothing has changed."""

    def part(self, pools: Collection[str]) -> ShardPermits:
        """Return the permits of some of the pools, for a smaller shard. Other nodes are observed
        anew, so their permits are taken back later, and never sooner."""
        part = ShardPermits(self._node, self._ttl, self._linger, self._busy, self._ends_at_once)
        part._pools = {name: self._pools[name] for name in pools}
        part.running = sum(pool.running for pool in part._pools.values())
        part.until, part._beat, part.renew_at = self.until, self._beat, self.renew_at
        return part

    @property
    def usable_until(self) -> float:
        """Time up to which permits may be acquired; between this and `until`, runs can end."""
        return self.until - (1 - STOP_AT) * self._ttl

    # acquire and release --------------------------------------------------------------------------

    def take(self, name: str, total: int, now: float) -> bool:
        """Acquire one permit of a pool of `total`; return False if this node has none free."""
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = Pool(total)
        self._pass_time(name, now)
        if pool.running >= pool.usable or now >= self.usable_until:
            pool.refuse()
            return False
        pool.is_untried = False
        pool.running += 1
        pool.most = max(pool.most, pool.running)
        self.running += 1
        if self.running == 1:
            self._busy(True)
        return True

    def pool(self, name: str) -> Pool:
        """Return a pool that this node has acquired permits of, or tried to."""
        return self._pools[name]

    def _pass_time(self, name: str, now: float) -> None:
        """Release the permits of a rate limit whose use has ended."""
        cooling = self._pools[name].cooling
        while cooling and cooling[0] <= now:
            del cooling[0]
            self.release(name)

    def release(self, name: str) -> bool:
        """Release a permit; return True if this node may acquire it again at once, False if other
        nodes wait for it."""
        pool = self._pools[name]
        pool.running -= 1
        self.running -= 1
        if self.running == 0:
            self._busy(False)
        if pool.usable > max(pool.due, pool.running + pool.is_awaiting):
            pool.usable -= 1
        return pool.running < pool.usable

    @property
    def holds(self) -> bool:
        """Whether the ledger records permits of this node, which have to be renewed."""
        return any(pool.recorded for pool in self._pools.values())

    def must_return(self, name: str) -> bool:
        """Return whether other nodes wait for a permit that is free here, so that a round should
        begin at once."""
        return self._pools[name].must_return

    def is_due(self, now: float) -> bool:
        """Return whether the ledger has to be read, above all because a pool owes permits, or a
        trigger waits for a permit here."""
        is_urgent = any(pool.is_asking or pool.must_return for pool in self._pools.values())
        return is_urgent or (now >= self.read_at and self.holds)

    @property
    def pools(self) -> list[str]:
        """Return the pools that this node has acquired permits of, or tried to."""
        return list(self._pools)

    @property
    def pools_in_use(self) -> list[str]:
        """Return the pools of which this node uses permits."""
        return [name for name, pool in self._pools.items() if pool.running]

    # rounds ---------------------------------------------------------------------------------------

    def may_have_ended(self, ledger: PermitLedger) -> frozenset[str]:
        """Return the nodes whose permits a trigger here could have if their processes had ended."""
        asking = [name for name, pool in self._pools.items() if pool.is_asking]
        return frozenset(
            node
            for node, holding in ledger.nodes.items()
            if node != self._node
            and holding.ends_at_once
            and any(name in holding.shares for name in asking)
        )

    def propose(
        self, ledger: PermitLedger, now: float, ended: Collection[str] = ()
    ) -> LedgerProposal:
        """Return the ledger that this node would write in place of `ledger`, which it has just
        read. From now on, permits that the proposal returns cannot be acquired, even if the
        proposal is never written. `ended`: those of `may_have_ended` whose processes have surely
        ended."""
        others = self._living(ledger, now, ended)
        for name in self._pools:
            self._pass_time(name, now)
        if self._node not in ledger.nodes:
            # New in the ledger, or removed from it: its permits expired, or by hand.
            self._lose_permits()
            if self.running:
                # Other nodes may use the permits of these runs: acquire none until the runs ended.
                return LedgerProposal(PermitLedger(others, ledger.rotation), now, False)
        others, inherited = self._inherit(others, now)
        before, later = ledger.nodes.get(self._node), ledger.rotation + 1
        shares: dict[str, Share] = {}
        for name, pool in self._pools.items():
            of_pool = {
                node: share
                for node, holding in others.items()
                if (share := holding.shares.get(name)) is not None
            }
            mine = before.shares.get(name) if before is not None else None
            more = len(inherited.get(name, ()))
            share = self._share(pool, more, mine or Share(0, 0, later), of_pool, now)
            if share.held or pool.is_asking:
                is_same = mine is not None and mine.held == share.held
                shares[name] = share if is_same else Share(share.held, share.wanted, later)
        self._beat = max(self._beat, before.beat if before is not None else 0) + 1
        nodes = dict(others)
        if shares:
            nodes[self._node] = Holding(self._beat, shares, self._ends_at_once)
        is_rotated = any(share.rotation == later for share in shares.values())
        is_change = before.shares != shares if before is not None else bool(shares)
        return LedgerProposal(
            PermitLedger(nodes, later if is_rotated else ledger.rotation),
            now,
            is_change or len(others) + 1 < len(ledger.nodes),
            inherited,
        )

    def _share(
        self, pool: Pool, inherited: int, mine: Share, others: dict[str, Share], now: float
    ) -> Share:
        """Return the next share of this node in a pool. `inherited`: number of permits that it gets
        from nodes that have left. `mine`, `others`: the shares now."""
        want = pool.want(inherited)
        shares = {**others, self._node: Share(mine.held, want, mine.rotation)}
        pool.due = fair_shares(pool.total, shares)[self._node]
        if now < pool.rotate_at:
            pool.due = max(pool.due, pool.recorded)
        free = max(0, pool.total - sum(share.held for share in others.values()))
        if free <= max(mine.held, pool.due) or not pool.is_asking:
            pool.unused_since = None
        elif pool.unused_since is None:
            pool.unused_since = now
        elif now - pool.unused_since >= ROTATION_SECONDS:
            pool.due = min(want, free)  # the node that it is due to may hang
        held = min(free, max(pool.needed(now) + inherited, min(want, pool.due)))
        pool.usable = min(pool.usable, held)
        return Share(held, want, mine.rotation)

    def written(self, proposal: LedgerProposal) -> list[str]:
        """Record that the proposal is in the ledger; return the pools that have room, and those
        that got permits in use, so that a trigger learns when these are free."""
        mine = proposal.ledger.nodes.get(self._node)
        for name, pool in self._pools.items():
            pool.is_untried = False
            inherited = proposal.inherited.get(name, ())
            pool.running += len(inherited)
            self.running += len(inherited)
            pool.cooling = sorted([*pool.cooling, *inherited])
        if mine is None:
            self._lose_permits()
            self._pools = {
                name: pool for name, pool in self._pools.items() if pool.running or pool.is_asking
            }
            return []
        self.until = proposal.began + self._ttl
        with_room = []
        for name, pool in list(self._pools.items()):
            share = mine.shares.get(name)
            if share is None:
                if not pool.running and not pool.is_asking:
                    del self._pools[name]
                continue
            # Permits above our share that were released since the proposal are returned next time.
            if share.held > pool.recorded:
                pool.rotate_at = proposal.began + ROTATION_SECONDS
                pool.keep_until = proposal.began + KEEP_SECONDS
            pool.recorded = share.held
            pool.usable = min(share.held, max(pool.due, pool.needed(proposal.began)))
            pool.most = pool.running
            if pool.running < pool.usable:
                pool.is_untried, pool.refused = pool.refused, False
                with_room.append(name)
            elif name in proposal.inherited:
                with_room.append(name)
        return with_room

    def unchanged(self) -> None:
        """Record that a round has ended without a write, because nothing has changed."""
        for pool in self._pools.values():
            pool.most = pool.running
            pool.is_untried = False

    def renewal(self, ledger: PermitLedger) -> PermitLedger | None:
        """Return the ledger with a newer heartbeat of this node and nothing else changed; None if
        it records no permits of this node."""
        mine = ledger.nodes.get(self._node)
        if mine is None:
            return None
        self._beat = max(self._beat, mine.beat) + 1
        renewed = Holding(self._beat, mine.shares, self._ends_at_once)
        return PermitLedger({**ledger.nodes, self._node: renewed}, ledger.rotation)

    def renewed(self, began: float) -> None:
        """Record that a renewal is in the ledger. `began`: time before the ledger was read."""
        if self.until > float("-inf"):
            self.until = max(self.until, began + self._ttl)

    def leave(self, ledger: PermitLedger, now: float) -> PermitLedger:
        """Return the ledger without this node; from now on, the node acquires no permits. Permits
        still in use stay recorded until other nodes take them back, those of a rate limit with the
        time for which they stay in use, also those of nodes that have ended."""
        self._lose_permits()
        nodes = {
            node: self._passed_on(node, holding, now)
            for node, holding in ledger.nodes.items()
            if node != self._node
        }
        before = ledger.nodes.get(self._node)
        used = {
            name: Share(pool.running, 0, 0, self._left(pool, now))
            for name, pool in self._pools.items()
            if pool.running
        }
        if used and before is not None:
            # A newer heartbeat, because the time of the permits counts from when it is seen.
            nodes[self._node] = Holding(before.beat + 1, used, self._ends_at_once)
        return PermitLedger(nodes, ledger.rotation)

    def _passed_on(self, node: str, holding: Holding, now: float) -> Holding:
        """Return the holding of another node, with the time for which its starts still count if
        this node knows that it has ended."""
        ended_at = self._ended.get(node)
        has_left = any(share.left for share in holding.shares.values())
        if ended_at is None or not self._linger or has_left:
            return holding
        if self._heartbeats[node][0] != holding.beat:
            return holding  # it lives
        end = ended_at + max(self._linger * (1 + DRIFT), CERTAIN_SECONDS)
        left = max(0, ceil((end - now) * 1000))
        shares = {
            name: Share(share.held, 0, 0, (left,) * share.held)
            for name, share in holding.shares.items()
        }
        return Holding(holding.beat + 1, shares, holding.ends_at_once)

    def _left(self, pool: Pool, now: float) -> tuple[int, ...]:
        """Return the milliseconds for which the permits of a rate limit stay in use; a task that is
        about to start uses its permit for the whole time from now on."""
        if not self._linger:
            return ()
        ends = [*pool.cooling, *[now + self._linger] * (pool.running - len(pool.cooling))]
        return tuple(max(0, ceil((end - now) * 1000)) for end in ends)

    def _inherit(
        self, others: dict[str, Holding], now: float
    ) -> tuple[dict[str, Holding], dict[str, list[float]]]:
        """Return the other nodes without permits that nodes have left to the pools of this node,
        and the ends of those still in use, by pool. Their time counts from when this node first saw
        them."""
        kept, inherited = {}, defaultdict[str, list[float]](list)
        for node, holding in others.items():
            shares = dict(holding.shares)
            for name in shares.keys() & self._pools.keys():
                if left := shares[name].left:
                    del shares[name]
                    since = self._heartbeats[node][1]
                    ends = [since + each / 1000 * (1 + DRIFT) for each in left]
                    inherited[name] += [end for end in ends if end > now]
            if shares:
                kept[node] = Holding(holding.beat, shares, holding.ends_at_once)
        return kept, {name: ends for name, ends in inherited.items() if ends}

    def _lose_permits(self) -> None:
        self.until = float("-inf")
        for pool in self._pools.values():
            pool.usable = pool.recorded = 0

    def _living(
        self, ledger: PermitLedger, now: float, ended: Collection[str]
    ) -> dict[str, Holding]:
        """Return the other nodes without those that have ended, or whose heartbeat has not changed
        for longer than they may use their permits."""
        others = {node: holding for node, holding in ledger.nodes.items() if node != self._node}
        heartbeats: dict[str, tuple[int, float]] = {}
        for node, holding in others.items():
            beat, since = self._heartbeats.get(node, (-1, now))
            heartbeats[node] = (beat, since) if beat == holding.beat else (holding.beat, now)
        self._heartbeats = heartbeats
        self._ended = {
            node: self._ended.get(node, now)
            for node, (_, since) in heartbeats.items()
            if node in ended or since <= self._ended.get(node, float("-inf"))
        }
        linger = self._linger * (1 + DRIFT)
        patience = linger + self._ttl * (1 + DRIFT)
        return {
            node: holding
            for node, holding in others.items()
            if now - heartbeats[node][1] <= patience
            and not (
                node in self._ended
                and now - self._ended[node] >= (max(linger, CERTAIN_SECONDS) if linger else 0.0)
            )
        }
