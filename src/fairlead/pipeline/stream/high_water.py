"""Which messages of a partition are new: the high-water mark of places, by store. Pure.

Relays send what a store has in the order of places, again when they cannot know that it has
arrived, several at once, and die. Each message names the place before which everything of its
partition has come (`after`): a message is new if that is read and its own place is not. So what
comes twice is dropped, what comes before its elders waits to be sent again, and what Kafka has lost
is found out by the next mark. tests/unit/test_high_water.py proves it over all ways in which relays
may crash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fairlead.pipeline.errors import CheckFailed
from fairlead.ports.history import START, Position


class HighWater:
    """Of one partition: by store, everything of this partition up to a place was read."""

    def __init__(self, read: Mapping[str, Position]) -> None:
        self.places: defaultdict[str, Position] = defaultdict(lambda: START, read)
        self.doubles = 0
        """Attempts that came again."""
        self.early = 0
        """Attempts that came before one that stands before them. Their relay knows that it has
        failed, and sends both."""

    def takes(self, store_id: str, place: Position, after: Position) -> bool:
        """Whether this attempt is new; it then counts as read."""
        reached = self.places[store_id]
        if place <= reached:
            self.doubles += 1
            return False
        if after > reached:
            self.early += 1
            return False
        self.places[store_id] = place
        return True

    def passes(self, store_id: str, through: Position, after: Position) -> None:
        """A mark was read: everything up to `through` has come. Raises CheckFailed when something
        is missing."""
        reached = self.places[store_id]
        if through <= reached:
            return
        if after > reached:
            raise CheckFailed(
                f"attempts of store {store_id} behind {reached} and up to {after} were sent and are"
                " not there"
            )
        self.places[store_id] = through
