"""Promises: how many triggers a node has offered to take, by owner. No I/O and no clock.

A node offers its free slots, and for short tasks a few more, so that the next tasks are there when
a slot becomes free. The receiver's side of credit-based flow control (Kung, Blackwell and Chapman
1994) is here, the sender's side in `fairlead.core.grants.credits`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fairlead.model.peer import Call, Grant, Offer

PROMISE_SECONDS = 3.0
"""Seconds after which a promise that was not used is void. The node returns triggers that are
granted later."""

CALL_SECONDS = 15.0
"""Seconds for which a call is remembered."""

RECENT = 0.2
"""Seconds within which an offer and a call may have crossed on their way."""

MOST_AHEAD = 1000
"""Maximum number of triggers offered beyond the free slots."""

_SMOOTH = 0.3
"""Weight of a new measurement in a mean (0 to 1)."""


@dataclass(slots=True)
class _Promise:
    session: int
    names: Sequence[tuple[str, str]] = ()
    """Names of the last call."""
    called_at: float = -math.inf
    total: int = 0
    received: int = 0
    offered_at: float = -math.inf
    measured_at: float = -math.inf
    """Time of the offer that the next grant measures; minus infinity if none waits."""

    @property
    def open(self) -> int:
        return max(0, self.total - self.received)


@dataclass(slots=True)
class _Rate:
    """Starts of granted tasks per second."""

    since: float
    count: int = 0
    mean: float = 0.0

    def measure(self, now: float) -> float:
        took = now - self.since
        if took >= 0.2:
            self.mean += (self.count / took - self.mean) * (_SMOOTH if took < 1.0 else 1.0)
            self.since, self.count = now, 0
        return self.mean


@dataclass
class Promises:
    """The promises of one node. Times are monotonic seconds."""

    node: str
    _owners: dict[str, _Promise] = field(default_factory=dict)
    _sessions: int = 0
    _rate: _Rate = field(default_factory=lambda: _Rate(0.0))
    is_holding_back: bool = False
    """Whether the last call of `offers` left out an owner that is due for an offer soon."""
    _delay: float = 0.0
    """Mean seconds from an offer to the grant that uses it, without the time for which the owner
    held the offer."""

    def called(self, call: Call, now: float) -> None:
        """Record that an owner has more than it can run."""
        promise = self._owners.get(call.owner)
        # An owner that calls has no offer to use: an open promise was lost or is too old.
        late = now - RECENT - 2 * self._delay
        if promise is None or (promise.open and promise.offered_at < late):
            promise = self._begin(call.owner)
        # A long call arrives in parts, right after each other.
        before = promise.names if now - promise.called_at < RECENT else ()
        promise.names, promise.called_at = [*dict.fromkeys([*before, *call.names])], now

    def granted(self, grant: Grant, now: float) -> None:
        """Record a grant."""
        promise = self._owners.get(grant.owner)
        if promise is None or promise.session != grant.session:
            return
        promise.received += len(grant.triggers)
        promise.called_at = now
        if not grant.has_more:
            promise.names = ()  # until the owner calls again
        if promise.measured_at > -math.inf:
            delay = max(0.0, now - promise.measured_at - grant.held)
            self._delay += (delay - self._delay) * _SMOOTH
            promise.measured_at = -math.inf

    def started(self, count: int) -> None:
        """Count granted tasks that started."""
        self._rate.count += count

    def ahead(self, now: float) -> int:
        """Return how many triggers to have ready beyond the free slots."""
        rate = self._rate.measure(now)
        return min(MOST_AHEAD, math.floor(rate * (0.02 + 2 * self._delay)))

    @property
    def patience(self) -> float:
        """Seconds for which a granted trigger may wait for a slot."""
        return 0.1 + 3 * self._delay

    def offers(self, room: int, room_of: Callable[[str, str], int], now: float) -> list[Offer]:
        """Return the offers to make now. `room`: the number of triggers that this node would take
        from other nodes, including those already promised. `room_of`: the free slots of a task
        name. Call `offers` again soon if `is_holding_back`."""
        self.is_holding_back = False
        self._expire(now)
        callers = [(owner, p) for owner, p in self._owners.items() if p.names]
        if not callers:
            return []
        callers.sort(key=lambda each: each[1].offered_at)  # longest wait first
        # An owner that has not used its offer by now will hardly use it: offer those slots to
        # others too.
        recent = now - RECENT - 2 * self._delay
        promised = sum(p.open for p in self._owners.values() if p.offered_at >= recent)
        left = room - promised
        if 0 < left < self.ahead(now) // 2:
            self.is_holding_back = True
            return []  # more than half of the triggers ahead are left, which is enough for now
        offers: list[Offer] = []
        for number, (owner, promise) in enumerate(callers):
            if promise.open and promise.offered_at < recent:
                continue  # the owner has not used the last offer
            share = -(-left // (len(callers) - number))
            # Small additions wait until they are worth a message.
            if share <= 0 or share < promise.open // 2:
                self.is_holding_back = promised > 0  # other owners may not use their offers
                continue
            names = [(*name, room) for name in promise.names if (room := room_of(*name)) > 0]
            if not names:
                continue
            left -= share
            promise.total += share
            promise.offered_at = now
            if promise.measured_at == -math.inf:
                promise.measured_at = now
            offers.append(Offer(owner, self.node, promise.session, promise.total, names))
        return offers

    def _begin(self, owner: str) -> _Promise:
        self._sessions += 1
        promise = self._owners[owner] = _Promise(self._sessions)
        return promise

    def _expire(self, now: float) -> None:
        for owner, promise in list(self._owners.items()):
            if promise.open and now - promise.offered_at >= PROMISE_SECONDS:
                expired = promise
                promise = self._begin(owner)
                if expired.called_at > expired.offered_at:  # else the owner has no more to grant
                    promise.names, promise.called_at = expired.names, expired.called_at
            if promise.names and now - promise.called_at >= CALL_SECONDS:
                promise.names = ()
            if not promise.names and not promise.open:
                del self._owners[owner]
