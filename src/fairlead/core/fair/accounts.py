"""Accounts of start-time fair queueing (Goyal, Vin and Cheng 1996): what a tenant has started among
all tenants, and a key of a tenant among its keys.

A trigger that starts moves the rank of its tenant, and that of its key inside the tenant, on by its
charge, divided by the weight. Each trigger is charged as much, or with `cost="runtime"` its
expected run time. When such a run ends, both ranks move by the difference between the time it took
and the charge. A run that takes longer than its charge is charged its time so far, four times a
second. So a run that never ends costs its key what it takes.

A difference that moves a rank below the virtual time is saved: the next triggers of the flow may
start there. Otherwise a flow whose charges are too high would lose the differences. Nothing else is
saved: a flow that was idle or held back by limits starts at the virtual time, because a flow whose
triggers may run is never further below the virtual time than its savings.

The bound. Let two tenants, f and m, both have triggers in the table that may run throughout an
interval, and let S be the total run time of the triggers of a tenant that start in it. Then

    | S_f / w_f - S_m / w_m |  <=  (c_f + 5 u_f) / w_f + (c_m + 5 u_m) / w_m

where c is the greatest charge of one trigger of the tenant, and u its greatest uncertainty at one
moment: the sum of |took - charged| over its current runs. With exact charges u is 0, and this is
the bound of start-time fair queueing, in seconds. Why: let t(k) be the rank of k. Over the interval
t(k) advances by S_k / w_k, except for the uncertainty at its two ends (2 u). And t(f) is never
further above t(m) than c_f + u_f + 2 u_m: when f last started, t(f) was not above t(m); since then
f has advanced by its charge and by differences, and m has gone back by differences at most. For two
keys of one tenant the same holds, with the weights of the keys, in the ranks inside the tenant. The
bound holds while the unit of run times does not change, and no flow owes or has saved more than
MOST_OWED.
"""

from __future__ import annotations

from fairlead.core.fair.strides import STRIDE_SCALE, step, stride

MOST_OWED = 1000
"""Maximum number of units (mean runs of the queue), divided by its weight, that an account is ahead
of the virtual time or has saved. A run that hangs delays its key by no more; the excess is
dropped."""


class Account:
    """Account of what a flow, or a key inside its tenant, has started."""

    __slots__ = ("charge", "rank", "running", "saved", "weight")

    def __init__(self) -> None:
        self.rank = -1
        """Start tag of the next trigger; behind every virtual time before the first trigger."""
        self.charge = STRIDE_SCALE
        """Last charge that was not 0, at weight 1, in a lane that shares run time."""
        self.weight = 1.0
        """Weight of the last charge."""
        self.running = 0
        """Number of current runs whose charges will be corrected."""
        self.saved = 0
        """Virtual time below the current one from which the next trigger may start, after runs
        that took less than their charges."""

    def start(self, now: int, charge: int) -> int:
        """Charge a trigger; return the virtual time at which it starts. `now`: the current virtual
        time. `charge`: of the trigger at weight 1."""
        rank = self.rank
        if rank < now - self.saved:
            rank = now
        self.saved = now - rank if rank < now else 0
        # As `step`, without a call.
        is_whole = charge == STRIDE_SCALE
        self.rank = rank + (stride(self.weight) if is_whole else step(charge, self.weight))
        return rank

    @property
    def rate(self) -> float:
        """Triggers that start while one of weight 1 and mean run time does."""
        return self.weight * STRIDE_SCALE / self.charge

    def tag(self, now: int, rows: int) -> int:
        """Return the start tag of the trigger that comes after so many others, which wait."""
        return max(now, self.rank) + rows * step(self.charge, self.weight)

    def move(self, more: int, now: int) -> None:
        """Correct charges by a difference of `more` virtual time at weight 1."""
        before, most = self.rank, round(MOST_OWED * STRIDE_SCALE / self.weight)
        rank = before + round(more / self.weight)
        if more > 0:
            rank = min(rank, max(before, now + most))
        saved = self.saved + max(0, now - rank) - max(0, now - before)
        self.rank, self.saved = rank, max(0, min(saved, most))

    def reweigh(self, weight: float | None, now: int) -> None:
        """Let what was charged beyond the virtual time, or saved below it, count at a new weight;
        None for that of the next task, which is unknown."""
        if self.rank < now - self.saved:
            self.rank, self.saved = now, 0
        ratio = self.weight / (weight or 1.0)
        rank = now + round((self.rank - now) * ratio)
        if weight is None:
            self.rank = min(self.rank, rank)
            return
        self.rank, self.weight = rank, weight
        self.saved = max(round(self.saved * ratio), now - rank)

    def continue_from(self, other: Account) -> None:
        """Continue what another account has started."""
        self.rank, self.weight = other.rank, other.weight
        self.running, self.saved, self.charge = other.running, other.saved, other.charge
