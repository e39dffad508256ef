"""Cells of a tenant with several keys: hierarchical start-time fair queueing (Goyal, Vin and Cheng
1996). The tenant has its rank among all flows, and inside the tenant the key with the lowest rank
is next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace

from fairlead.core.fair.columns import Cell, Column, Order
from fairlead.core.fair.entries import Entries, Entry
from fairlead.core.fair.flows import CellLevel, Flow, Member, TenantFlow
from fairlead.model import Trigger

Head = tuple[int, int, int, "KeyCell"]
"""(rank of the key, level of its first trigger in one number, number of the trigger, its
triggers)."""

_ID_BITS = 64
"""Bits of a level's id in such a number."""


class KeyCell(Entries):
    """Triggers of one key of a tenant in one column, by level."""

    __slots__ = ("cell", "head", "member")

    def __init__(self, first: Entry, cell: TenantCell, member: Member) -> None:
        super().__init__(first)
        self.cell = cell
        self.member = member
        self.head: Head | None = None
        """Position among the keys of the cell. Others are stale."""

    def __lt__(self, other: object) -> bool:
        """Return False: heads of equal order come in any order."""
        return False


class TenantCell(Cell):
    """Triggers of a tenant in one column, by the rank of the key and then by level."""

    __slots__ = ("_heads", "keys", "tenant")

    def __init__(self, entries: Sequence[Entry], column: Column, tenant: TenantFlow) -> None:
        super().__init__(entries[0], column, tenant)
        self.tenant = tenant
        self.keys: dict[str, KeyCell] = {}
        self._heads: list[Head] = []
        """Heap of the keys. The first is never stale between two calls."""
        for entry in entries:
            self.add(entry)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in any order."""
        for key in self.keys.values():
            yield from key

    def order(self, holder: Cell | Column | Flow) -> Order:
        """Return the order of the first trigger, for the cell, or its column or flow."""
        rank, level, _, _ = self._heads[0]
        return (self.column.priority, self.tenant.rank, rank, level, holder)

    def place(self) -> CellLevel:
        """Return the position in the heads of the flow."""
        return (*self._heads[0][:3], self)

    def add(self, entry: Entry) -> bool:
        """Add an entry; return True if it is now the first."""
        name = entry[3].fairness_key
        key = self.keys.get(name)
        if key is None:
            member = self.tenant.member(name, entry[3])
            key = self.keys[name] = KeyCell(entry, self, member)
            member.cells.append(key)
        elif not key.add(entry):
            return False
        self._put(key)
        return self._settle()

    def pop(self) -> Entry | None:
        """Remove the first entry; return the next one, or None if there is none. A key that has run
        has a new rank."""
        key = heappop(self._heads)[3]
        if key.pop() is None:
            self._drop(key)
        else:
            self._put(key)
        for other in key.member.cells:
            if other is not key:
                other.cell._refresh()
        if not self.keys:
            return None
        self._settle()
        return self.first

    def keep(self, is_kept: Callable[[Trigger], bool]) -> list[Entry]:
        """Remove and return the entries for which `is_kept` is false. If it is false for all, some
        entries stay, and the owner of the cell drops them."""
        removed: list[Entry] = []
        for key in [*self.keys.values()]:
            gone = key.keep(is_kept)
            removed += gone
            if gone and is_kept(key.first[3]):
                self._put(key)
            elif gone and len(self.keys) > 1:
                self._drop(key)
        self._settle()
        return removed

    def move(self, key: KeyCell) -> None:
        """Find the first entry after the rank of a key has moved."""
        self._put(key)
        self._refresh()

    def leave(self) -> None:
        """Leave the members of the tenant, because the cell is dropped."""
        for key in [*self.keys.values()]:
            self._drop(key)

    def _put(self, key: KeyCell) -> None:
        pass_, level_id, number, _, _ = key.first
        key.head = (key.member.rank, pass_ << _ID_BITS | level_id, number, key)
        heappush(self._heads, key.head)

    def _drop(self, key: KeyCell) -> None:
        key.head = None
        key.member.cells.remove(key)
        del self.keys[key.member.key]

    def _settle(self) -> bool:
        """Find the first entry; return whether it is another one than before."""
        heads = self._heads
        while (head := heads[0])[3].head is not head or head[0] != head[3].member.rank:
            key = head[3]
            if key.head is head:  # the key ran in another column
                head = key.head = (key.member.rank, *head[1:])
                heapreplace(heads, head)
            else:
                heappop(heads)
        before, self.first = self.first, head[3].first
        return self.first is not before

    def _refresh(self) -> None:
        """Find the first entry again after a key has moved or has run in another column."""
        self._settle()
        if self.position is not None and self not in self.flow.waiting:
            self.flow.put(self)
