"""Rules of ordered queues: waits between tries, keys, the end of a run, and accepted submits."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import Exponential
from fairlead.core.policies.retry import UNTIL_DONE
from fairlead.core.sharding.partitions import partition_of
from fairlead.declare.queue import OrderedQueue
from fairlead.errors import InvalidTask, UnknownTask
from fairlead.model import Finish, NewTask, Outcome, PartitionKey, ScheduledTask, State, TaskKey
from fairlead.ordered.accept import Acceptance, check
from fairlead.ordered.ending import end_of_run
from fairlead.ports import task_log
from fairlead.ports.task_log import Drop, Submit
from tests import builders
from tests.ids import id_of

NOW = 1_700_000_000_000_000


def task(run_at: int = NOW, **fields: Any) -> NewTask:
    keys = {"id": "id", "ordering_key": "a", "unique_key": "u"}
    return builders.task(**keys | fields, run_at=run_at, submitted_at=NOW)


class Fixed(random.Random):
    def random(self) -> float:
        return 0.5


def test_default_waits_of_ordered_queues_double_from_20_to_120_s_with_half_of_each_random() -> None:
    for tries, base in [(1, 20), (2, 40), (3, 80), (4, 120), (5, 120), (100, 120), (10_000, 120)]:
        drawn = [UNTIL_DONE.delay(tries, RuntimeError()) for _ in range(200)]
        assert (
            all(base / 2 <= wait <= base for wait in drawn if wait is not None)
            and None not in drawn
        )
    exact = Exponential(max_attempts=101, first=2.0, max_delay=120.0, random=Fixed())
    assert [exact.delay(tries, RuntimeError()) for tries in (1, 4)] == [1.5, 12.0], (
        "the fifth attempt waits 12 s of at most 16"
    )
    assert exact.delay(101, RuntimeError()) is None


@given(
    ordering_key=st.text(min_size=1),
    unique_key=st.text(min_size=1),
    payload=st.binary(),
    run_at=st.integers(-(2**62), 2**62),
)
def test_keys_and_tasks_with_any_characters_survive_the_log(
    ordering_key: str, unique_key: str, payload: bytes, run_at: int
) -> None:
    made = task(
        run_at, partition=7, payload=payload, ordering_key=ordering_key, unique_key=unique_key
    )
    for entry in (
        Submit(made),
        Drop("q", 7, TaskKey(run_at, ordering_key, unique_key), unique_key, NOW),
    ):
        message = task_log.encode(entry)
        assert task_log.decode(message) == task_log.decode(message.decode()) == entry
        assert task_log.partition_of(entry) == PartitionKey("q", 7)
    assert (
        task_log.decode(b"{")
        is task_log.decode(b'{"type":"submit","task":{}}')
        is task_log.decode(b"\xff")
        is None
    )


def test_every_partition_of_64_gets_its_share_of_100_000_keys_within_a_third() -> None:
    counts = Counter(partition_of(f"order-{n}", 0, 64) for n in range(100_000))
    assert len(counts) == 64
    assert max(counts.values()) < 1.33 * 100_000 / 64 and min(counts.values()) > 0.67 * 100_000 / 64


def test_tasks_due_now_from_one_process_keep_the_order_of_their_submits() -> None:
    acceptance = Acceptance({"q": OrderedQueue("q")})
    positions = []
    for _ in range(3):
        entries = acceptance.entries([task(unique_key=None, id=str(9 - n)) for n in range(5)], NOW)
        positions += [entry.task.run_at for entry in entries]
    assert positions == sorted(set(positions))
    assert positions[-1] < NOW + 1000, "the times are still now, within a millisecond"


def test_a_given_run_at_is_kept_and_a_task_without_a_unique_key_gets_its_own_key() -> None:
    acceptance = Acceptance({"q": OrderedQueue("q")})
    first, second = acceptance.entries(
        [task(NOW + 7, unique_key=None, id="one"), task(NOW + 7, id="two")], NOW
    )
    assert (first.task.run_at, first.task.unique_key) == (NOW + 7, "one")
    assert (second.task.run_at, second.task.unique_key) == (NOW + 7, "u")


def test_the_grace_is_exact_and_a_bulk_submit_is_refused_as_a_whole() -> None:
    acceptance = Acceptance({"q": OrderedQueue("q", grace=10.0)})
    assert len(acceptance.entries([task(NOW - 10_000_000)], NOW)) == 1
    with pytest.raises(InvalidTask, match="10.0 s ago, more than the grace of 10 s"):
        acceptance.entries([task(), task(NOW - 10_000_001)], NOW)
    with pytest.raises(InvalidTask, match="need an ordering_key"):
        acceptance.entries([task(ordering_key=None)], NOW)


def finish(**changes: object) -> Finish:
    plain = {
        "id": "id",
        "version": 4,
        "outcome": Outcome.DONE,
        "next_state": State.DONE,
        "started_at": 1,
        "finished_at": NOW,
    }
    return Finish(**{**plain, **changes})  # type: ignore[arg-type]


SCHEDULED = ScheduledTask(TaskKey(NOW, "a", "u"), task(), attempt=3, tries=2)


def test_a_failed_run_waits_at_its_position_and_one_without_tries_left_is_recorded_as_failed() -> (
    None
):
    again = end_of_run(
        SCHEDULED, finish(outcome="retried", next_state="WAITING", run_at=NOW + 5), 0, "n"
    )
    assert (again.completes, again.attempt, again.tries, again.retry_at) == (False, 4, 3, NOW + 5)
    assert again.again == ScheduledTask(SCHEDULED.key, SCHEDULED.task, 4, 3, NOW + 5)
    over = end_of_run(
        SCHEDULED, finish(outcome="failed", next_state="ERROR", error_type="ValueError"), 0, "n"
    )
    assert (over.completes, over.next_state, over.outcome) == (True, "FAILED", "failed")


def test_a_snooze_and_a_run_handed_back_spend_no_try() -> None:
    snoozed = end_of_run(
        SCHEDULED,
        finish(outcome="snoozed", next_state="WAITING", run_at=NOW + 5, spends_try=False),
        0,
        "n",
    )
    assert (snoozed.attempt, snoozed.tries) == (4, 2)
    back = end_of_run(
        SCHEDULED, finish(outcome="cancelled", next_state="SUBMITTED", spends_try=False), 0, "n"
    )
    assert (back.completes, back.tries, back.retry_at) == (False, 2, NOW)
    reset = end_of_run(
        SCHEDULED,
        finish(outcome="retried", next_state="WAITING", run_at=NOW, resets_tries=True),
        0,
        "n",
    )
    assert reset.tries == 0


@pytest.mark.parametrize("kind", [UnknownTask, InvalidTask])
def test_a_task_that_this_version_cannot_run_waits_for_another_version(
    kind: type[Exception],
) -> None:
    name = f"{kind.__module__}.{kind.__qualname__}"
    end = end_of_run(
        SCHEDULED, finish(outcome="failed", next_state="ERROR", error_type=name), 0, "n"
    )
    assert (end.completes, end.outcome) == (False, "retried")
    assert end.retry_at is not None and 40_000_000 <= end.retry_at - NOW <= 80_000_000


@pytest.mark.parametrize("where", [PartitionKey("q", 1), PartitionKey("other", 0)])
def test_an_entry_in_the_log_of_another_partition_is_refused(where: PartitionKey) -> None:
    for entry in (
        Submit(task(id=id_of(1))),
        Drop("q", 0, TaskKey(NOW, "a", "u"), "ada", NOW),
    ):
        check(entry, PartitionKey("q", 0))
        with pytest.raises(InvalidTask, match="is in the log of"):
            check(entry, where)
