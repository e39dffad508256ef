"""Next passes by key in bounded memory: exact for the keys furthest ahead, a sketch for the
others.

Source: count-min sketch (Cormode and Muthukrishnan 2005) with conservative update (Estan and
Varghese 2002).
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from heapq import nsmallest

LAST_PASS = 1 << 62
"""Greatest pass, which records and stores can keep. From there on, tasks get their levels in the
order of arrival."""

EXACT_KEYS = 10_000
_DEPTH = 4
_NARROWEST = 1 << 16
"""Cells in a row of a new sketch (2 MB in all). A narrower one makes new keys share cells with keys
that are ahead, and delays them by a task of each other key."""

WIDEST = 1 << 18
"""Maximum number of cells in a row of the sketch: 4 rows of 8 bytes a cell, 8 MB."""


class Counters:
    """Next passes by key; 0 for an unknown key.

    A key whose next pass lies behind the virtual time is equivalent to an unknown one and is
    dropped. While more than `exact` keys are ahead, the nearest of them move into a sketch, which
    returns the value that was put or more, never less. An error can only delay a key in the sketch,
    by at most the lead of the keys that share its cells.
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
        """Memory of the sketch in bytes."""
        return 0 if self._sketch is None else self._sketch.size

    def next_pass(self, key: str) -> int:
        """Return the next pass of the key, or more; 0 if it is unknown."""
        found = self._exact.get(key)
        if found is not None:
            return found
        return 0 if self._sketch is None else self._sketch.estimate(key)

    def put(self, key: str, next_pass: int, virtual_time: int) -> None:
        """Set the next pass of the key, LAST_PASS at most; it never goes back."""
        self._exact[key] = next_pass if next_pass < LAST_PASS else LAST_PASS
        if len(self._exact) > self._most_exact:
            self._make_room(virtual_time)

    def heaviest(self, most: int) -> list[tuple[str, int]]:
        """Return (key, next pass) of the `most` keys furthest ahead, furthest first."""
        return nsmallest(most, self._exact.items(), key=lambda item: (-item[1], item[0]))

    def _make_room(self, virtual_time: int) -> None:
        if self._sketch is not None and self._sketch.highest <= virtual_time:
            self._sketch = None
        self._exact = {
            key: next_pass for key, next_pass in self._exact.items() if next_pass > virtual_time
        }
        # Drop half at once, so that sorting costs O(log n) per key.
        if len(self._exact) <= self._most_exact * 3 // 4:
            return
        ahead = self.heaviest(len(self._exact))
        kept = self._most_exact // 2
        self._exact = dict(ahead[:kept])
        if self._sketch is None:
            self._sketch = Sketch(_NARROWEST, self._widest)
        for key, next_pass in ahead[kept:]:
            self._sketch.raise_to(key, next_pass)


class Sketch:
    """A count-min sketch of maxima (Cormode and Muthukrishnan 2005, with the conservative update):
    never returns too small a value.

    The sketch doubles its width, up to `widest`, once values were raised as often as a row has
    cells: both halves get the old values, which keeps every estimate an upper bound. (Counting keys
    instead is impossible: a doubled row has no empty cell.)
    """

    def __init__(self, width: int, widest: int) -> None:
        self._width = width
        self._widest = widest
        self._rows = [array("q", bytes(8 * width)) for _ in range(_DEPTH)]
        self._raised = 0
        self.highest = 0
        """Greatest value ever put."""

    @property
    def size(self) -> int:
        """Memory in bytes."""
        return 8 * self._width * _DEPTH

    def estimate(self, key: str) -> int:
        """Return the key's value, or more."""
        return min(row[cell] for row, cell in zip(self._rows, self._cells(key), strict=True))

    def raise_to(self, key: str, value: int) -> None:
        """Raise the key's value to at least `value`."""
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
