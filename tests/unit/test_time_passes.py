"""Passes by run time: the total charge of a key, and the bound over the assigned levels."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.fair.backlog import Backlog
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import STRIDE_SCALE
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.steps import Timing
from fairlead.core.fair.time_passes import MOST_OWED, TimePasses
from fairlead.model import LaneRecord, Level, RunTimesRecord
from tests.builders import trigger
from tests.tiers import examples

SECOND = 1_000_000
KEYS = "abc"
costs = st.integers(1, 20 * SECOND) | st.sampled_from([1, SECOND, 15 * SECOND])


class Steady(RunTimes):
    """Run times with a fixed unit of a second."""

    def __init__(self, expected: int | None = None) -> None:
        super().__init__()
        self.unit = SECOND
        self._all.add(SECOND, 1000)
        self._expected = expected

    def expected(self, name: str, key: str) -> int:
        return self._expected or super().expected(name, key)

    def _set_unit(self) -> None:
        pass


def passes_of(expected: int | None = SECOND) -> TimePasses:
    return TimePasses(Counters(), None, Steady(expected))


def test_a_longer_run_delays_the_keys_next_task_but_no_task_that_has_a_level() -> None:
    passes = passes_of()
    assert [passes.assign("a", 1.0, 0, "pay") for _ in range(2)] == [0, STRIDE_SCALE]
    passes.ended("a", 1.0, "pay", 5 * SECOND)
    assert passes.assign("a", 1.0, 0, "pay") == (2 + 4) * STRIDE_SCALE


def test_a_shorter_run_lowers_the_next_levels_of_its_key_but_not_below_its_earlier_levels() -> None:
    passes = passes_of(10 * SECOND)
    assert [passes.assign("a", 1.0, 0, "pay") for _ in range(2)] == [0, 10 * STRIDE_SCALE]
    passes.ended("a", 1.0, "pay", SECOND)
    passed = [passes.assign("a", 1.0, 0, "pay") for _ in range(3)]
    assert passed == [20 * STRIDE_SCALE, 21 * STRIDE_SCALE, 31 * STRIDE_SCALE]


def test_a_run_that_hangs_delays_its_key_by_a_bounded_amount() -> None:
    passes = passes_of()
    for _ in range(3):
        passes.assign("a", 1.0, 0, "pay")
    passes.ended("a", 1.0, "pay", 10**12 * SECOND)
    passes.ended("a", 1.0, "pay", 10**12 * SECOND)
    assert passes.assign("a", 1.0, 0, "pay") == (3 + MOST_OWED) * STRIDE_SCALE


def test_the_next_owner_gets_the_debts_of_keys_and_the_measured_run_times() -> None:
    passes = TimePasses(Counters(), None, RunTimes())
    for _ in range(20):
        passes.assign("a", 1.0, 0, "pay")
        passes._run_times.ended("pay", "a", 2 * SECOND)
    passes.ended("a", 1.0, "pay", 10 * SECOND)
    (following,) = passes.heaviest(10)
    assert following == ("a", passes.assign("a", 1.0, 0, "pay"))
    record = passes.run_times()
    assert record == RunTimesRecord(2 * SECOND, [("pay", "a", 2 * SECOND, 20)])
    after = TimePasses(Counters(), None, RunTimes())
    after.resume_run_times(record)
    assert after._run_times.expected("pay", "a") == 2 * SECOND


def test_a_backlog_saves_measured_run_times_in_its_record() -> None:
    record = LaneRecord(run_times=RunTimesRecord(SECOND, [("pay", "a", 5 * SECOND, 10)]))
    run_times = RunTimes()
    backlog = Backlog(2, record, TimePasses(Counters(), None, run_times), 10, Timing())
    assert run_times.unit == SECOND
    assert backlog.record().run_times == record.run_times


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(KEYS), costs), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_once_all_tasks_of_a_key_have_ended_their_charges_equal_their_run_times(
    tasks, random
) -> None:
    """The order of the ends and the expectations do not matter, while no key owes or saves more than the
    bound."""
    passes = passes_of(None)
    took: Counter[str] = Counter()
    waiting = []
    for key, cost in tasks:
        passes.assign(key, 1.0, 0, "pay")
        waiting.append((key, cost))
    random.shuffle(waiting)
    for key, cost in waiting:
        passes.ended(key, 1.0, "pay", cost)
        passes._run_times.ended("pay", key, cost)
        took[key] += cost
    assert not passes._charged
    for key, total in took.items():
        assert passes._counters.next_pass(key) + passes._owed.get(key, 0) == total


def test_tasks_that_leave_memory_cost_their_key_only_what_they_run() -> None:
    """Tasks that wait for an ordering key are cancelled unseen, or run without a level."""
    passes, count = passes_of(), 3 * MOST_OWED
    for _ in range(count):
        passes.assign("a", 1.0, 0, "pay")
    for _ in range(count):
        passes.ended("a", 1.0, "pay", 0)
    assert not passes._charged and passes._owed == {"a": -count * STRIDE_SCALE}
    passes.assign("a", 1.0, 0, "pay")
    for _ in range(count // 2):
        passes.ended("a", 1.0, "pay", 2 * SECOND, is_charged=False)
    assert passes._charged == {("pay", "a"): [1, STRIDE_SCALE]}
    took = 1 + count
    owed = passes._owed.get("a", 0)
    assert passes._counters.next_pass("a") + owed == took * STRIDE_SCALE


def test_a_task_of_a_former_owner_that_memory_drops_and_reads_again_is_charged_once() -> None:
    passes, entries = (
        passes_of(),
        [trigger(n, key="a", level=Level(n, (1 << 40) + n)) for n in range(1, 9)],
    )
    record = LaneRecord(max_level=Level(9, 1 << 40))
    backlog = Backlog(2, record, passes, 8, Timing(), is_new=False)
    for capacity in (4, 8, 2, 8):
        assert backlog.next_read() is not None
        backlog.read(entries[len(backlog) :])
        assert passes._charged["pay", "a"][0] == len(backlog) == 8
        backlog.capacity = capacity
        backlog.shrink()
        assert passes._charged["pay", "a"][0] == len(backlog)
        backlog.capacity = 8
        if capacity == 8:
            break
