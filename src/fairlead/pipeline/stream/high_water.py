"""New messages of a partition: the high-water marks of positions, by store. Pure.

Relays send the attempts of a store in order, and repeat those without confirmation; several relays
may run at once and crash. Each message names the position `after`, up to which all attempts of its
partition were sent before. A message is new if the reader has reached `after` but not the message's
own position. A repeated message is dropped. An early message is dropped too, because its relay will
send it again. A relay also sends marks: a mark is a message that names a position up to which the
topic has all attempts, so the next mark detects a lost message. tests/unit/test_high_water.py tries
all ways in which relays may crash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fairlead.pipeline.errors import CheckFailed
from fairlead.ports.history import START, Position


class HighWater:
    """High-water marks of one partition, by store."""

    def __init__(self, read: Mapping[str, Position]) -> None:
        self.positions: defaultdict[str, Position] = defaultdict(lambda: START, read)
        self.doubles = 0
        """Number of repeated attempts."""
        self.early = 0
        """Number of attempts that came before an earlier attempt. The relay has got an error for
        the earlier attempt, and will send both again."""

    def takes(self, store_id: str, position: Position, after: Position) -> bool:
        """Return whether this attempt is new, and count it as read."""
        reached = self.positions[store_id]
        if position <= reached:
            self.doubles += 1
            return False
        if after > reached:
            self.early += 1
            return False
        self.positions[store_id] = position
        return True

    def passes(self, store_id: str, through: Position, after: Position) -> None:
        """Record a mark. Raise CheckFailed when attempts up to `through` are missing."""
        reached = self.positions[store_id]
        if through <= reached:
            return
        if after > reached:
            raise CheckFailed(
                f"attempts of store {store_id} after {reached} and up to {after} were sent, but the"
                " topic does not have them"
            )
        self.positions[store_id] = through
