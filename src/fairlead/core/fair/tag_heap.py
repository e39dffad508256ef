"""Names by start tag: which tenant, or which key of a tenant, has rows to read next.

The tag of a name is the start tag that its next row would get (start-time fair queueing, Goyal, Vin
and Cheng 1996). It grows while rows of the name are read and while the virtual time passes it, so
the heap keeps a lower bound and looks at the tag again when a name comes first. A name that has
been asked for counts with the rows asked for, until these have come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from fairlead.core.fair.groups import Group

_FEWEST_STALE = 100
"""Number of stale entries below which they are not removed."""


class TagHeap:
    """Names of a group with unread rows. Finding the first costs O(log names), amortised."""

    __slots__ = ("_asked", "_entries", "_group", "_held", "_places", "_weights", "total")

    def __init__(self, group: Callable[[], Group], held: Mapping[str, int]) -> None:
        """`group`: returns the group. `held`: number of triggers in memory by name."""
        self._group = group
        self._held = held
        self._entries: list[tuple[int, str]] = []
        """Heap of (lower bound of the tag, name); entries that `_places` does not have are
        stale."""
        self._places: dict[str, int] = {}
        """Lower bound by name."""
        self._asked: dict[str, int] = {}
        """Number of rows asked for that have not come, by name."""
        self._weights: dict[str, float] = {}
        """Weights other than 1 of the names here and of those asked for."""
        self.total = 0.0
        """Sum of the weights of the names here and of those asked for."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def add(self, name: str, *, is_spread: bool = False) -> None:
        """Add a name, or move it forward. `is_spread`: there are many, whose first tags are spread
        over one stride. At one tag, one of a great weight would wait for a row of each other."""
        group = self._group()
        tag = group.start(name) if is_spread else group.time.now
        before = self._places.get(name)
        if before is not None and before <= tag:
            return
        if before is None:
            self._weigh(name)
        self._places[name] = tag
        heappush(self._entries, (tag, name))
        if len(self._entries) > 2 * len(self._places) + _FEWEST_STALE:
            self._entries = [(tag, name) for name, tag in self._places.items()]
            heapify(self._entries)

    def reweigh(self, name: str) -> None:
        """Let a new weight of a name count: its next row comes a stride after the virtual time at
        most."""
        if name in self._places or name in self._asked:
            self._weigh(name)
        if name in self._places:
            self.add(name, is_spread=True)

    def _weigh(self, name: str) -> None:
        """Count the weight of a name, in place of an earlier one if it is here or asked for."""
        is_here = name in self._places or name in self._asked
        before = self._weights.pop(name, 1.0) if is_here else 0.0
        weight = self._group().rate(name)
        self.total += weight - before
        if weight != 1:
            self._weights[name] = weight

    def first(self) -> tuple[int, str] | None:
        """Return the lowest tag and its name; None if there is no name. Rows that are on their way
        count as if they had come."""
        entries, places, group = self._entries, self._places, self._group()
        now = group.time.now
        while entries:
            place, name = entries[0]
            if places.get(name) != place:
                heappop(entries)
                continue
            tag = group.tag(name, self._held.get(name, 0) + self._asked.get(name, 0))
            if tag <= max(place, now):
                return max(place, now), name
            places[name] = tag
            heapreplace(entries, (tag, name))
        return None

    def ask(self, name: str, rows: int) -> None:
        """Ask for so many rows of a name, which leaves if it is here."""
        if name not in self._places and name not in self._asked:
            self._weigh(name)
        self._places.pop(name, None)
        self._asked[name] = self._asked.get(name, 0) + rows

    def came(self, name: str, rows: int) -> None:
        """Note that so many rows of a name have come."""
        if name in self._asked:
            self._asked[name] = max(0, self._asked[name] - rows)

    def settle(self) -> None:
        """Note that all rows that were asked for have come, or do not exist."""
        for name in self._asked:
            if name not in self._places:
                self.total -= self._weights.pop(name, 1.0)
        self._asked.clear()
