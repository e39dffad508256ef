"""The look-ahead of a node: a budget of bytes that its lanes share by need.

A lane that begins, or whose waiting triggers grow in number, gets a fraction of the free bytes at
once, in O(1). When a lane gets less than it needs, `rebalance` divides the budget again, by max-min
fairness: every need is met if the sum fits, else the greatest needs are cut to one level. What is
left is divided in the same way among lanes that have more triggers. The need of a lane is the
number of triggers that it dispatches in LASTS_SECONDS.

The shares never add up to more than the budget. A lane may always hold one trigger, so that no lane
waits for the shares of others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Generic, TypeVar

from fairlead.model import Trigger

TRIGGER_BYTES = 900
"""Bytes of a trigger in memory with all that refers to it, without its keys."""

LEAST = 100
"""Triggers that each lane may hold, as long as the budget suffices for all lanes."""

LASTS_SECONDS = 10.0
"""Seconds for which the share of a lane lasts at the lane's rate, if the budget suffices. A read of
more triggers takes a small part of this time."""

GRANT_SHARE = 8
"""Fraction (one in GRANT_SHARE) of the free bytes that one lane gets at once."""

RESERVE_SHARE = 8
"""Fraction (one in RESERVE_SHARE) of the budget that `rebalance` leaves for lanes that begin."""

STEADY_SHARE = 8
"""A share that changes by no more than this fraction (one in STEADY_SHARE) stays as it is. At most
RESERVE_SHARE, so that shares that stay use the reserve at most."""

SAMPLE_SECONDS = 2.0
"""Shortest time over which the rate of a lane is measured."""


@dataclass(eq=False, slots=True)
class Share:
    """The look-ahead of one lane."""

    most: int
    """Triggers that the lane may hold whatever the budget is."""
    since: float
    """Monotonic seconds of the last sample of the rate."""
    size: float = TRIGGER_BYTES
    """Mean bytes of a trigger."""
    granted: int = 0
    """Bytes."""
    taken: int = 0
    """Triggers dispatched since the last sample."""
    rate: float = 0.0
    """Triggers dispatched in a second."""

    @property
    def capacity(self) -> int:
        """Number of triggers that the lane may hold now."""
        return max(1, min(self.most, int(self.granted / self.size)))

    @property
    def need(self) -> int:
        """Number of triggers that the lane dispatches in LASTS_SECONDS, but at least LEAST."""
        return min(self.most, max(LEAST, math.ceil(self.rate * LASTS_SECONDS)))

    def sample(self, now: float) -> None:
        """Measure the rate."""
        if (passed := now - self.since) >= SAMPLE_SECONDS:
            weight = min(1.0, passed / (2 * SAMPLE_SECONDS))
            self.rate += weight * (self.taken / passed - self.rate)
            self.since, self.taken = now, 0


K = TypeVar("K", bound=Hashable)


class Budget(Generic[K]):
    """The shares of the lanes that hold triggers. Times are monotonic seconds."""

    def __init__(self, size: int) -> None:
        """`size`: bytes."""
        self.size = size
        self.shares: dict[K, Share] = {}
        self.is_short = False
        """Whether a lane may have less than it needs."""
        self._granted = 0
        self._level = math.inf
        """Bytes of the lanes whose needs `rebalance` could not meet."""

    @property
    def granted(self) -> int:
        """Bytes of all shares together."""
        return self._granted

    def want(self, lane: K, count: int, most: int, now: float) -> Share:
        """Let a lane hold `count` triggers if the free bytes suffice. `most`: triggers that it may
        hold whatever the budget is."""
        share = self._share(lane, most, now)
        self._grow(share, min(count, most))
        self.is_short |= share.capacity < min(count, most)
        return share

    def refill(self, lane: K, most: int, now: float) -> Share:
        """Let a lane hold more triggers before it reads: what it needs, and more than that while
        much of the budget is free."""
        share = self._share(lane, most, now)
        share.sample(now)
        need = share.need
        if self.size - self._granted > self.size // (RESERVE_SHARE // 2):
            self._grow(share, most)
        elif need > share.capacity:
            self._grow(share, min(most, 2 * need))
        self.is_short |= share.capacity < need
        return share

    def leave(self, lane: K) -> None:
        """Take back the share of a lane that holds no trigger and has no more."""
        if (share := self.shares.pop(lane, None)) is not None:
            self._granted -= share.granted

    def measure(self, lane: K, triggers: Sequence[Trigger]) -> None:
        """Learn the size of a lane's triggers from some that have just come into memory."""
        if triggers and (share := self.shares.get(lane)) is not None:
            share.size += (mean_size(triggers) - share.size) / 2

    def _share(self, lane: K, most: int, now: float) -> Share:
        """Return the share of a lane, made if needed, without bytes that it may not use."""
        share = self.shares.get(lane)
        if share is None:
            share = self.shares[lane] = Share(most, now)
        share.most = most
        if (excess := share.granted - math.ceil(most * share.size) - 1) > 0:
            share.granted -= excess
            self._granted -= excess
        return share

    def _grow(self, share: Share, count: int) -> None:
        # One byte more, so that rounding never costs a trigger.
        wanted = min(math.ceil(count * share.size) + 1, self._level) - share.granted
        if (more := min(int(wanted), (self.size - self._granted) // GRANT_SHARE)) > 0:
            share.granted += more
            self._granted += more

    def rebalance(self, now: float, held: Callable[[K], int | None]) -> list[K]:
        """Divide the budget again; return the lanes whose shares changed. `held`: returns how many
        triggers a lane has in memory if it has no others, else None."""
        lanes = self.shares
        if not lanes:
            self.is_short, self._level = False, math.inf
            return []
        usable = self.size - self.size // RESERVE_SHARE
        need, spare = [], []
        for lane, share in lanes.items():
            share.sample(now)
            count = held(lane)
            usable_count = share.most if count is None else min(count, share.most)
            most = math.ceil(usable_count * share.size)
            need.append(min(most, math.ceil(share.need * share.size)))
            spare.append(most - need[-1])
        self._level = _level(usable, need)
        self.is_short = self._level < math.inf
        level = _level(usable - sum(need), spare) if not self.is_short else 0
        changed = []
        for number, (lane, share) in enumerate(lanes.items()):
            new = int(min(need[number], self._level) + min(spare[number], level))
            old = share.granted
            is_steady = abs(new - old) * STEADY_SHARE <= old and old >= min(new, need[number])
            if new != old and not is_steady:
                share.granted = new
                self._granted += new - old
                changed.append(lane)
        return changed


def mean_size(triggers: Iterable[Trigger]) -> float:
    """Return the mean bytes of triggers, of which equal keys are in memory once."""
    count = 0
    keys = set[str | None]()
    for trigger in triggers:
        count += 1
        keys.add(trigger.fairness_key)
        keys.add(trigger.ordering_key)
    return TRIGGER_BYTES + sum(map(getsizeof, keys)) / max(1, count)


def _level(total: int, amounts: Sequence[int]) -> float:
    """Return the level to which amounts must be cut so that their sum is `total`; infinity if it is
    no more."""
    left, count = total, len(amounts)
    for amount in sorted(amounts):
        if amount * count > left:
            return left / count
        left, count = left - amount, count - 1
    return math.inf
