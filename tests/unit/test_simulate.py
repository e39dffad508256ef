"""`fairlead simulate`, and the order of the virtual node under it, within the bound of fair
queueing."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.fair.strides import STRIDE_SCALE
from fairlead.lab.schedule import VirtualNode, simulated_task
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT
from tests.fairness_gap import FairnessGap, PriorityFlow
from tests.tiers import examples

Step = tuple[str, int]
"""Keys of tasks that are pushed together, as letters, then the number of tasks that start."""

letters = st.text(alphabet="abcde", max_size=30)
steps = st.lists(st.tuples(letters, st.integers(0, 20)), max_size=8).map(
    lambda found: [("abc", 1), *found, ("", 1000)]
)
weights = st.fixed_dictionaries(
    dict.fromkeys("abcde", st.floats(MIN_WEIGHT, MAX_WEIGHT) | st.sampled_from([0.5, 1.0, 5.0]))
)
EQUAL = dict.fromkeys("abcdefgh", 1.0)


def started(
    steps: list[Step],
    weights: dict[str, float],
    gap: FairnessGap | None = None,
) -> list[str]:
    """Return for each step the keys of the tasks that start, one after the other."""
    node = VirtualNode("", 1)
    numbers, found = iter(range(10_000)), []
    for keys, starts in steps:
        tasks = [simulated_task(next(numbers), key, weights[key], 5, 0) for key in keys]
        if tasks:
            node.push(tasks)
        picked = ""
        for key in keys if gap is not None else ():
            gap.arrived(PriorityFlow(5, key))
        for _ in range(starts):
            for task in node.take(0.0):
                node.release(task, 0.0)
                picked += task.fairness_key
                if gap is not None:
                    gap.picked(PriorityFlow(5, task.fairness_key))
        found.append(picked)
    return found


# the order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "of_b", "expected"),
    [
        ([("aaaab", 9)], 1.0, ["abaaa"]),
        ([("aaaab", 2), ("cc", 9)], 1.0, ["ab", "cacaa"]),
        ([("a" * 20 + "b" * 20, 40)], 5.0, ["abbbbb" * 4 + "a" * 16]),
    ],
)
def test_the_small_cases_come_out_exactly(
    steps: list[Step], of_b: float, expected: list[str]
) -> None:
    assert started(steps, EQUAL | {"b": of_b}) == expected


@settings(max_examples=examples(150), deadline=None)
@given(steps, weights)
def test_one_partition_keeps_the_bound_of_fair_queueing(
    steps: list[Step], weights: dict[str, float]
) -> None:
    gap = FairnessGap([(PriorityFlow(5, key), weight) for key, weight in weights.items()])
    tasks = Counter("".join(started(steps, weights, gap)))
    assert tasks == Counter("".join(keys for keys, _ in steps))
    # A stride is an integer, so each task adds a rounding of up to half a unit, relative to a bound of
    # at least 2 / MAX_WEIGHT tasks.
    assert gap.largest <= 1.001 + tasks.total() * 0.5 / STRIDE_SCALE / (2 / MAX_WEIGHT)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 30), min_size=1),
    st.randoms(use_true_random=False),
)
def test_the_nth_task_of_a_key_waits_for_at_most_n_tasks_of_every_other_key(
    tasks: dict[str, int], random
) -> None:
    pushed = [letter for letter, count in tasks.items() for _ in range(count)]
    random.shuffle(pushed)
    [picked] = started([("".join(pushed), 1000)], EQUAL)
    nth: Counter[str] = Counter()
    for position, key in enumerate(picked, start=1):
        nth[key] += 1
        assert position <= sum(min(count, nth[key]) for count in tasks.values())
    assert nth == tasks


# the command --------------------------------------------------------------------------------------


def simulated(*arguments: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return the results of the command by key."""
    result = CliRunner().invoke(app, ["simulate", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return {each["key"]: each for each in json.loads(result.stdout)}


def test_a_flood_delays_small_keys_first_in_first_out_and_hardly_in_fair_order() -> None:
    found = simulated("acme=600", "bob=20", "--slots", "10")
    assert found["bob"]["fifo"] == {"p50": 60.0, "p99": 61.0, "most": 61.0, "share": 0.0}
    assert found["bob"]["fair"]["share"] == pytest.approx(0.5, abs=0.03)
    assert found["bob"]["fair"]["most"] == 3.0
    assert found["acme"]["fair"]["most"] == found["bob"]["fifo"]["most"] == 61.0


def test_shares_follow_weights_and_tasks_arrive_and_run_at_their_times() -> None:
    found = simulated("a=300,weight=3,run=0.5", "b=300,run=0.5", "--slots", "1")
    assert found["a"]["fair"]["share"] == pytest.approx(0.75, abs=0.01)
    late = simulated("a=100,run=0.5", "b=1,at=10", "--slots", "1")["b"]
    assert late["fair"]["most"] <= 0.5 and late["fifo"]["most"] == 40.0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["acme"], "use KEY=TASKS"),
        (["acme=many"], "use KEY=TASKS"),
        (["acme=0"], "tasks 0: use a whole number from 1"),
        (["acme=1,wait=3"], "use KEY=TASKS"),
        (["acme=1,run=long"], "use KEY=TASKS"),
        (["acme=1,weight=5000"], "weight 5000.0: use a number from 0.001 to 1000"),
        (["acme=1", "acme=2"], "name each key once"),
        (["acme=600000", "bob=600000"], "tasks of all keys 1200000"),
    ],
)
def test_the_error_about_wrong_use_is_one_line_with_cause_and_cure(
    arguments: list[str], text: str
) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert text in result.stderr and result.stderr.count("\n") == 1


def test_the_table_has_a_row_for_each_key() -> None:
    result = CliRunner().invoke(app, ["simulate", "acme=60", "bob=20,weight=5"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["key", "acme", "bob"]
