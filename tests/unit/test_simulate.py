"""`fairlead simulate`: exact small cases, the same order for any buffer, and correct measures."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.fair.passes import STRIDE_SCALE
from fairlead.errors import ConfigurationError
from fairlead.lab.fairness import FairnessGap, Jain, PriorityFlow, jain
from fairlead.lab.simulate.report import OrderReport, SimulationReport
from fairlead.lab.simulate.run import CounterKind, SimulationSettings, simulate
from fairlead.lab.simulate.script import PollStep, PushStep, ScriptTask, parse_script
from fairlead.lab.simulate.workload import ArrivalMode
from fairlead.lab.trace import Tenants
from fairlead.lab.waits import percentiles
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT
from tests.tiers import examples

LETTERS = "abcde"
pushes = st.lists(
    st.tuples(st.sampled_from(LETTERS), st.integers(1, 12)), min_size=1, max_size=4
).map(lambda words: "push " + " ".join(f"{letter}*{count}" for letter, count in words))
polls = st.integers(1, 20).map(lambda count: f"poll {count}")
scripts = st.lists(pushes | polls, max_size=12).map(
    lambda steps: "; ".join(["push abc", *steps, "poll all"])
)
weights = st.fixed_dictionaries(
    dict.fromkeys("abc", st.floats(MIN_WEIGHT, MAX_WEIGHT) | st.sampled_from([0.5, 1.0, 5.0]))
).map(lambda by_key: ",".join(f"{key}={weight!r}" for key, weight in by_key.items()))


def run(*arguments: str) -> SimulationReport:
    result = CliRunner().invoke(app, ["simulate", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return msgspec.json.decode(result.stdout, type=SimulationReport)


def of(report: SimulationReport, order: str) -> OrderReport:
    return next(one for one in report.orders if one.order == order)


def sequence(report: SimulationReport, order: str = "fair") -> list[str]:
    polls = of(report, order).sequence
    assert polls is not None
    return [key for keys in polls for key in keys]


# the small cases ----------------------------------------------------------------------------------


def test_push_aaaab_is_picked_up_a_b_a_a_a() -> None:
    report = run("--script", "push aaaab")
    assert sequence(report) == list("abaaa")
    assert sequence(report, "fifo") == list("aaaab")


def test_push_aaaab_take_two_push_cc_is_then_picked_up_c_a_c_a_a() -> None:
    report = run("--script", "push aaaab; poll 2; push cc; poll all")
    assert of(report, "fair").sequence == [["a", "b"], ["c", "a", "c", "a", "a"]]


def test_b_with_weight_five_is_picked_up_five_times_for_each_a_until_b_ends() -> None:
    report = run("--script", "push a*20 b*20", "--weights", "b=5")
    assert "".join(sequence(report)) == "abbbbb" * 4 + "a" * 16


def test_priorities_4_2_3_5_1_are_picked_up_1_2_3_4_5() -> None:
    assert sequence(run("--script", "push 4 2 3 5 1 as priorities")) == list("12345")
    assert sequence(run("--script", "push a@4 b@2 c@3 d@5 e@1")) == list("ebcad")


# properties of every workload ---------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(scripts, weights, st.integers(1, 3))
def test_the_order_does_not_depend_on_how_much_is_in_memory(script, weights, partitions) -> None:
    sequences = [
        simulate(
            SimulationSettings(script=script, weights=weights, partitions=partitions, buffer=buffer)
        )
        .report.orders[1]
        .sequence
        for buffer in (1, 2, 3, 7, 10, 10_000)
    ]
    assert all(one == sequences[0] for one in sequences)


@settings(max_examples=examples(150), deadline=None)
@given(scripts, weights, st.sampled_from([1, 2, 5, 10_000]))
def test_one_partition_with_exact_counters_keeps_the_bound_of_fair_queueing(
    script, weights, buffer
) -> None:
    report = simulate(SimulationSettings(script=script, weights=weights, buffer=buffer)).report
    # A stride is an integer, so each task adds a rounding of up to half a unit, relative to a bound of
    # at least 2 / MAX_WEIGHT tasks. The report has three digits.
    rounding = report.tasks * 0.5 / STRIDE_SCALE / (2 / MAX_WEIGHT) + 0.001
    assert of(report, "fair").gap <= 1 + rounding
    assert of(report, "fair").picked == of(report, "fifo").picked == report.tasks


@settings(max_examples=examples(100), deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 30), min_size=1),
    st.sampled_from([1, 2, 3, 10, 10_000]),
    st.randoms(use_true_random=False),
)
def test_with_any_buffer_the_nth_task_of_a_key_waits_for_at_most_n_tasks_of_every_other_key(
    tasks, buffer, random
) -> None:
    letters = [letter for letter, count in tasks.items() for _ in range(count)]
    random.shuffle(letters)
    picked = (
        simulate(SimulationSettings(script=f"push {''.join(letters)}", buffer=buffer))
        .report.orders[1]
        .sequence[0]
    )
    nth: Counter[str] = Counter()
    for position, key in enumerate(picked, start=1):
        nth[key] += 1
        assert position <= sum(min(count, nth[key]) for count in tasks.values())
    assert nth == tasks


@pytest.mark.parametrize("arrivals", [ArrivalMode.ALL_FIRST, ArrivalMode.POISSON])
@pytest.mark.parametrize("counters", list(CounterKind))
def test_every_task_is_picked_up_once_in_every_order(
    arrivals: ArrivalMode, counters: CounterKind
) -> None:
    settings = SimulationSettings(
        tasks=3000,
        keys=400,
        arrivals=arrivals,
        rate=1.5,
        slots=2,
        partitions=3,
        counters=counters,
        exact_keys=20,
        buffer=50,
    )
    report = simulate(settings).report
    assert [order.picked for order in report.orders] == [3000, 3000]
    assert [order.left for order in report.orders] == [0, 0]


def test_the_same_seed_makes_the_same_workload_and_another_one_another() -> None:
    def simulated(seed: int) -> SimulationReport:
        return simulate(
            SimulationSettings(
                tasks=500, arrivals=ArrivalMode.POISSON, weights="log:0.1:10", seed=seed
            )
        ).report

    assert simulated(3) == simulated(3)
    assert simulated(3) != simulated(4)


def test_a_key_with_many_tasks_waits_longer_and_keys_with_few_tasks_hardly_at_all() -> None:
    report = simulate(SimulationSettings(tasks=5000, keys=50, zipf=1.5)).report
    fifo, fair = of(report, "fifo"), of(report, "fair")
    assert fair.gap <= 1 < fifo.gap
    assert fair.jain_mean is not None and fifo.jain_mean is not None
    assert fair.jain_mean > 0.99 > fifo.jain_mean
    assert fair.waits_of_keys is not None and fifo.waits_of_keys is not None
    assert fair.waits_of_keys.p50 < fifo.waits_of_keys.p50 / 2


def test_a_script_that_stops_polling_leaves_the_other_tasks() -> None:
    fair = of(run("--script", "push aab; poll 2"), "fair")
    assert (fair.sequence, fair.picked, fair.left) == ([["a", "b"]], 2, 1)


def test_a_poll_picks_up_as_many_as_there_are_slots() -> None:
    fair = of(run("--script", "push aabb; poll 1; poll 1", "--slots", "2"), "fair")
    assert fair.sequence == [["a", "b"], ["a", "b"]]
    assert fair.waits_of_tasks is not None
    assert (fair.waits_of_tasks.p50, fair.waits_of_tasks.most) == (1, 2)


def test_a_trace_is_taken_with_its_users_as_keys(tmp_path: Path) -> None:
    path = tmp_path / "trace.swf"
    jobs = [(n, n // 10, 7 if n % 4 else 8) for n in range(200)]
    path.write_text(
        "".join(
            f"{n} {submit} -1 60 1 -1 -1 -1 1200 -1 -1 {user} 1 -1 -1 1 -1 -1\n"
            for n, submit, user in jobs
        )
    )
    report = simulate(SimulationSettings(trace=path, tenants=Tenants.USER, rate=2.0)).report
    assert [(key.key, key.tasks) for key in of(report, "fair").keys] == [
        ("user-7", 150),
        ("user-8", 50),
    ]
    assert simulate(SimulationSettings(trace=path, limit=20)).report.tasks == 20
    assert run("--trace", str(path), "--arrivals", "all-first").tasks == 200


# measures -----------------------------------------------------------------------------------------


def test_jains_index_is_one_if_all_keys_get_the_same_and_one_nth_if_one_key_gets_all() -> None:
    assert jain([2, 2, 2]) == 1
    assert jain([5, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 1


def test_jains_index_counts_the_keys_that_had_work_throughout_a_window_by_weight() -> None:
    measure = Jain({"a": 1.0, "b": 3.0, "c": 1.0}, window=4)
    for key in "aaabbbbbb":
        measure.arrived(key)
    for key in "abbb":
        measure.picked(key)
    measure.arrived("c")
    for key in "caab":
        measure.picked(key)
    assert measure.indices == [1.0], "throughout the second window only b has work"


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=60))
def test_the_gap_is_the_largest_over_all_intervals_in_which_both_had_work(steps) -> None:
    flows = [(PriorityFlow(5, "a"), 1.0), (PriorityFlow(5, "b"), 2.0), (PriorityFlow(5, "c"), 0.5)]
    gap = FairnessGap(flows)
    waiting = [0, 0, 0]
    apart: dict[tuple[int, int], list[list[float]]] = {
        pair: [] for pair in combinations(range(3), 2)
    }
    """Differences after each pick-up, by pair of keys and interval in which both had work."""
    for is_push, index in steps:
        if not is_push and not waiting[index]:
            continue
        if is_push:
            gap.arrived(flows[index][0])
            waiting[index] += 1
        for (one, other), intervals in apart.items():
            if index not in (one, other) or not (waiting[one] and waiting[other]):
                continue
            if is_push and waiting[index] == 1:
                intervals.append([0.0])
            if not is_push:
                step = 1 / flows[index][1]
                intervals[-1].append(intervals[-1][-1] + (step if index == one else -step))
        if not is_push:
            gap.picked(flows[index][0])
            waiting[index] -= 1
    expected = max(
        (
            abs(later - earlier) / (1 / flows[one][1] + 1 / flows[other][1])
            for (one, other), intervals in apart.items()
            for interval in intervals
            for earlier, later in combinations(interval, 2)
        ),
        default=0.0,
    )
    assert gap.largest == pytest.approx(expected)


def test_keys_of_different_priorities_are_not_compared() -> None:
    assert of(run("--script", "push a*20@1 b*20@2"), "fair").gap == 0


def test_percentiles_are_waits_that_occurred() -> None:
    found = percentiles(range(1, 101))
    assert found is not None
    assert (found.p50, found.p90, found.p99, found.most) == (50, 90, 99, 100)
    assert percentiles([]) is None


# the script and wrong use -------------------------------------------------------------------------


def test_a_script_that_ends_with_a_push_is_polled_to_its_end() -> None:
    assert parse_script("push ab*2@3 ;") == [
        PushStep([ScriptTask(key, 3) for key in "abab"]),
        PollStep(None),
    ]
    assert parse_script("push a; poll 2") == [PushStep([ScriptTask("a", 5)]), PollStep(2)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--keys", "0"], "use 1 to"),
        (["--tasks", "2000000"], "use 1 to 1,000,000"),
        (["--zipf", "nan"], "use 0 to 100"),
        (["--rate", "inf"], "above 0"),
        (["--rate", "-1"], "above 0"),
        (["--script", ""], "pushes nothing"),
        (["--script", "poll all"], "pushes nothing"),
        (["--script", "push a*0"], "pushes nothing"),
        (["--script", "push a; pop 2"], "'pop 2' is no step"),
        (["--script", "push a; poll x"], "'poll x' is no step"),
        (["--script", "push a-b"], "cannot push 'a-b'"),
        (["--script", "push a@10"], "use 0 (first) to 9 (last)"),
        (["--script", "push aab*500000"], "more than 1,000,000"),
        (["--script", "push a", "--trace", "t.swf"], "leave one out"),
        (["--script", "push a", "--arrivals", "poisson"], "no meaning with --script"),
        (["--arrivals", "recorded"], "needs --trace"),
        (["--trace", "no-such.swf"], "No such file"),
        (["--script", "push a", "--weights", "b=2"], "names 'b', which has no task; keys: a"),
        (["--weights", "k1=0"], "use 0.001 to 1000"),
        (["--weights", "k1=nan"], "use 0.001 to 1000"),
        (["--weights", "k1=x"], "'x' is no number"),
        (["--weights", "k1"], "gives no key a weight"),
        (["--weights", "log:5:1"], "must not be above"),
        (["--plot", "waits.doc"], ".svg, .png, .pdf"),
        (["--plot", "no-such-folder/waits.svg"], "create it first"),
        (["--plot", "n" * 300 + "/waits.svg"], "create it first"),
    ],
)
def test_the_error_about_wrong_use_is_one_line_with_cause_and_cure(
    arguments: list[str], expected: str
) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert expected in result.stderr and result.stderr.count("\n") == 1 and not result.stdout


def test_the_option_for_a_picture_writes_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: pip install 'fairlead[plot]'")
    path = tmp_path / "waits.svg"
    run("--tasks", "300", "--keys", "20", "--plot", str(path))
    assert "<svg" in path.read_text()


def test_without_matplotlib_a_picture_is_refused_with_the_command_that_installs_it(
    monkeypatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["simulate", "--plot", "waits.svg"])
    assert result.exit_code == 2
    assert result.stderr == "fairlead: --plot needs matplotlib: pip install 'fairlead[plot]'\n"


def test_settings_are_checked_also_without_the_command_line() -> None:
    with pytest.raises(ConfigurationError, match="--buffer 0: use 1 to"):
        simulate(SimulationSettings(buffer=0))
