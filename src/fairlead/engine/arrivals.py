"""Triggers of one lane that have arrived from the channel and have no level yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from fairlead.core.look_ahead import LEAST
from fairlead.model import Trigger

PAGE = 2000
"""Maximum number of triggers that get levels together; as many more may wait for their turn."""

PAGE_AGAIN = 10_000
"""Maximum number of triggers behind the position that one read returns again."""

AGAIN_SHARE = 0.05
"""Greatest share of time spent on reading triggers again (0 to 1)."""

_REMEMBERED = 10_000
"""Maximum number of remembered ids, in each of two generations: the triggers that got a level last.
They show which triggers of a repeated read have a level already."""


class Arrivals:
    """Triggers on their way to a level. New ones are in the inbox. The store must show first which
    of those from behind the channel position have a level."""

    def __init__(self) -> None:
        self._inbox: list[Trigger] = []
        self._unchecked: list[Trigger] = []
        """Triggers from behind the channel position."""
        self._again_at = 0.0
        """Monotonic seconds from which more triggers may be read again."""
        self._recent: dict[str, int] = {}
        """Version by id of the triggers that got a level last."""
        self._less_recent: dict[str, int] = {}
        """Version by id of the generation before `_recent`."""

    def __len__(self) -> int:
        return len(self._inbox) + len(self._unchecked)

    @property
    def new(self) -> int:
        """Number of triggers that wait for a level only."""
        return len(self._inbox)

    @property
    def unchecked(self) -> Sequence[Trigger]:
        """Triggers of which the store must show whether they have a level."""
        return self._unchecked

    @property
    def room(self) -> int:
        """How many more triggers the lane takes from the channel now."""
        is_full = len(self._inbox) > PAGE or len(self._unchecked) > PAGE_AGAIN
        return 0 if is_full else 2 * PAGE - len(self._inbox)

    def room_behind(self, now: float) -> int:
        """Return how many triggers may be read again now: fewer while that is expensive."""
        return 0 if self._unchecked or now < self._again_at else PAGE_AGAIN

    def add(self, triggers: Iterable[Trigger]) -> None:
        """Add triggers of which none has a level."""
        self._inbox += triggers

    def separate(self, triggers: Iterable[Trigger], passed: int) -> list[Trigger]:
        """Add the triggers that have no level or may have none; return the others. `passed`: the
        highest position in the channel of a trigger with a level."""
        levelled = []
        for trigger in triggers:
            if self._is_recent(trigger):
                levelled.append(trigger)
            elif trigger.seq > passed:
                self._inbox.append(trigger)
            else:
                self._unchecked.append(trigger)
        return levelled

    def checked(
        self, asked: Sequence[Trigger], levelled: Collection[str], took: float, now: float
    ) -> list[Trigger]:
        """Note which of the first unchecked triggers have a level, by id; return these. `took`:
        seconds that the store needed."""
        self._again_at = now - took + took / AGAIN_SHARE
        del self._unchecked[: len(asked)]
        new = [t for t in asked if t.id not in levelled and not self._is_recent(t)]
        # Also in parts, and after others of their keys: a key gets its levels in its order.
        self._inbox = sorted([*new, *self._inbox], key=attrgetter("seq"))
        kept = set(map(id, new))
        return [trigger for trigger in asked if id(trigger) not in kept]

    def take_page(self) -> list[Trigger]:
        """Remove and return the triggers that get levels next."""
        page, self._inbox = self._inbox[:PAGE], self._inbox[PAGE:]
        return page

    def remember(self, levelled: Sequence[Trigger], capacity: int) -> None:
        """Remember triggers that get levels now. `capacity`: of the lane's memory."""
        most = min(_REMEMBERED, max(LEAST, capacity // 2))
        if len(self._recent) > most:
            self._recent, self._less_recent = {}, self._recent
        self._recent.update([(trigger.id, trigger.version) for trigger in levelled[-most:]])

    def drop_recent(self, triggers: Iterable[Trigger]) -> None:
        """Drop triggers that left their levels: if they come again, they are new."""
        for trigger in triggers:
            self._recent.pop(trigger.id, None)
            self._less_recent.pop(trigger.id, None)

    def clear(self) -> list[Trigger]:
        """Remove and return all triggers."""
        left = [*self._inbox, *self._unchecked]
        self._inbox, self._unchecked = [], []
        return left

    def _is_recent(self, trigger: Trigger) -> bool:
        levelled = max(self._recent.get(trigger.id, 0), self._less_recent.get(trigger.id, 0))
        return levelled >= trigger.version
