"""Passes that move on by run time: a key is charged what its task is expected to take, and what it
took once it has ended.

Start-time fair queueing (`fairlead.core.fair.passes`) needs the length of a task before it runs.
Here it is expected (`fairlead.core.fair.run_times`), and the difference is made up for by the tasks
of the key that are placed from then on; those that have a level keep it. A task that took longer
puts off the key's next one; one that took less lets the next ones follow more closely, but never
before tasks of their own key, and never before the moment at which the lane stands: a key that has
been idle has saved nothing.

The bound. Let two keys, f and m, both have tasks waiting all through an interval, and let S be the
run time of the tasks of a key that were dispatched in it, in whole. Then

    | S_f / w_f - S_m / w_m |  <=  (c_f + 3 u_f) / w_f + (c_m + 3 u_m) / w_m

where c is the most that one task of the key was charged, and u the most that the key had in doubt
at one moment: the sum of |took - charged| over its tasks that wait or run, and what it has saved
and not yet used. For each key the levels of what is dispatched
span the same virtual time, but for one distance between two levels (at most c + u); and
distances add up to what the tasks took, but for what is in doubt when the first one and the one
after the last one are placed (u each). With exact expectations u is 0, and this is the bound of
start-time fair queueing, in seconds. It holds while the unit of the queue's run times stands still,
and while nobody owes or saves more than MOST_OWED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import STRIDE_SCALE, Passes
from fairlead.core.fair.run_times import RunTimes
from fairlead.model import RunTimesRecord

MOST_OWED = 1000
"""Units, which are mean runs of the queue: what a key owes, or has saved, between two of its tasks
is at most this, by its weight. What is beyond is forgiven, or lost."""

MOST_REMEMBERED = 10_000
"""Pairs of task name and key whose charges are known, and keys that owe or have saved; beyond, the
oldest are forgotten."""


class TimePasses(Passes):
    """Passes of one lane. `run_times` may be shared by the lanes of a queue."""

    def __init__(
        self, counters: Counters, weights: Mapping[str, float] | None, run_times: RunTimes
    ) -> None:
        super().__init__(counters, weights)
        self._run_times = run_times
        self._charged: dict[tuple[str, str], list[int]] = {}
        """By task name and key: of those that wait or run, how many there are and what they were
        charged together. Which of them was charged what is not kept: there may be millions."""
        self._owed: dict[str, int] = {}
        """By key, virtual time: above 0 what puts off its next task, below 0 what it has saved."""

    def give(self, key: str, weight: float, virtual_time: int, name: str = "") -> int:
        """The pass of one more task of the key."""
        following = self._counters.next_pass(key)
        owed = self._owed.pop(key, 0)
        if owed > 0:
            following, owed = following + owed, 0
        pass_ = max(virtual_time, following)
        step = self._stride(self._charge(name, key), self.weights.get(key, weight))
        if owed and following >= virtual_time:
            used = min(step - 1, -owed)
            step -= used
            self._owe(key, owed + used)
        self._counters.put(key, pass_ + step, virtual_time)
        return pass_

    def saw(self, key: str, weight: float, pass_: int, virtual_time: int, name: str = "") -> None:
        """A task of the key has this pass already, given by an earlier owner: the key's next one
        comes after it."""
        following = pass_ + self._stride(self._charge(name, key), self.weights.get(key, weight))
        if following > self._counters.next_pass(key):
            self._counters.put(key, following, virtual_time)

    def ended(self, key: str, weight: float, name: str, cost: int) -> None:
        """A task of the key is through: its run took so many microseconds, or 0 if it never ran."""
        weight = self.weights.get(key, weight)
        charged = self._discharge(name, key)
        more = round((self._run_times.virtual(cost) - charged) / weight)
        most = round(MOST_OWED * STRIDE_SCALE / weight)
        self._owe(key, max(-most, min(self._owed.pop(key, 0) + more, most)))

    def left(self, key: str, name: str) -> None:
        """A task of the key gives its place up and will be given another one: it is charged anew
        then."""
        self._discharge(name, key)

    def heaviest(
        self, most: int, unplaced: Iterable[tuple[str, int]] = ()
    ) -> list[tuple[str, int]]:
        kept = [
            (key, pass_ + max(0, self._owed.get(key, 0)))
            for key, pass_ in super().heaviest(most, unplaced)
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
        """What one of the tasks that wait or run was charged: their mean, so that all of them
        together come out exactly."""
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

    def _owe(self, key: str, owed: int) -> None:
        if owed:
            self._owed[key] = owed
            if len(self._owed) > MOST_REMEMBERED:
                del self._owed[next(iter(self._owed))]
