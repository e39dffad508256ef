"""Next passes by key in bounded memory: exact for the keys furthest ahead, a sketch for the
others.

Source: fingerprints in buckets (Bonomi, Mitzenmacher, Panigrahy, Singh and Varghese 2006, "An
Improved Construction for Counting Bloom Filters").
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from heapq import nsmallest

LAST_PASS = 1 << 62
"""Greatest pass, which records and stores can keep. From there on, tasks get their levels in the
order of arrival."""

EXACT_KEYS = 10_000

_CELLS = 16
"""Cells of a bucket of the sketch, 16 bytes each."""

_FEWEST = 1 << 10
"""Buckets of a new sketch (0.3 MB)."""

MOST_BUCKETS = 1 << 15
"""Maximum number of buckets (8.7 MB), which have cells of their own for 300,000 keys."""


class Counters:
    """Next passes by key; 0 for an unknown key.

    A key whose next pass lies behind the virtual time is equivalent to an unknown one and is
    dropped. While more than `exact` keys are ahead, the nearest of them move into a sketch, which
    returns the value that was put or more, never less. While the sketch has cells for all keys,
    every value is exact, and an unknown key is found to be one. Otherwise an error can only delay a
    key, by at most the lead of the keys that are least ahead.
    """

    def __init__(self, exact: int = EXACT_KEYS, most_buckets: int = MOST_BUCKETS) -> None:
        self._most_exact = exact
        self._most_buckets = most_buckets
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
            self._sketch = Sketch(min(_FEWEST, self._most_buckets), self._most_buckets)
        for key, next_pass in ahead[kept:]:
            self._sketch.raise_to(key, next_pass, virtual_time)


class Sketch:
    """Values by key in bounded memory: never too small a value.

    The digest of a key says its bucket. The keys of a bucket that are furthest ahead have a cell
    each; the others share the overflow of the bucket, the greatest of their values. A full bucket
    doubles the sketch, up to `most` buckets: both halves get a copy of all cells, and a full bucket
    frees the copies that belong to the other half.
    """

    def __init__(self, buckets: int, most: int) -> None:
        """`buckets`, `most`: powers of two."""
        self._buckets = buckets
        self._most = most
        self._digests = array("Q", bytes(8 * _CELLS * buckets))
        self._values = array("q", bytes(8 * _CELLS * buckets))
        self._overflows = array("q", bytes(8 * buckets))
        self.highest = 0
        """Greatest value ever put."""

    @property
    def size(self) -> int:
        """Memory in bytes."""
        return 8 * (2 * _CELLS + 1) * self._buckets

    def estimate(self, key: str) -> int:
        """Return the key's value, or more; the overflow of its bucket, mostly 0, for a key without
        a cell."""
        digest = _digest(key)
        cell = self._cell(digest)
        return self._overflows[digest % self._buckets] if cell is None else self._values[cell]

    def raise_to(self, key: str, value: int, virtual_time: int = 0) -> None:
        """Raise the key's value to at least `value`. Values at or before the virtual time may be
        dropped."""
        self.highest = max(self.highest, value)
        digest = _digest(key)
        cell = self._cell(digest)
        if cell is not None:
            self._values[cell] = max(self._values[cell], value)
            return
        cell = self._least_ahead(digest)
        while self._values[cell] > virtual_time and self._make_room(digest):
            cell = self._least_ahead(digest)
        least = self._values[cell]
        if least > virtual_time:
            bucket = digest % self._buckets
            self._overflows[bucket] = max(self._overflows[bucket], min(least, value))
        if value > least:
            self._digests[cell], self._values[cell] = digest, value

    def _cell(self, digest: int) -> int | None:
        first = digest % self._buckets * _CELLS
        digests = self._digests[first : first + _CELLS]
        return first + digests.index(digest) if digest in digests else None

    def _least_ahead(self, digest: int) -> int:
        """Return the cell with the least value in the bucket of a digest."""
        first = digest % self._buckets * _CELLS
        values = self._values[first : first + _CELLS]
        return first + values.index(min(values))

    def _make_room(self, digest: int) -> bool:
        """Free cells in the bucket of a digest; return whether that was possible."""
        bucket = digest % self._buckets
        first = bucket * _CELLS
        copies = [
            cell
            for cell in range(first, first + _CELLS)
            if self._digests[cell] % self._buckets != bucket
        ]
        for cell in copies:
            self._digests[cell] = self._values[cell] = 0
        if copies or 2 * self._buckets > self._most:
            return bool(copies)
        self._digests, self._values = self._digests * 2, self._values * 2
        self._overflows *= 2
        self._buckets *= 2
        return True


def _digest(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
