"""Who stands aside: of the triggers in memory that limits hold back, those that leave it to others
which may run.

Start-time fair queueing knows no flow that cannot be served; here one that is held back counts as
one that comes anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from fairlead.core.fair.backlog import Backlog
from fairlead.core.triggers.table import Held
from fairlead.model import LOWEST, Level, Trigger

KEPT_SHARE = 4
"""One in so many triggers of a full memory may be held back; the others stand aside."""

ENOUGH_SHARE = 10
"""Nobody stands aside while one in so many triggers of a full memory may run."""

MOST_PINNED = 50_000
"""Triggers acked and still stored, because one that is held back stands before them."""

SOON = 5.0
"""Seconds: what a limit lets through in that time, as fast as it did last, counts as what may
run."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 15.0
"""Seconds between looks. Twice as long each time, unless a quarter as many ran as had stood aside:
that pays for it."""

_PAYS = 4


class Aside(NamedTuple):
    """Both go out of the table, and get new levels."""

    carried: list[Trigger]
    """They stay in memory."""
    behind: list[Trigger]


class StandAside:
    """Of one lane. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.look_at: float | None = None
        """When to look next; None: there is no need."""
        self.ran = 0
        """Triggers dispatched since some stood aside."""
        self._stood = 0
        self._pause = FIRST_PAUSE
        self._looked_at = float("-inf")
        self._next = 0.0

    def is_due(self, backlog: Backlog, now: float) -> bool:
        """Memory is full while more is stored, or what has been dispatched cannot be deleted; and
        it is time to look."""
        is_full = not backlog.is_at_end and len(backlog) > backlog.capacity // 2
        self.look_at = self._next if is_full or _is_pinned(backlog) else None
        return self.look_at is not None and now >= self.look_at

    def choose(self, backlog: Backlog, columns: Sequence[Held], now: float) -> Aside | None:
        """Who stands aside now; None: nobody. `columns`: what limits hold back, with what they let
        through since the last look."""
        passed, self._looked_at = now - self._looked_at, now
        self._pause = (
            FIRST_PAUSE if self.ran * _PAYS >= self._stood else min(2 * self._pause, LONGEST_PAUSE)
        )
        self._next = now + self._pause
        if not 0 < passed <= 2 * LONGEST_PAUSE:
            return None  # how fast limits let through is not known
        may_run = len(backlog)
        ranked: list[tuple[int, Level, Trigger]] = []
        for triggers, taken in columns:
            soon = round(taken * SOON / passed)
            may_run -= max(0, len(triggers) - soon)
            ranked += [
                (max(0, place - soon), t.level or LOWEST, t) for place, t in enumerate(triggers)
            ]
        if not ranked or (may_run >= backlog.capacity // ENOUGH_SHARE and not _is_pinned(backlog)):
            return None
        # The first of each column are kept before the second of any: whichever limit has a slot
        # next, one is there for it.
        held = [trigger for *_, trigger in sorted(ranked, key=itemgetter(0, 1))]
        self._stood, self.ran = len(held), 0
        kept = max(1, backlog.capacity // KEPT_SHARE)
        return Aside(held[:kept], held[kept:])


def _is_pinned(backlog: Backlog) -> bool:
    return backlog.is_stored and backlog.acks > MOST_PINNED
