"""Choice of the fairness keys of a lane to read next from the channel, which keeps their other
triggers, and how many triggers of each.

Memory is filled with the triggers of the lowest next passes first. Between two fills, keys are read
whose triggers in memory soon end or that have none. A key that is due and has new triggers does not
wait until memory has room.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from functools import partial
from itertools import islice
from typing import NamedTuple

from fairlead.core.fair.levels import MOST_EARLY
from fairlead.core.fair.passes import STRIDE_SCALE, Passes
from fairlead.core.fair.unread_keys import UnreadKeys
from fairlead.model import tenant_of

MOST_OF_KEY = 2000
"""Maximum number of triggers of one key in one read."""

EARLY_CREDIT = 100
"""Number of new keys that go ahead of keys that wait in the channel, beyond those that were
earned."""

MOST_KEPT = 1000
"""Tenants whose weights, and most tenants whose heaviest keys, are kept; those chosen last."""

_DECAY = 0.9
"""Factor of the greatest weight at each choice, so that a key that ended soon does not count."""


class Memory(NamedTuple):
    """The triggers of a lane in memory."""

    held: int
    """Number of triggers, with those that were chosen or have arrived and have no level yet."""
    capacity: int
    start: int
    """Virtual time from which levels are given."""
    ahead: int
    """How far the levels in memory reach beyond `start`."""
    is_all: bool
    """Whether no other trigger is stored."""

    @property
    def most(self) -> int:
        """Number of triggers above which some are dropped."""
        return self.capacity + self.capacity // 4

    @property
    def three_quarters(self) -> int:
        """Three quarters of the capacity, but at least one trigger: a lane may always hold one."""
        return max(1, self.capacity * 3 // 4)

    @property
    def is_low(self) -> bool:
        """Whether memory is half empty, and the store cannot fill it."""
        return self.is_all and self.held <= self.capacity // 2


class Heaviest:
    """The greatest weight of a tenant, and of a key in each tenant, that was chosen lately: a read
    of small memory is divided by them."""

    def __init__(self) -> None:
        self._round = 0
        self._found: dict[str | None, tuple[float, int]] = {}
        """(greatest weight, round of it) by tenant of keys; None for that of tenants."""
        self._tenants: dict[str, float] = {}
        """Weights above 1 of tenants chosen lately."""
        self._total = 0.0
        """Sum of these weights."""

    def next_round(self) -> None:
        """Begin a choice."""
        self._round += 1

    def part(self, tenant: str | None, weight: float) -> float:
        """Return the part (0 to 1) that a weight is of the greatest. `tenant`: whose key it is of;
        None for the weight of a tenant."""
        greatest, then = self._found.pop(tenant, (1.0, self._round))
        greatest = max(1.0, weight, greatest * _DECAY ** (self._round - then))
        if greatest > 1:
            self._found[tenant] = greatest, self._round
            if len(self._found) > MOST_KEPT:
                del self._found[next(iter(self._found))]
        return weight / greatest

    def share(self, tenant: str, weight: float, tenants: int) -> float:
        """Return the share of a tenant of all (0 to 1); 0 the first time, when others may not have
        been met. `tenants`: number of all."""
        before = self._tenants.pop(tenant, 0.0)
        self._total -= before
        if weight <= 1:
            return 0.0
        self._tenants[tenant] = weight
        self._total += weight
        if len(self._tenants) > MOST_KEPT:
            self._total -= self._tenants.pop(next(iter(self._tenants)))
        others = max(0, tenants - len(self._tenants))
        return weight / (self._total + others) if before else 0.0


class KeyChoice:
    """Keys with triggers that the channel keeps, until they are chosen."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._unread = UnreadKeys(passes)
        self._announced: dict[str, None] = {}
        """Keys with new triggers."""
        self._new: set[str] = set()
        """Announced keys that were chosen while they were due, and have no level yet."""
        self._heaviest = Heaviest()

    def is_asking(self, memory: Memory) -> bool:
        """Return whether to ask the channel for triggers of remembered keys: of new ones, of those
        that are soon due if memory has room, and of others if memory is half empty."""
        if self._announced and memory.held < memory.most:
            return True
        first = self._unread.first
        if first is None:
            return False
        due_at, name = first
        spare = max(1, memory.capacity // 16)
        has_room = memory.held <= self._most_with_due(memory, name) - spare
        is_due = self._unread.has_asked or due_at <= memory.start + memory.ahead // 2
        return memory.is_low or (has_room and is_due)

    def remember(self, start: int, announced: Iterable[str], found: Collection[str]) -> None:
        """Remember keys. `start`: virtual time. `announced`: those of new triggers. Chosen keys are
        forgotten."""
        self._announced |= dict.fromkeys(announced)
        self._unread.add(found, start)

    def bring_forward(self, names: Iterable[str]) -> None:
        """Move tenants whose next pass has gone back, and keys of tenants whose next turn has."""
        self._unread.bring_forward(names)

    def choose(self, memory: Memory, unread: int, coming: int = 0) -> list[tuple[str, int]]:
        """Return which remembered keys to read next, and how many triggers of each at most.
        `unread`: number of tenants with unread triggers. `coming`: number of triggers chosen before
        that have no level yet."""
        if not coming:
            self._unread.settle()
        self._heaviest.next_round()
        least = _least_of_tenant(memory, unread)
        chosen = self._choose_announced(memory, least)
        count = least * len(chosen)
        while (first := self._unread.first) is not None:
            pass_, name = first
            most = memory.three_quarters if memory.is_low else 0
            if pass_ <= memory.start + memory.ahead // 2:
                most = max(most, self._most_with_due(memory, name))
            if memory.held + count >= most:
                break
            room = max(1, memory.most - memory.held - count)
            share = self._heaviest.share(name, self._passes.rate(name), unread)
            part = int(memory.three_quarters * share) if share > 0.5 else 0
            greatest = min(max(least, memory.capacity // 4, part), room)
            number_of = partial(self._number_of, min(least, room), greatest)
            key, number = next(self._unread.take(memory.start, None, number_of))
            chosen[key] = number
            count += number
        return [*chosen.items()]

    def _choose_announced(self, memory: Memory, least: int) -> dict[str, int]:
        """Return the announced keys to read at once; at most one of each tenant."""
        chosen, tenants = dict[str, int](), set[str]()
        for key in [*islice(self._announced, memory.most)]:
            tenant = tenant_of(key)
            is_due = self._passes.next_pass(key) <= memory.start
            most = memory.most if is_due else self._most_with_due(memory, tenant)
            if tenant in tenants or not (is_due or self._passes.is_behind(key)):
                self._unread.add([key])
            elif memory.held + least * len(chosen) < most:
                tenants.add(tenant)
                self._passes.begin_turns(key)
                if is_due:
                    self._new.add(key)
                chosen[key] = least
            else:
                break
            del self._announced[key]
        if len(self._new) > MOST_EARLY:
            self._new.clear()  # their rows may be gone
        return chosen

    def choose_all(self, memory: Memory, unread: int, most: int) -> list[tuple[str, int]]:
        """Return remembered keys as `choose` does, for about `most` triggers, whether memory has
        room or not."""
        self._unread.add(self._announced)
        self._announced.clear()
        least = _least_of_tenant(memory, unread)
        found = self._unread.take(memory.start, None, lambda key, keys: least)
        # A key may be among them twice.
        return [*dict(islice(found, max(1, most // least))).items()]

    def credit(self, key: str) -> int:
        """Return the credit of a key for `Levels.assign`, and forget that the key was new."""
        credit = EARLY_CREDIT if key in self._new else -MOST_EARLY
        self._new.discard(key)
        return credit

    def _number_of(self, least: int, most: int, key: str, keys: int) -> int:
        """Return how many triggers of a key to read, at most `most`, by the number of keys of its
        tenant, and the known weights of both; a few different numbers, so that many keys are read
        together."""
        most, tenant = min(MOST_OF_KEY, most), tenant_of(key)
        number = self._by_weight(None, tenant, least, most)
        if key == tenant and keys == 1:
            return number
        if keys > 1:
            # Rounded up: if all keys of a heavy tenant were asked for too little, lighter ones
            # would fill memory, and run while the next read is under way.
            number = 1 << (-(-number // keys) - 1).bit_length()
        return number if key == tenant else self._by_weight(tenant, key, number, most)

    def _by_weight(self, scope: str | None, name: str, number: int, most: int) -> int:
        """Return `number` multiplied by the weight of a key in its tenant, `scope`, or of a tenant,
        but at most the part of `most` that its weight is of the greatest."""
        weight = min(self._passes.rate(name), MOST_OF_KEY)
        part = self._heaviest.part(scope, weight)
        most = max(1, int(most * part))
        if weight <= 1:
            return number if scope is None else min(number, most)
        most = max(number, most) if scope is None else most
        return min(most, number << math.ceil(math.log2(weight)))

    def _most_with_due(self, memory: Memory, tenant: str) -> int:
        """Return up to how many triggers memory takes for a tenant that is soon due. Fewer if no
        other in memory comes a turn later, as with more keys than memory, and this one has no two
        turns before the last of them."""
        step = STRIDE_SCALE / self._passes.rate(tenant)
        is_urgent = memory.ahead > min(self._passes.step("", 1.0), 2 * step)
        return memory.most - memory.most // 8 if is_urgent else memory.three_quarters


def _least_of_tenant(memory: Memory, unread: int) -> int:
    return max(1, min(MOST_OF_KEY, memory.capacity // (4 * max(1, unread))))
