"""Fairness keys of a lane with triggers that the channel keeps, by the virtual time at which the
next of these triggers is due.

A heap holds each key at its next pass. The next pass of a key grows when its triggers get levels,
so a key found first may be due later: it goes back. Finding a key costs O(log keys) amortised. The
keys of a tenant are in the heap together, and the tenant has a heap of their turns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace

from fairlead.core.fair.passes import STRIDE_SCALE, Passes
from fairlead.model import tenant_of

EARLY_KEYS = 100
"""Number of new keys of a tenant that go ahead of its keys that wait, beyond one for each of these
that is read."""

FEW_TENANTS = 50
"""Number of tenants, with some counted twice, up to which first turns are not spread: then a tenant
of great weight, which is unknown before its first task is read, does not wait for long."""

_FEWEST_MOVES = 8
"""Number of moves before which stale entries of a heap are not removed."""


class _Heap:
    """Names by position. A name that is put twice is here twice, until it is moved."""

    __slots__ = ("_entries", "_moved", "_moves", "_tidy_at")

    def __init__(self) -> None:
        self._entries: list[tuple[int, str, int]] = []
        """(position, name, number of the move; 0 before the first)."""
        self._moved: dict[str, int] = {}
        """Number of the only entry that counts, by moved name; -1 if the name was removed."""
        self._moves = 0
        self._tidy_at = _FEWEST_MOVES
        """Number of moves after which stale entries are removed."""

    def __len__(self) -> int:
        """Return the number of entries, with a few stale ones."""
        return len(self._entries)

    def put(self, position: int, name: str) -> None:
        """Put a name at a position."""
        if name in self._moved:
            self.move(position, name)
        else:
            heappush(self._entries, (position, name, 0))

    def move(self, position: int, name: str) -> None:
        """Put a name at a position, and nowhere else."""
        self._moves += 1
        self._moved[name] = self._moves
        heappush(self._entries, (position, name, self._moves))
        if self._moves >= self._tidy_at:
            self._tidy()

    def first(self) -> tuple[int, str] | None:
        """Return the lowest position and its name; None if there is no name."""
        entries, moved = self._entries, self._moved
        while entries:
            position, name, number = entries[0]
            if moved.get(name, number) == number:
                return position, name
            heappop(entries)
        return None

    def put_off(self, position: int) -> None:
        """Move the first name to a later position."""
        _, name, number = self._entries[0]
        heapreplace(self._entries, (position, name, number))

    def pop(self) -> None:
        """Remove the first name."""
        _, name, number = heappop(self._entries)
        if number:
            self._moved[name] = -1

    def _tidy(self) -> None:
        """Remove stale entries, once in so many moves that a move costs O(log names)."""
        moved = self._moved
        self._entries = [
            (position, name, 0)
            for position, name, number in self._entries
            if moved.get(name, number) == number
        ]
        heapify(self._entries)
        self._moved = {}
        self._tidy_at = self._moves + max(_FEWEST_MOVES, len(self._entries) // 8)


class _Tenant:
    """Keys of one tenant."""

    __slots__ = ("early", "heap")

    def __init__(self) -> None:
        self.heap = _Heap()
        """Keys by their next turn, or an earlier one."""
        self.early = EARLY_KEYS
        """Number of new keys that may still go ahead of the others."""


class UnreadKeys:
    """Keys that the channel has offered and the lane has not asked for since. A key may be here
    twice."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._plain = _Heap()
        """Keys that are tenants by their next pass, or an earlier one."""
        self._paths = _Heap()
        """Tenants with other keys, likewise, or by `_ahead`."""
        self._tenants: dict[str, _Tenant] = {}
        self._ahead: dict[str, int] = {}
        """Pass that follows the triggers asked for, by tenant with other keys."""
        self._asked: dict[str, int] = {}
        """Number of keys whose triggers were asked for, by the same tenants."""

    def add(self, keys: Collection[str], start: int = -1) -> None:
        """Add keys. `start`: virtual time from which the turns of idle tenants are spread over one
        step, and the turns of keys in their tenants likewise; -1 for keys of new triggers. At one
        pass, a tenant or key of a greater weight would wait for a turn of each other."""
        are_many = len(keys) + len(self._plain) + len(self._paths) > FEW_TENANTS
        for key in keys:
            name = tenant_of(key)
            if name == key:
                self._plain.put(self._first_pass(key, start, are_many), key)
                continue
            tenant = self._tenants.get(name)
            if tenant is None:
                tenant = self._tenants[name] = _Tenant()
                first = max(self._first_pass(key, start, are_many), self._ahead.get(name, 0))
                self._paths.move(first, name)
            is_early = start < 0 and tenant.early > 0
            tenant.early -= is_early
            tenant.heap.put(self._passes.first_turn(key, is_early), key)

    def _first_pass(self, key: str, start: int, are_many: bool) -> int:
        passes = self._passes
        return passes.spread(key, passes.weight(key), start) if are_many else passes.next_pass(key)

    def bring_forward(self, names: Iterable[str]) -> None:
        """Move tenants whose next pass has gone back, and keys of tenants whose next turn has."""
        for name in names:
            tenant = self._tenants.get(tenant_of(name))
            if tenant_of(name) == name:
                self._plain.move(self._passes.next_pass(name), name)
                if tenant is not None:
                    self._settle(name)
            elif tenant is not None:
                tenant.heap.move(self._passes.first_turn(name, is_early=False), name)

    @property
    def has_asked(self) -> bool:
        """Whether tenants may have had fewer triggers than were asked for."""
        return bool(self._ahead)

    def settle(self) -> None:
        """Note that all triggers asked for have come and have levels. A tenant that had fewer is
        due sooner."""
        for name in [*self._ahead]:
            self._settle(name)

    def _settle(self, name: str) -> None:
        due_at = self._passes.next_pass(name)
        self._asked.pop(name, None)
        if self._ahead.pop(name, due_at + 1) > due_at and name in self._tenants:
            self._paths.move(due_at, name)

    @property
    def first(self) -> tuple[int, str] | None:
        """Lowest next pass and its tenant; None if there is no key."""
        return min(filter(None, map(self._first_of, self._heaps)), default=None)

    @property
    def _heaps(self) -> tuple[_Heap, _Heap]:
        return self._plain, self._paths

    def _first_of(self, heap: _Heap) -> tuple[int, str] | None:
        """Return the lowest next pass of a heap and its name."""
        while (found := heap.first()) is not None:
            pass_, name = found
            if heap is self._paths and name not in self._tenants:
                heap.pop()
                continue
            now = self._passes.next_pass(name)
            if now <= pass_:
                return found
            heap.put_off(now)
        return None

    def take(
        self, start: int, through: int | None, number_of: Callable[[str, int], int]
    ) -> Iterator[tuple[str, int]]:
        """Remove and yield keys with the number of triggers to read, lowest next pass first, as
        long as that is at or before `through`. `start`: virtual time. `number_of`: returns the
        number for a key and the number of keys of its tenant, with those asked for."""
        while True:
            plain, path = map(self._first_of, self._heaps)
            if (first := min(filter(None, (plain, path)), default=None)) is None:
                return
            pass_, name = first
            if through is not None and pass_ > through:
                return
            if pass_ > start and name not in self._ahead:
                self._passes.resume(name, pass_)  # for the level of its next trigger
            if first is plain and not (plain == path and self._is_path_next(name)):
                self._plain.pop()
                yield name, number_of(name, 1)
                continue
            self._paths.pop()
            tenant = self._tenants[name]
            key = self._first(tenant)
            asked = self._asked.get(name, 0)
            number = number_of(key, len(tenant.heap) + 1 + asked)
            self._asked[name] = asked + 1
            # Only the levels of these triggers say what the tenant has had.
            step = max(1, round(STRIDE_SCALE / self._passes.rate(name)))
            after = max(start, pass_) + number * step
            self._ahead[name] = after
            if tenant.heap.first() is not None:
                self._paths.put(after, name)
            else:
                del self._tenants[name]
            yield key, number

    def _is_path_next(self, name: str) -> bool:
        """Return whether the turn of a path comes before that of the plain key of its tenant."""
        found = self._tenants[name].heap.first()
        if found is None or not self._passes.has_turns(name):
            return found is not None  # no path has had a turn yet
        return self._passes.turn(name) > found[0]

    def _first(self, tenant: _Tenant) -> str:
        """Remove and return the key of a tenant whose turn is next."""
        heap = tenant.heap
        while True:
            found = heap.first()
            assert found is not None
            turn, key = found
            now = self._passes.turn(key)
            if now > turn:
                heap.put_off(now)
                continue
            heap.pop()
            if self._passes.take_turn(key, turn):
                tenant.early = min(tenant.early + 1, EARLY_KEYS)
            return key
