"""Strands: the triggers of one ordering key in one column, of which only the first may run."""

from __future__ import annotations

from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.core.triggers.columns import Column
from fairlead.core.triggers.entries import Entries, Entry


class Strand(Entries):
    """Triggers of one ordering key in one column, in the order of the key. The first has an entry
    in a cell of the column, unless the strand waits for its ordering key."""

    __slots__ = ("column", "head", "ordering_key", "taken")

    def __init__(self, first: Entry, ordering_key: OrderingKey, column: Column) -> None:
        super().__init__(first)
        self.ordering_key = ordering_key
        self.column = column
        self.head: Entry | None = None
        """Entry of the first trigger in a cell; None while the strand waits for its key. Other
        entries of the strand that are still in cells are stale."""
        self.taken = 0
        """Number of triggers taken since the last call of `TriggerTable.held_back`."""
