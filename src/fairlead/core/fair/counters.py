"""Next passes by key in bounded memory: exact for the keys furthest ahead, a sketch for the tail
beyond them."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from heapq import nsmallest

EXACT_KEYS = 10_000
_DEPTH = 4
_NARROWEST = 1 << 12
WIDEST = 1 << 18
"""Cells in a row of the sketch at most: 4 rows of 8 bytes a cell, 8 MB."""


class Counters:
    """What a key's next pass is; 0 for one that is not known.

    A key whose next pass has been overtaken by the virtual time is as good as unknown and is
    forgotten. While more than `exact` keys are ahead of it, the nearest of them move into a sketch,
    which may answer more than was put, never less: an error can only make a key of the tail wait,
    by at most what the keys that share its cells are ahead.
    """

    def __init__(self, exact: int = EXACT_KEYS, widest: int = WIDEST) -> None:
        self._most_exact = exact
        self._widest = widest
        self._exact: dict[str, int] = {}
        self._sketch: Sketch | None = None

    def __len__(self) -> int:
        return len(self._exact)

    @property
    def sketch_bytes(self) -> int:
        """Memory of the sketch."""
        return 0 if self._sketch is None else self._sketch.size

    def next_pass(self, key: str) -> int:
        """The next pass of the key, or more; 0 if it is unknown."""
        found = self._exact.get(key)
        if found is not None:
            return found
        return 0 if self._sketch is None else self._sketch.estimate(key)

    def put(self, key: str, following: int, virtual_time: int) -> None:
        """Set the next pass of the key, which never goes back."""
        self._exact[key] = following
        if len(self._exact) > self._most_exact:
            self._make_room(virtual_time)

    def heaviest(self, most: int) -> list[tuple[str, int]]:
        """(key, next pass) of the `most` keys furthest ahead, furthest first."""
        return nsmallest(most, self._exact.items(), key=lambda item: (-item[1], item[0]))

    def _make_room(self, virtual_time: int) -> None:
        if self._sketch is not None and self._sketch.highest <= virtual_time:
            self._sketch = None
        self._exact = {
            key: following for key, following in self._exact.items() if following > virtual_time
        }
        # Half at once, so that the sorting costs each key O(log n).
        if len(self._exact) <= self._most_exact * 3 // 4:
            return
        ahead = self.heaviest(len(self._exact))
        kept = self._most_exact // 2
        self._exact = dict(ahead[:kept])
        if self._sketch is None:
            self._sketch = Sketch(_NARROWEST, self._widest)
        for key, following in ahead[kept:]:
            self._sketch.raise_to(key, following)


class Sketch:
    """A count-min sketch of maxima (Cormode and Muthukrishnan 2005, with the conservative update):
    never answers too little.

    It doubles its width, up to `widest`, when values were raised as often as a row has cells: both
    halves take the old values, which keeps every answer an upper bound. (Keys cannot be counted: in
    a doubled row no cell is empty.)
    """

    def __init__(self, width: int, widest: int) -> None:
        self._width = width
        self._widest = widest
        self._rows = [array("q", bytes(8 * width)) for _ in range(_DEPTH)]
        self._raised = 0
        self.highest = 0
        """The greatest value ever put."""

    @property
    def size(self) -> int:
        """Bytes."""
        return 8 * self._width * _DEPTH

    def estimate(self, key: str) -> int:
        """The key's value, or more."""
        return min(row[cell] for row, cell in zip(self._rows, self._cells(key), strict=True))

    def raise_to(self, key: str, value: int) -> None:
        """Let the key's value be at least this."""
        cells = self._cells(key)
        if value > min(row[cell] for row, cell in zip(self._rows, cells, strict=True)):
            self._raised += 1
            if self._raised > self._width and self._width * 2 <= self._widest:
                self._rows = [row + row for row in self._rows]
                self._width *= 2
                cells = self._cells(key)
        self.highest = max(self.highest, value)
        for row, cell in zip(self._rows, cells, strict=True):
            row[cell] = max(row[cell], value)

    def _cells(self, key: str) -> list[int]:
        digest = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
        one, other = digest & 0xFFFFFFFF, digest >> 32 | 1
        return [(one + n * other) % self._width for n in range(_DEPTH)]
