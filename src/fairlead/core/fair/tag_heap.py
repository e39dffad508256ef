"""Names by start tag: which tenant, or which key of a tenant, has rows to read next.

The tag of a name is the start tag that its next row would get (start-time fair queueing, Goyal, Vin
and Cheng 1996). It grows while rows of the name are read and while the virtual time passes it, so
the heap keeps a lower bound and looks at the tag again when a name comes first. A name that has
been asked for counts with the rows asked for, until these have come.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

_FEWEST_STALE = 100
"""Number of stale entries below which they are not removed."""


class TagHeap:
    """Names with unread rows. Finding the first costs O(log names), amortised."""

    __slots__ = ("_asked", "_entries", "_places", "_tag_of", "_weight_of", "_weights", "total")

    def __init__(
        self, tag_of: Callable[[str, int], int], weight_of: Callable[[str], float]
    ) -> None:
        """`tag_of`: returns the tag of a name with a number of rows that are on their way.
        `weight_of`: returns the weight of a name as far as it is known."""
        self._tag_of = tag_of
        self._weight_of = weight_of
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

    def asked(self, name: str) -> int:
        """Return how many rows of a name are on their way."""
        return self._asked.get(name, 0)

    def add(self, name: str, tag: int) -> None:
        """Add a name, or move it forward; its rows come at `tag` at the earliest."""
        before = self._places.get(name)
        if before is not None and before <= tag:
            return
        if before is None:
            self._weigh(name, is_known=name in self._asked)
        self._places[name] = tag
        heappush(self._entries, (tag, name))
        if len(self._entries) > 2 * len(self._places) + _FEWEST_STALE:
            self._entries = [(tag, name) for name, tag in self._places.items()]
            heapify(self._entries)

    def reweigh(self, name: str, tag: int) -> None:
        """Let a new weight of a name count; its rows come at `tag` at the earliest."""
        if name in self._places or name in self._asked:
            self._weigh(name, is_known=True)
        if name in self._places:
            self.add(name, tag)

    def _weigh(self, name: str, is_known: bool) -> None:
        """Count the weight of a name. `is_known`: whether an earlier weight counts."""
        before = self._weights.pop(name, 1.0) if is_known else 0.0
        weight = self._weight_of(name)
        self.total += weight - before
        if weight != 1:
            self._weights[name] = weight

    def first(self, now: int) -> tuple[int, str] | None:
        """Return the lowest tag and its name; None if there is no name. `now`: the virtual time,
        which no tag is below."""
        entries, places = self._entries, self._places
        while entries:
            place, name = entries[0]
            if places.get(name) != place:
                heappop(entries)
                continue
            tag = self._tag_of(name, self._asked.get(name, 0))
            if tag <= max(place, now):
                return max(place, now), name
            places[name] = tag
            heapreplace(entries, (tag, name))
        return None

    def ask(self, name: str, rows: int) -> None:
        """Ask for so many rows of a name, which leaves if it is here."""
        if name not in self._places and name not in self._asked:
            self._weigh(name, is_known=False)
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
