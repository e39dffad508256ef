"""Permits: limits that hold over the whole cluster, though every booking is local. Pure.

Each node holds some of a limit's permits and books from those. What each holds is written in one
book per limit, which is changed by compare-and-set only, so that the sum never exceeds the limit. A
node uses its permits until `ttl` after it began the last write that was confirmed; whoever sees a
node's beat unchanged for longer than that, by its own clock, takes its permits back. So no clocks
are compared, and setting one does no harm; only their rates must agree within `DRIFT`.

Source: leases (Gray and Cheriton, 1989), with expiry by observation as in the lock client of
Amazon's DynamoDB; shares by max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

DRIFT = 0.05
"""How much faster one clock may run than another, as a part: those of today's machines differ by
less than a thousandth."""

STOP_AT = 0.8
"""Part of the time without a renewal after which nothing more is booked, and what runs has to
end."""

TURN_SECONDS = 1.0
"""For so long at least the same nodes come first for what cannot be shared evenly."""


class Share(msgspec.Struct, array_like=True, frozen=True):
    """A node's part of one pool: a level of a limit, or one key of it."""

    held: int
    wanted: int
    """What it could use now."""


class Holding(msgspec.Struct, array_like=True, frozen=True):
    """All that a node holds of a limit."""

    beat: int
    """Raised at each write of this node: it lives."""
    shares: dict[str, Share]


class PermitLedger(msgspec.Struct, array_like=True, frozen=True):
    """Who holds what of one limit."""

    nodes: dict[str, Holding] = {}
    rotation: int = 0
    """Who comes first for permits that cannot be shared evenly."""


def encode(ledger: PermitLedger) -> bytes:
    """As it is kept."""
    return msgspec.json.encode(ledger)


def decode(data: bytes) -> PermitLedger:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=PermitLedger) if data else PermitLedger()


def fair_shares(total: int, wanted: Mapping[str, int], rotation: int) -> dict[str, int]:
    """Whole permits for each node, at most what it wants: max-min fair, the rest by turns in the
    order of their names.

    total: permits; turn: which of the nodes that still want more gets the first of the rest. Sums
    to min(total, wants).
    """
    shares = dict.fromkeys(wanted, 0)
    thirsty = sorted(node for node, want in wanted.items() if want > 0)
    left = total
    while thirsty and left >= len(thirsty):
        # All get as much as the one that wants least, or as there is.
        each = min(left // len(thirsty), min(wanted[node] - shares[node] for node in thirsty))
        for node in thirsty:
            shares[node] += each
        left -= each * len(thirsty)
        thirsty = [node for node in thirsty if shares[node] < wanted[node]]
    for n in range(min(left, len(thirsty))):
        shares[thirsty[(rotation + n) % len(thirsty)]] += 1
    return shares


class _Pool:
    """One pool as this node sees it."""

    __slots__ = ("due", "most", "recorded", "refused", "running", "total", "usable")

    def __init__(self, total: int) -> None:
        self.total = total
        self.recorded = 0
        """Permits that are ours by the book, as it was last confirmed."""
        self.usable = 0
        """Of these what we still book from: the rest is on its way back."""
        self.due = 0
        """Our fair share, as of the last round: what is above it goes back when it is free."""
        self.running = 0
        self.most = 0
        """The most that ran at once since the last round."""
        self.refused = False
        """Something had to wait, and there has been no room since."""

    @property
    def is_owing(self) -> bool:
        """Some permits are free and no longer booked from: they are to go back."""
        return self.recorded > max(self.usable, self.running)

    @property
    def want(self) -> int:
        """What it could use: the most that ran lately; twice as many as it has, when that was not
        enough."""
        want = max(self.running, self.most)
        if self.refused:
            want = max(want + 1, 2 * self.usable)
        return min(want, self.total)


class Proposal(NamedTuple):
    """What to write into the book, and what it does to us."""

    ledger: PermitLedger
    began: float
    """Monotonic seconds, before the write is sent: permits count from here."""
    is_news: bool
    """It changes more than our beat: worth a write before the permits have to be renewed."""


class Permits:
    """One node's permits of one limit. Times are monotonic seconds of this node's clock.

    A round: read the book, `propose`, write that by compare-and-set on what was read, and if that
    is confirmed, `written`.
    """

    def __init__(
        self,
        node: str,
        ttl: float,
        linger: float = 0.0,
        busy: Callable[[bool], None] = lambda is_busy: None,
    ) -> None:
        """`linger`: seconds for which a permit counts as used after its node may no longer book
        from it. `busy` is told when the first permit is booked, before anything runs on it, and
        when the last one was given back."""
        self._node = node
        self._ttl = ttl
        self._linger = linger
        self._busy = busy
        self.running = 0
        """Bookings that are not yet given back, in all pools."""
        self._pools: dict[str, _Pool] = {}
        self._until = float("-inf")
        self._seen: dict[str, tuple[int, float]] = {}
        """Of each other node the beat, and since when we have seen it."""
        self._rotation_seen: tuple[int, float] = (0, float("-inf"))
        self._beat = 0

    @property
    def until(self) -> float:
        """Up to here the permits may be used; what still runs on them must have ended by then."""
        return self._until

    @property
    def usable_until(self) -> float:
        """Up to here permits are booked; between this and `until` what runs has time to end."""
        return self._until - (1 - STOP_AT) * self._ttl

    # booking --------------------------------------------------------------------------------------

    def take(self, name: str, total: int, now: float) -> bool:
        """Book one permit of a pool of so many. False: none is here."""
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool(total)
        if pool.running >= pool.usable or now >= self.usable_until:
            pool.refused = True
            return False
        pool.running += 1
        pool.most = max(pool.most, pool.running)
        self.running += 1
        if self.running == 1:
            self._busy(True)
        return True

    def give(self, name: str) -> bool:
        """Give a booked permit back; True if this node may book it again at once, False if others
        have waited for it."""
        pool = self._pools[name]
        pool.running -= 1
        self.running -= 1
        if self.running == 0:
            self._busy(False)
        if pool.usable > pool.due:
            pool.usable -= 1
        return pool.running < pool.usable

    @property
    def holds(self) -> bool:
        """Some permits are this node's by the book, and have to be renewed."""
        return any(pool.recorded for pool in self._pools.values())

    def owes(self, name: str) -> bool:
        """Others wait for a permit of this pool that is free here: a round should not wait."""
        return self._pools[name].is_owing

    @property
    def is_pressing(self) -> bool:
        """The same of any pool, or something waits for a permit here."""
        return any(pool.refused or pool.is_owing for pool in self._pools.values())

    # rounds ---------------------------------------------------------------------------------------

    def propose(self, ledger: PermitLedger, now: float) -> Proposal:
        """What this node would write into the book as it was read just now. From here on permits
        that the proposal gives back are not booked any more, whatever becomes of it."""
        others = self._living(ledger, now)
        if self._node not in ledger.nodes:
            # Never was, or taken back: by somebody whose clock runs too fast, or by hand.
            self._lose()
        rotation = self._rotation(ledger, now)
        shares: dict[str, Share] = {}
        for name, pool in self._pools.items():
            of_others = {node: h.shares[name] for node, h in others.items() if name in h.shares}
            want = pool.want
            wants = {node: share.wanted for node, share in of_others.items()} | {self._node: want}
            free = max(0, pool.total - sum(share.held for share in of_others.values()))
            pool.due = fair_shares(pool.total, wants, rotation)[self._node]
            held = min(free, max(pool.running, min(want, pool.due)))
            pool.usable = min(pool.usable, held)
            if held or want:
                shares[name] = Share(held, want)
        before = ledger.nodes.get(self._node)
        self._beat = max(self._beat, before.beat if before is not None else 0) + 1
        mine = {self._node: Holding(self._beat, shares)} if shares else {}
        is_news = before is None if shares else before is not None
        is_news = (
            is_news
            or rotation != ledger.rotation
            or (before is not None and before.shares != shares)
        )
        return Proposal(
            PermitLedger({**others, **mine}, rotation),
            now,
            is_news or len(others) + 1 < len(ledger.nodes),
        )

    def written(self, proposal: Proposal) -> list[str]:
        """The proposal is in the book. Answers the pools that have room."""
        mine = proposal.ledger.nodes.get(self._node)
        if mine is None:
            self._lose()
            self._pools = {
                name: pool for name, pool in self._pools.items() if pool.running or pool.refused
            }
            return []
        self._until = proposal.began + self._ttl
        roomy = []
        for name, pool in list(self._pools.items()):
            share = mine.shares.get(name)
            if share is None:
                if not pool.running and not pool.refused:
                    del self._pools[name]
                continue
            # What became free since the proposal and is beyond our share goes back the next time.
            pool.recorded = share.held
            pool.usable = min(share.held, max(pool.due, pool.running))
            pool.most = pool.running
            if pool.running < pool.usable:
                pool.refused = False
                roomy.append(name)
        return roomy

    def leave(self, ledger: PermitLedger) -> PermitLedger:
        """The book without this node, which books nothing any more; what is still booked stays its,
        until it is taken back."""
        self._lose()
        nodes = {node: holding for node, holding in ledger.nodes.items() if node != self._node}
        before = ledger.nodes.get(self._node)
        used = {name: Share(pool.running, 0) for name, pool in self._pools.items() if pool.running}
        if used and before is not None:
            nodes[self._node] = Holding(before.beat, used)
        return PermitLedger(nodes, ledger.rotation)

    def _lose(self) -> None:
        self._until = float("-inf")
        for pool in self._pools.values():
            pool.usable = pool.recorded = 0

    def _living(self, ledger: PermitLedger, now: float) -> dict[str, Holding]:
        """The other nodes, less those whose beat has not changed for longer than they may use their
        permits."""
        seen: dict[str, tuple[int, float]] = {}
        for node, holding in ledger.nodes.items():
            if node != self._node:
                beat, since = self._seen.get(node, (-1, now))
                seen[node] = (beat, since) if beat == holding.beat else (holding.beat, now)
        self._seen = seen
        patience = (self._ttl + self._linger) * (1 + DRIFT)
        return {
            node: holding
            for node, holding in ledger.nodes.items()
            if node != self._node and now - seen[node][1] <= patience
        }

    def _rotation(self, ledger: PermitLedger, now: float) -> int:
        """The next one's, when somebody here waits and the turn has not changed for a while."""
        rotation, since = self._rotation_seen
        if rotation != ledger.rotation:
            rotation, since = ledger.rotation, now
        if now - since >= TURN_SECONDS and any(pool.refused for pool in self._pools.values()):
            rotation, since = rotation + 1, now
        self._rotation_seen = (rotation, since)
        return rotation


def held(ledger: PermitLedger, pool: str) -> int:
    """Permits of a pool that are given out."""
    return sum(
        holding.shares[pool].held for holding in ledger.nodes.values() if pool in holding.shares
    )
