"""New messages of a partition: the high-water marks of positions, by store. Pure.

Relays send the attempts of a store in order, and repeat those without confirmation; several relays
may run at once and crash. Each message names the position (`after`) up to which everything of its
partition came before. A message is new if `after` is read and its own position is not. A repeated
message is dropped, an early one waits to be sent again, and the next mark detects a lost one.
tests/unit/test_high_water.py proves this over all ways in which relays may crash.
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
        """Number of attempts that came before an earlier one. Their relay knows that it failed, and
        sends both."""

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
        """Note a mark: everything up to `through` must have come. Raise CheckFailed when something
        is missing."""
        reached = self.positions[store_id]
        if through <= reached:
            return
        if after > reached:
            raise CheckFailed(
                f"attempts of store {store_id} behind {reached} and up to {after} were sent and are"
                " not there"
            )
        self.positions[store_id] = through
