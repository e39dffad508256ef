"""Next passes by key in bounded memory."""

from __future__ import annotations

from heapq import nsmallest

LAST_PASS = 1 << 62
"""Greatest pass, which records and stores can keep. From there on, tasks get their levels in the
order of arrival."""

MOST_KEYS = 200_000
"""Keys ahead of the virtual time whose next passes a lane keeps, some 30 MB."""


class Counters:
    """Next passes by key; 0 for an unknown key.

    A key whose next pass lies behind the virtual time is equivalent to an unknown one and is
    dropped. While more than `most` keys are ahead, those least ahead are dropped too: such a key
    may gain what it was ahead, one stride for a key that waits for its turn.
    """

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most = most
        self._passes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._passes)

    def next_pass(self, key: str) -> int:
        """Return the next pass of the key; 0 if it is unknown."""
        return self._passes.get(key, 0)

    def put(self, key: str, next_pass: int, virtual_time: int) -> None:
        """Set the next pass of the key, LAST_PASS at most; it never goes back."""
        self._passes[key] = next_pass if next_pass < LAST_PASS else LAST_PASS
        if len(self._passes) > self._most:
            self._make_room(virtual_time)

    def heaviest(self, most: int) -> list[tuple[str, int]]:
        """Return (key, next pass) of the `most` keys furthest ahead, furthest first."""
        return nsmallest(most, self._passes.items(), key=lambda item: (-item[1], item[0]))

    def _make_room(self, virtual_time: int) -> None:
        self._passes = {
            key: next_pass for key, next_pass in self._passes.items() if next_pass > virtual_time
        }
        # Drop half at once, so that sorting costs O(log n) per key.
        if len(self._passes) > self._most * 3 // 4:
            self._passes = dict(self.heaviest(self._most // 2))
