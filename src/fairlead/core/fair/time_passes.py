"""Passes by run time: a key is charged the expected time of its task at first, and the difference
to the actual time once the task has ended.

Start-time fair queueing (Goyal, Vin and Cheng 1996; `fairlead.core.fair.passes`) needs the
length of a task before it runs.
Here the length is an expectation (`fairlead.core.fair.run_times`). Tasks of the key that get their
levels later make up for the difference; assigned levels do not change. A task that took longer
delays the key's next task. A task that took less lets the next tasks follow more closely, but never
before tasks of their own key and never before the lane's virtual time: an idle key saves nothing.

A key here is the tenant, whose tasks may have several fairness keys
(`fairlead.core.fair.tenants`).

The bound. Let two keys, f and m, both have tasks waiting throughout an interval, and let S be the
total run time of the tasks of a key dispatched in it. Then

    | S_f / w_f - S_m / w_m |  <=  (c_f + 3 u_f) / w_f + (c_m + 3 u_m) / w_m

where c is the greatest charge of one task of the key, and u the greatest uncertainty of the key at
one moment: the sum of |took - charged| over its tasks that wait or run, plus its unused savings.
For each key, the levels dispatched span the same virtual time, except for one distance between two
levels (at most c + u). The distances add up to the actual run times, except for the uncertainty
when the first of these tasks and the one after the last get their levels (u each). With exact
expectations u is 0, and this is the bound of start-time fair queueing, in seconds. The bound holds
while the unit of the queue's run times does not change, and while no key owes or saves more than
MOST_OWED.

A task that leaves memory to wait for its ordering key gives its charge back, and is charged its run
time when it ends. So nothing is left of one that is cancelled meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.core.fair.counters import LAST_PASS, Counters
from fairlead.core.fair.passes import STRIDE_SCALE, Passes
from fairlead.core.fair.run_times import RunTimes
from fairlead.model import RunTimesRecord, tenant_of

MOST_OWED = 1000
"""Maximum number of units (mean runs of the queue), divided by its weight, that a key owes or has
saved by its runs between two of its tasks. Any excess is dropped."""

MOST_REMEMBERED = 10_000
"""Maximum number of pairs of task name and key with known charges, and most keys that owe or have
saved; beyond it, the oldest are dropped."""


class TimePasses(Passes):
    """Passes of one lane by run time. The lanes of a queue may share `run_times`."""

    def __init__(
        self, counters: Counters, weights: Mapping[str, float] | None, run_times: RunTimes
    ) -> None:
        super().__init__(counters, weights)
        self._run_times = run_times
        self._charged: dict[tuple[str, str], list[int]] = {}
        """Number of tasks that wait or run, and their total charge, by task name and key. Single
        charges are not kept, because there may be millions."""
        self._last_charges: dict[str, int] = {}
        """Charge of the last task, at weight 1, by tenant and by key."""
        self._owed: dict[str, int] = {}
        """Virtual time by tenant: positive if its next task is delayed, negative if it has
        savings."""

    def assign(self, key: str, weight: float, virtual_time: int, name: str = "") -> int:
        """Return the pass of one more task of the key."""
        tenant = tenant_of(key)
        next_pass = self._counters.next_pass(tenant)
        owed = self._owed.pop(tenant, 0)
        if owed > 0:
            next_pass, owed = min(next_pass + owed, LAST_PASS), 0
        pass_ = max(virtual_time, next_pass)
        charge = self._charge(name, key)
        step = self._stride(charge, self._weight(key, weight))
        if owed and next_pass >= virtual_time:
            used = min(step - 1, -owed)
            step -= used
            self._owe(tenant, owed + used)
        self._counters.put(tenant, pass_ + step, virtual_time)
        for of in dict.fromkeys((tenant, key)):
            self._note_charge(of, charge)
        self._count_turn(tenant, key, weight, charge)
        return pass_

    def rate(self, key: str) -> float:
        return self.weight(key) * STRIDE_SCALE / self._last_charges.get(key, STRIDE_SCALE)

    def _note_charge(self, key: str, charge: int) -> None:
        charges = self._last_charges
        charges.pop(key, None)
        charges[key] = charge
        if len(charges) > MOST_REMEMBERED:
            del charges[next(iter(charges))]

    def step(self, key: str, weight: float, name: str = "") -> int:
        """Return the virtual time from one task of the key to the next (dimensionless)."""
        return self._stride(self._run_times.charge(name, key), self._weight(key, weight))

    def observe(
        self, key: str, weight: float, pass_: int, virtual_time: int, name: str = ""
    ) -> None:
        if not name:  # the last of several tasks, each of which is observed when it is read
            super().observe(key, weight, pass_, virtual_time)
            return
        charge = self._charge(name, key)
        self._raise(key, pass_ + self._stride(charge, self._weight(key, weight)), virtual_time)

    def ended(self, key: str, weight: float, name: str, cost: int, is_charged: bool = True) -> None:
        weight, tenant = self._weight(key, weight), tenant_of(key)
        charged = self._discharge(name, key) if is_charged else 0
        more = round((self._run_times.virtual(cost) - charged) / weight)
        most = round(MOST_OWED * STRIDE_SCALE / weight)
        before = self._owed.pop(tenant, 0)
        owed = min(before + more, max(before, most))
        # The charge of a task that will not run is given back whole: it may run later, uncharged.
        self._owe(tenant, max(owed, min(before, -most)) if cost else owed)

    def withdraw(self, key: str, name: str) -> None:
        self._discharge(name, key)

    def heaviest(
        self, most: int, unstored: Iterable[tuple[str, int]] = ()
    ) -> list[tuple[str, int]]:
        kept = [
            (tenant, min(pass_ + max(0, self._owed.get(tenant, 0)), LAST_PASS))
            for tenant, pass_ in super().heaviest(most, unstored)
        ]
        return sorted(kept, key=lambda pair: (-pair[1], pair[0]))

    def run_times(self) -> RunTimesRecord:
        return RunTimesRecord(self._run_times.unit, self._run_times.kept())

    def resume_run_times(self, record: RunTimesRecord) -> None:
        self._run_times.resume(record.unit, record.means)

    @staticmethod
    def _stride(charge: int, weight: float) -> int:
        return max(1, round(charge / weight))

    def _charge(self, name: str, key: str) -> int:
        charge = self._run_times.charge(name, key)
        charges = self._charged.get((name, key))
        if charges is None:
            charges = self._charged[name, key] = [0, 0]
            if len(self._charged) > MOST_REMEMBERED:
                del self._charged[next(iter(self._charged))]
        charges[0] += 1
        charges[1] += charge
        return charge

    def _discharge(self, name: str, key: str) -> int:
        """Remove one task that waits or runs; return its charge. The charge is the mean of all, so
        that the charges of all tasks add up exactly."""
        charges = self._charged.get((name, key))
        if charges is None:
            return self._run_times.charge(name, key)
        count, total = charges
        charge = total // count
        if count == 1:
            del self._charged[name, key]
        else:
            charges[0], charges[1] = count - 1, total - charge
        return charge

    def _owe(self, tenant: str, owed: int) -> None:
        if owed:
            self._owed[tenant] = owed
            if len(self._owed) > MOST_REMEMBERED:
                del self._owed[next(iter(self._owed))]
