"""Reweighing: stored entries of tenants get new levels after the weights of the tenants change. A
fairness key that is no path is a tenant.

A level holds the virtual time of a task at the weight its tenant had on arrival. After a change,
the entries of the tenant are read in the order of their levels, and each gets the pass that follows
the one before it: start-time fair queueing (Goyal, Vin and Cheng 1996), begun again at the tenant's
first waiting task. So the order within a tenant stays, and the position needs no look at others.
"""

from __future__ import annotations

from collections.abc import Collection

from fairlead.core.fair.counters import LAST_PASS
from fairlead.core.fair.passes import Passes
from fairlead.model import Level, ReweighingRecord, Trigger, tenant_of

RENEWED = 1
"""Bit of a level's id that marks a level given by a reweighing: the lowest, so that ids ascend in
the order in which levels are given."""


class Reweighing:
    """Progress of one reweighing of a lane. It ends when `at` reaches `last`."""

    def __init__(
        self,
        tenants: Collection[str],
        at: Level,
        last: Level,
        first_id: int,
        next_passes: dict[str, int],
    ) -> None:
        self.tenants = frozenset(tenants)
        self.at = at
        """Level through which no entry of these tenants has a level from before."""
        self.last = last
        """Highest level that an entry of these tenants may have from before."""
        self._first_id = first_id
        """Number of the last level given before the reweighing began."""
        self.next_passes = next_passes
        """Next pass by tenant, of those with an entry met so far."""

    @classmethod
    def resume(cls, record: ReweighingRecord) -> Reweighing:
        """Return the reweighing that an earlier owner began."""
        return cls(record.keys, record.at, record.last, record.first_id, dict(record.next_passes))

    def record(self) -> ReweighingRecord:
        """Return the record for the next owner."""
        return ReweighingRecord(
            sorted(self.tenants),
            self.at,
            self.last,
            self._first_id,
            sorted(self.next_passes.items()),
        )

    @property
    def is_done(self) -> bool:
        """Whether every entry from before has been met."""
        return self.at >= self.last

    def is_due(self, trigger: Trigger) -> bool:
        """Return whether the reweighing must still meet this trigger, at its level."""
        level = trigger.level
        assert level is not None
        return (
            tenant_of(trigger.fairness_key) in self.tenants
            and level > self.at
            and not (level.id & RENEWED and level.id & ~RENEWED > self._first_id)
        )

    def has_met_all(self, next_pass: int) -> bool:
        """Return whether all entries from before of a tenant have been met. `next_pass`: pass that
        follows them."""
        return next_pass <= self.at.pass_

    def next_pass(self, trigger: Trigger, passes: Passes, virtual_time: int) -> int:
        """Return the pass of the next trigger of its tenant, which has a level from before. The
        first one of a tenant keeps its pass, or comes a step after the virtual time."""
        assert trigger.level is not None
        key = trigger.fairness_key
        step = passes.step(key, trigger.weight, trigger.name)
        before = trigger.level.pass_
        tenant = tenant_of(key)
        pass_ = self.next_passes.get(tenant)
        if pass_ is None:
            pass_ = min(before, virtual_time + step)
        pass_ = max(pass_, min(before, virtual_time))
        self.next_passes[tenant] = min(pass_ + step, LAST_PASS)
        return pass_
