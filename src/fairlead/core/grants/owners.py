"""Owners: how many triggers a node asks of each partition owner. No I/O and no clock.

A node asks for its free slots, and for short tasks a few more, so that the next tasks are there
when a slot becomes free. It asks again after the grant. An owner that had no more triggers keeps
the last want for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.core.grants.wants import TaskName

REPLY_SECONDS = 0.2
"""Seconds within which an owner grants what it was asked for, if it has triggers. After that it is
not asked until it announces some."""

AHEAD_SECONDS = 0.1
"""Seconds of work that a node has ready beyond its free slots, if all of its slots become free in
this time: a want and its grant may take as long."""

MOST_AHEAD = 1000
"""Maximum number of triggers ready beyond the free slots."""

MEASURED_SECONDS = 0.2
"""Seconds over which the rate of started tasks is measured."""

MOST_NAMES = 50
"""Maximum number of task names that one owner is asked for."""


@dataclass(slots=True)
class _Owner:
    names: Sequence[TaskName] = ()
    """Names of its spare triggers, as far as known."""
    asked: int = 0
    """Number in the last want; 0 once the owner has granted something."""
    asked_at: float = -math.inf

    def is_silent(self, now: float) -> bool:
        return self.asked > 0 and now - self.asked_at >= REPLY_SECONDS


class Owners:
    """The owners that have spare triggers. Times are monotonic seconds."""

    def __init__(self, slots: int) -> None:
        """`slots`: number of tasks that the node runs at once."""
        self._slots = slots
        self._owners: dict[str, _Owner] = {}
        self._started, self._since, self._rate = 0, 0.0, 0.0
        """Granted tasks started since a time, and their number per second before."""
        self.check_at = math.inf
        """Time at which to ask again, because an owner may have left its want unused."""

    def on_spare(self, owner: str, names: Sequence[TaskName], now: float) -> None:
        """Note that an owner has more triggers of these names than it can run."""
        known = self._owners.get(owner)
        if known is None or known.is_silent(now):
            known = self._owners[owner] = _Owner()
        # A long announcement arrives in parts.
        known.names = [*dict.fromkeys([*names, *known.names])][:MOST_NAMES]

    def on_grant(self, owner: str) -> None:
        """Note that an owner has granted triggers, fewer than asked if it had no more."""
        if owner in self._owners:
            self._owners[owner].asked = 0

    def started(self, count: int) -> None:
        """Count granted tasks that started."""
        self._started += count

    def ahead(self, now: float) -> int:
        """Return how many triggers to have ready beyond the free slots."""
        if (took := now - self._since) >= MEASURED_SECONDS:
            self._rate, self._started, self._since = self._started / took, 0, now
        ahead = min(MOST_AHEAD, math.floor(self._rate * AHEAD_SECONDS))
        return ahead if ahead >= min(MOST_AHEAD, self._slots) else 0

    def ask(
        self, room: int, takes: Callable[[TaskName], int], now: float
    ) -> dict[str, tuple[int, Sequence[TaskName]]]:
        """Share the room of this node among the owners; return how many triggers, and of which
        names, to ask some of them for. `room`: the number of triggers to get, with those already
        asked for. `takes`: how many of a name."""
        self._owners = {
            name: owner for name, owner in self._owners.items() if not owner.is_silent(now)
        }
        waits = [owner for owner in self._owners.values() if owner.asked]
        others = [name for name, owner in self._owners.items() if not owner.asked]
        replies = [owner.asked_at + REPLY_SECONDS for owner in waits]
        self.check_at = min(replies, default=math.inf) if others else math.inf
        left = room - sum(owner.asked for owner in waits)
        if left < max(1, self.ahead(now) // 2):
            return {}  # not yet worth a message
        having = [
            name for name in others if any(takes(each) > 0 for each in self._owners[name].names)
        ]
        having.sort(key=lambda name: self._owners[name].asked_at)  # longest wait first
        wants: dict[str, tuple[int, Sequence[TaskName]]] = {}
        for number, name in enumerate(having[:left]):
            owner, share = self._owners[name], -(-left // (len(having) - number))
            left -= share
            owner.asked, owner.asked_at = share, now
            wants[name] = share, owner.names
        return wants
