"""Reweighing: stored entries of fairness keys get new levels after the weights of the keys change.

A level holds the virtual time of a task at the weight its key had on arrival. After a change, the
entries of the key are read in the order of their levels, and each gets the pass that follows the
one before it: start-time fair queueing (Goyal, Vin and Cheng 1996), begun again at the key's first
waiting task. So the order within a key stays, and the position needs no look at other keys.
"""

from __future__ import annotations

from collections.abc import Collection

from fairlead.core.fair.passes import Passes
from fairlead.model import Level, ReweighingRecord, Trigger

RENEWED = 1
"""Bit of a level's id that marks a level given by a reweighing: the lowest, so that ids ascend in
the order in which levels are given."""


class Reweighing:
    """Progress of one reweighing of a lane. It ends when `at` reaches `last`."""

    def __init__(
        self,
        keys: Collection[str],
        at: Level,
        last: Level,
        first_id: int,
        next_passes: dict[str, int],
    ) -> None:
        self.keys = frozenset(keys)
        self.at = at
        """Level through which no entry of these keys has a level from before."""
        self.last = last
        """Highest level that an entry of these keys may have from before."""
        self._first_id = first_id
        """Number of the last level given before the reweighing began."""
        self.next_passes = next_passes
        """Next pass by key, of the keys with an entry met so far."""

    @classmethod
    def resume(cls, record: ReweighingRecord) -> Reweighing:
        """Return the reweighing that an earlier owner began."""
        return cls(record.keys, record.at, record.last, record.first_id, dict(record.next_passes))

    def record(self) -> ReweighingRecord:
        """Return the record for the next owner."""
        return ReweighingRecord(
            sorted(self.keys), self.at, self.last, self._first_id, sorted(self.next_passes.items())
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
            trigger.fairness_key in self.keys
            and level > self.at
            and not (level.id & RENEWED and level.id & ~RENEWED > self._first_id)
        )

    def has_met_all(self, key: str, next_pass: int) -> bool:
        """Return whether all entries from before of a key have been met. `next_pass`: pass that
        follows them."""
        return next_pass <= self.at.pass_

    def next_pass(self, trigger: Trigger, passes: Passes, virtual_time: int) -> int:
        """Return the pass of the next trigger of its key, which has a level from before. The first
        one of a key keeps its pass, or comes a step after the virtual time."""
        assert trigger.level is not None
        key = trigger.fairness_key
        step = passes.step(key, trigger.weight, trigger.name)
        before = trigger.level.pass_
        pass_ = self.next_passes.get(key)
        if pass_ is None:
            pass_ = min(before, virtual_time + step)
        pass_ = max(pass_, min(before, virtual_time))
        self.next_passes[key] = pass_ + step
        return pass_
