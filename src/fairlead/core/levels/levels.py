"""The levels that one owner gives to the triggers of a lane: their passes, and ids that no other
owner gives.

The pass is the start tag of start-time fair queueing (Goyal, Vin and Cheng 1996), by tenant. Tasks
of one tenant get their levels in the order of arrival, whatever their keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush, nsmallest

from fairlead.core.levels.counters import LAST_PASS
from fairlead.core.levels.passes import Passes
from fairlead.model import PATH_SEPARATOR, Level, Trigger, tenant_of

FIRST_PASS = 1
"""Pass of the first trigger of a lane: a level below this pass is still above `LOWEST`."""

MOST_EARLY = 1000
"""Maximum number of idle tenants that go ahead of other tenants at once."""

_FEWEST_PASSES = 16
"""Number of passes of a tenant below which those of triggers that left are not removed."""

_ID_BITS = 40
"""Low bits of a level's id, which count within one owner; the high bits are its range id, so that
no two owners give the same id."""


class TenantPasses:
    """Passes of the triggers of one tenant in memory. The keys of a tenant share its passes: the
    trigger that runs next counts at the lowest of them, whatever its own is."""

    __slots__ = ("_count", "_passes")

    def __init__(self) -> None:
        self._passes: list[int] = []
        """Heap of passes, also of triggers that left without a run."""
        self._count = 0

    def came(self, pass_: int) -> None:
        """Note that a trigger came into memory."""
        self._count += 1
        heappush(self._passes, pass_)

    def came_taken(self) -> None:
        """Note that a trigger is in memory that was taken before."""
        self._count += 1

    def took(self, pass_: int) -> int:
        """Return the pass at which a trigger that was taken counts. `pass_`: its own, for one that
        was taken before."""
        return heappop(self._passes) if self._passes else pass_

    def left(self) -> bool:
        """Note that a trigger left memory, taken or not; return whether none is left."""
        self._count -= 1
        if len(self._passes) > 2 * self._count + _FEWEST_PASSES:
            self._passes = nsmallest(self._count, self._passes)
        return not self._count


class Levels:
    """The levels of one lane under one owner."""

    def __init__(self, range_id: int, virtual_time: int, passes: Passes) -> None:
        self.virtual_time = max(virtual_time, FIRST_PASS)
        """Highest pass at which a trigger was taken."""
        self.last_id = range_id << _ID_BITS
        """Last id given."""
        self._range_id = range_id
        self._passes = passes
        self._waiting: defaultdict[str, int] = defaultdict(int)
        """Number of triggers in memory by task name."""
        self._served: dict[str, int] = {}
        """Virtual time by task name; behind the lane's while a limit holds the name back."""
        self._tenants: dict[str, TenantPasses] = {}
        """Passes in memory by tenant, from the first path that comes until no trigger is left."""
        self._early = 0
        """Number of idle tenants that may still go ahead of those whose turn is at the same
        pass."""

    def came(
        self, triggers: Iterable[Trigger], loaded: Mapping[Level, Trigger], taken: Iterable[Trigger]
    ) -> None:
        """Note that triggers came into memory. `loaded`: all triggers in memory, with these, that
        are not taken. `taken`: those that are taken and have not left."""
        waiting, tenants = self._waiting, self._tenants
        has_tenants, has_path = bool(tenants), False
        for trigger in triggers:
            name, key = trigger.name, trigger.fairness_key
            if not waiting[name]:
                self._served[name] = min(self.virtual_time, _level(trigger).pass_)
            waiting[name] += 1
            if has_tenants:
                self._passes_of(key).came(_level(trigger).pass_)
            elif PATH_SEPARATOR in key:
                has_path = True
        if has_path:
            for trigger in loaded.values():
                self._passes_of(trigger.fairness_key).came(_level(trigger).pass_)
            for trigger in taken:
                self._passes_of(trigger.fairness_key).came_taken()

    def _passes_of(self, key: str) -> TenantPasses:
        tenant = tenant_of(key)
        passes = self._tenants.get(tenant)
        if passes is None:
            passes = self._tenants[tenant] = TenantPasses()
        return passes

    def left(self, triggers: Iterable[Trigger]) -> None:
        """Note that triggers left memory."""
        waiting, tenants = self._waiting, self._tenants
        for trigger in triggers:
            name = trigger.name
            left = waiting[name] = waiting[name] - 1
            if not left:
                del waiting[name]
            if not tenants:
                continue
            tenant = tenant_of(trigger.fairness_key)
            if (passes := tenants.get(tenant)) is not None and passes.left():
                del tenants[tenant]

    def took(self, triggers: Iterable[Trigger]) -> None:
        """Advance the virtual time by triggers that were taken for dispatch."""
        served, furthest, early = self._served, self.virtual_time, self._early
        tenants = self._tenants
        for trigger in triggers:
            pass_ = _level(trigger).pass_
            if tenants and (found := tenants.get(tenant_of(trigger.fairness_key))) is not None:
                pass_ = found.took(pass_)
            early += pass_ >= furthest
            if pass_ > served[trigger.name]:
                served[trigger.name] = pass_
            if pass_ > furthest:
                furthest = pass_
        self.virtual_time = furthest
        self._early = min(early, MOST_EARLY)

    def observe(self, trigger: Trigger) -> None:
        """Advance the next pass of a tenant beyond a trigger that has its level from another
        owner."""
        level = _level(trigger)
        if level.id >> _ID_BITS != self._range_id:
            self._passes.observe(
                trigger.fairness_key, trigger.weight, level.pass_, self.virtual_time
            )

    def assign(self, trigger: Trigger, above: Level) -> Trigger:
        """Return a new trigger with its level, which lies above `above`."""
        name = trigger.name
        if not self._waiting.get(name):
            # A name that was idle or is new starts at the lane's virtual time; a name that a limit
            # holds back keeps its own.
            self._served[name] = self.virtual_time
        self.last_id += 1
        start, served = above[0], self._served[name]
        if served > start:
            start = served
        key, weight = trigger.fairness_key, trigger.weight
        pass_ = self._passes.assign(key, weight, start)
        if self._early and pass_ == start:
            pass_ = self._before_ties(pass_, above)
        return trigger.at(pass_, self.last_id)

    def _before_ties(self, pass_: int, above: Level) -> int:
        """Return the pass of the first task of an idle tenant: before the tenants whose turns are
        at the same pass. With many, the task would otherwise wait for one of each. At most every
        second trigger that runs comes from such a tenant."""
        if (pass_ - 1, self.last_id) <= above:
            return pass_
        self._early -= 1
        return pass_ - 1

    def assign_again(self, triggers: Iterable[Trigger], above: Level) -> Iterator[Trigger]:
        """Yield triggers that have waited, with levels from the virtual time on, a step apart for
        each tenant, so that a tenant that arrives later waits for one task of each and not for
        all."""
        start = max(self.virtual_time, above.pass_)
        next_passes: dict[str, int] = {}
        for trigger in sorted(triggers, key=_level):
            key = trigger.fairness_key
            tenant = tenant_of(key)
            pass_ = next_passes.get(tenant, start)
            next_pass = pass_ + self._passes.step(key, trigger.weight)
            next_passes[tenant] = min(next_pass, LAST_PASS)
            self.last_id += 1
            yield trigger.at(pass_, self.last_id)


def _level(trigger: Trigger) -> Level:
    assert trigger.level is not None
    return trigger.level
