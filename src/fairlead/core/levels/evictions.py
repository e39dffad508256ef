"""Evictions: triggers that limits hold back make room in memory for stored triggers that may run.

Start-time fair queueing (Goyal, Vin and Cheng 1996) has no flows that wait for a limit. Evicted
triggers are treated as new arrivals: they get new levels, behind the stored triggers of their
tenants, so that the ack level can pass their old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import itemgetter

from fairlead.core.fair.table import Held
from fairlead.core.levels.backlog import Backlog
from fairlead.model import Trigger

KEPT_SHARE = 4
"""Fraction (one in KEPT_SHARE) of a full memory that held-back triggers may keep; the others are
evicted."""

ENOUGH_SHARE = 10
"""Fraction (one in ENOUGH_SHARE) of a full memory. No trigger is evicted while at least this
fraction may run."""

MOST_PINNED = 50_000
"""Greatest number of acked triggers that stay stored because a held-back trigger precedes them.
Above this number, all held-back triggers are evicted."""

SOON = 5.0
"""Seconds. A trigger is not evicted if its limit, at its latest rate, lets the trigger run within
this time."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 15.0
"""Seconds between checks. The pause doubles after each check, and starts again at FIRST_PAUSE when
the last eviction was worthwhile (`_PAYS`)."""

_PAYS = 4
"""An eviction is worthwhile if at least one trigger has run since then for each _PAYS evicted."""


class Evictions:
    """Evictions of one lane. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.check_at = inf
        """Time of the next check; `inf` if none is needed."""
        self.ran = 0
        """Triggers dispatched since the last eviction."""
        self._evicted = 0
        self._pause = FIRST_PAUSE
        self._checked_at = -inf
        self._next_check = 0.0

    def is_due(self, backlog: Backlog, now: float) -> bool:
        """Return whether a check is due: memory is full while more is stored, or dispatched entries
        cannot be deleted; and the pause is over."""
        is_full = not backlog.is_at_end and len(backlog) > backlog.capacity // 2
        self.check_at = self._next_check if is_full or _is_pinned(backlog) else inf
        return now >= self.check_at

    def choose(self, backlog: Backlog, columns: Sequence[Held], now: float) -> list[Trigger]:
        """Return the triggers to evict now. `columns`: triggers that limits hold back, with the
        number that limits have let run since the last check."""
        passed, self._checked_at = now - self._checked_at, now
        is_worthwhile = self.ran * _PAYS >= self._evicted
        self._pause = FIRST_PAUSE if is_worthwhile else min(2 * self._pause, LONGEST_PAUSE)
        self._next_check = now + self._pause
        if not 0 < passed <= 2 * LONGEST_PAUSE:
            return []  # the rates of the limits are unknown
        may_run = len(backlog)
        held: list[tuple[int, Trigger]] = []
        for _, triggers, taken in columns:
            soon = round(taken * SOON / passed)
            may_run -= max(0, len(triggers) - soon)
            held += [(max(0, number - soon), trigger) for number, trigger in enumerate(triggers)]
        is_short = may_run < max(1, backlog.capacity // ENOUGH_SHARE)
        if not _is_pinned(backlog) and not is_short:
            return []
        # Keep the first trigger of each column before the second of any column, so that memory has
        # a trigger for whichever limit frees a slot next.
        kept = 0 if _is_pinned(backlog) else max(1, backlog.capacity // KEPT_SHARE)
        evicted = [trigger for _, trigger in sorted(held, key=itemgetter(0))[kept:]]
        if evicted:
            self._evicted, self.ran = len(evicted), 0
        return evicted


def _is_pinned(backlog: Backlog) -> bool:
    return backlog.is_stored and backlog.upkeep.acks > MOST_PINNED
