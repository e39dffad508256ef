"""The input of a replay: grid, weights, objective, samples, and errors in the file."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.clock import MICROS
from fairlead.errors import ConfigurationError
from fairlead.lab.policies import grid
from fairlead.lab.policies.measures import Measures, measure
from fairlead.lab.policies.objective import AIMS, Interval, interval, parse_objective, verdict
from fairlead.lab.policies.policy import CandidatePolicy, Limits
from fairlead.lab.policies.samples import COPY, WEEK, original_key, resampled
from fairlead.lab.policies.virtual import run
from fairlead.lab.policies.weighing import weigh
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT
from tests.pipeline.replaying import arrivals, schedule
from tests.tiers import examples

# the grid -----------------------------------------------------------------------------------------


def parsed(text: str) -> grid.PolicyGrid:
    return grid.parse(tomllib.loads(text))


def test_every_combination_is_a_policy_and_equivalent_ones_are_merged() -> None:
    found = parsed("""
        [grid]
        order = ["fifo", "fair"]
        weights = ["equal", "run^-1", {acme = 2.0}]
        slots = [4, 8]
        limits = ["none", {per_key = 2}]
        [recorded]
        order = "fifo"
        slots = 8
    """)
    assert found.combinations == 24
    assert len(found.policies) == 4 + 12  # fifo ignores weights
    assert (
        CandidatePolicy(weights={"acme": 2.0}, slots=8, limits=Limits(per_key=2)) in found.policies
    )
    assert found.recorded == CandidatePolicy(order="fifo", weights="equal", slots=8)
    assert found.recorded in found.policies


def test_a_file_with_several_tables_has_several_grids() -> None:
    found = parsed("[[grid]]\norder = 'fifo'\nslots = [1, 2]\n[[grid]]\nslots = [1, 2, 3]")
    assert (found.combinations, len(found.policies)) == (5, 5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no policies"),
        ("grid = 3", "no policies"),
        ("[gird]", "unknown table 'gird'; known: grid, recorded"),
        ("[grid]\nslot = [1]", "unknown 'slot'; known: order, weights, slots"),
        ("[[grid]]\n[[grid]]\nslot = 1", "grid 2: unknown 'slot'"),
        ("[grid]\nslots = []", "slots is an empty list"),
        ("[grid]\nslots = [0]", ">= 1"),
        ("[grid]\norder = 'lifo'", "lifo"),
        ("[grid]\nweights = 'usage'", "weights 'usage': use 'recorded'"),
        ("[grid]\nweights = 'run^-9'", "weights 'run^-9'"),
        ("[grid]\nweights = {acme = 0.0}", "weight of 'acme': 0 is out of bounds"),
        ("[grid]\nlimits = {per_user = 3}", "per_user"),
        (
            f"[grid]\nslots = {list(range(1, 102))}\npartitions = {list(range(1, 101))}",
            "10,100 combinations, at most 10,000",
        ),
        ("[grid]\n[recorded]\nslots = [1, 2]", "recorded: "),
        ("recorded = 1\n[grid]", "recorded: write a table"),
    ],
)
def test_the_error_of_an_invalid_grid_names_the_fault(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parsed(text)
    assert expected in str(error.value)


def test_the_grid_in_the_docs_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "replay.md").read_text()
    found = parsed(page.partition("```toml\n")[2].partition("```")[0])
    assert (found.combinations, len(found.policies)) == (54, 3 * 3 + 27)
    assert found.recorded == CandidatePolicy(slots=12)
    named = set(AIMS) - {name for name in AIMS if f"`{name}`" in page}
    assert not named, "the page names every objective"


def test_the_error_of_an_invalid_file_of_policies_names_it(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path / "bad.toml"):
        (tmp_path / "bad.toml").write_text("[grid\n")
        with pytest.raises(ConfigurationError, match=path.name):
            grid.load(path)


# weights ------------------------------------------------------------------------------------------


def test_weights_follow_from_their_rule() -> None:
    recorded = arrivals((0, 100, "a"), (0, 100, "a"), (0, 50, "b"), (0, 10, "c"))
    assert weigh("recorded", recorded) is None
    assert weigh("equal", recorded) == {}
    assert weigh({"a": 3.0}, recorded) == {"a": 3.0}
    assert weigh("usage^-1", recorded) == pytest.approx({"a": 50 / 200, "b": 1, "c": 5})
    assert weigh("tasks^1", recorded) == pytest.approx({"a": 2, "b": 1, "c": 1})
    mean = 260 / 4
    shrunk = {"a": (200 + 30 * mean) / 32, "b": (50 + 30 * mean) / 31, "c": (10 + 30 * mean) / 31}
    assert weigh("run^-1", recorded) == pytest.approx(
        {key: shrunk["b"] / each for key, each in shrunk.items()}
    )
    extreme = weigh("usage^-4", arrivals((0, 1, "a"), (0, 30, "b"), (0, 10**6, "c")))
    assert extreme is not None and (extreme["a"], extreme["c"]) == (MAX_WEIGHT, MIN_WEIGHT)


def test_a_key_without_a_computed_weight_gets_the_weight_of_the_median_key() -> None:
    known = weigh("tasks^1", arrivals((0, 1, "a"), (0, 1, "a"), (0, 1, "b"), (0, 1, "c"))) or {}
    found = run(arrivals(*((0, 1, key) for key in "aaaaxx")), CandidatePolicy(slots=1), known)
    assert np.argsort(found.start).tolist() == [0, 4, 1, 2, 5, 3]


# the objective ------------------------------------------------------------------------------------


def measures(**changed: float) -> Measures:
    found = measure(schedule((0, 1, 10, 0), (0, 2, 10, 1)), 1, np.ones(2), MICROS)
    return Measures(
        **{name: changed.get(name, getattr(found, name)) for name in Measures.__struct_fields__}
    )


def test_the_least_measure_is_best_except_fairness_and_utilisation_after_requirements() -> None:
    fast, slow = measures(wait_p99_us=1, utilisation=0.2), measures(wait_p99_us=2, utilisation=0.9)
    assert parse_objective("wait_p99").rank(fast) < parse_objective("wait_p99_us").rank(slow)
    assert parse_objective("utilisation").rank(slow) < parse_objective("utilisation").rank(fast)
    used = parse_objective("wait_p99", ["utilisation >= 0.5", "wait_max<=1h"])
    assert used.rank(slow) < used.rank(fast)
    assert str(used) == "least wait_p99 with utilisation >= 0.5 and wait_max <= 3.6e+09"
    alike = parse_objective("wait_p99").rank
    assert alike(measures(wait_p99_us=1, slots=2)) < alike(measures(wait_p99_us=1, slots=3))


def test_a_missing_measure_is_never_the_best() -> None:
    fair = parse_objective("jain_mean", ["jain_least >= 0.1"])
    assert fair.rank(measures(jain_mean=0.01)) < fair.rank(
        measures(jain_mean=None, jain_least=None)
    )


@pytest.mark.parametrize(
    ("name", "requirements", "expected"),
    [
        ("p99", [], "unknown measure; known: slots, wait_mean, wait_p50"),
        ("tasks", [], "unknown measure"),
        ("wait_p99", ["wait_p50 < 3s"], "use a measure, <= or >="),
        ("wait_p99", ["wait_p50 <= 3"], "is a time"),
        ("wait_p99", ["utilisation >= 3s"], "is no time"),
        ("wait_p99", ["utilisation >= 1.2.3"], "no number"),
        ("wait_p99", ["speed >= 3"], "--require 'speed': unknown measure"),
    ],
)
def test_the_error_about_an_unknown_objective_names_it(
    name: str, requirements: list[str], expected: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_objective(name, requirements)
    assert expected in str(error.value)
    assert set(AIMS) < {field.removesuffix("_us") for field in Measures.__struct_fields__}


def test_a_policy_is_better_if_intervals_do_not_overlap_or_every_pair_is_better() -> None:
    spread = list(range(0, 100, 5))
    assert verdict([1, 2, 3], [11, 12, 13]) == "better"
    assert verdict([11, 12, 13], [1, 2, 3]) == "worse"
    assert verdict(spread, [value + 1 for value in spread]) == "better"
    assert verdict([value + 1 for value in spread], spread) == "worse"
    assert verdict(spread, spread[::-1]) == verdict(spread, spread) == "indistinguishable"
    assert verdict([1], [2]) == verdict([], []) == "no samples"
    assert verdict([1, 2, float("inf")], [11, 12, 1]) == "better"
    assert verdict([1, float("inf")], [float("inf"), 1]) == "no samples"
    assert interval([1.0]) is None
    assert interval([float(n) for n in range(41)]) == Interval(1, 39)


# samples ------------------------------------------------------------------------------------------

recorded = st.lists(
    st.tuples(st.integers(0, 40 * 86_400), st.integers(0, 100), st.sampled_from("abcde")),
    min_size=1,
    max_size=80,
).map(lambda rows: arrivals(*rows))


@settings(max_examples=examples(100), deadline=None)
@given(recorded, st.integers(0, 1000))
def test_a_drawn_key_keeps_its_tasks_of_whole_weeks_at_their_hours(recorded, seed) -> None:
    found = resampled(recorded, seed)
    begin = recorded.at[0]
    assert len(found) and (np.diff(found.at) >= 0).all() and found.at[-1] <= recorded.at[-1]
    assert len(found.keys) == len(np.unique(recorded.key)) == len(set(found.keys))
    own = {key: Counter() for key in recorded.keys}
    for at, takes, key in zip(recorded.at, recorded.run, recorded.key, strict=True):
        own[recorded.keys[key]][int(at - begin) % WEEK, int(takes)] += 1
    weeks = 1 + recorded.span // WEEK
    for number, key in enumerate(found.keys):
        rows = found.key == number
        for (hour, takes), n in Counter(
            zip((found.at[rows] - begin).tolist(), found.run[rows].tolist(), strict=True)
        ).items():
            assert n <= own[original_key(key)][hour % WEEK, takes]
        if recorded.span < WEEK:
            assert rows.sum() == own[original_key(key)].total()
        assert rows.sum() <= weeks * own[original_key(key)].total()
    again = resampled(recorded, seed)
    assert again.keys == found.keys and (again.at == found.at).all()


def test_a_copy_of_a_key_has_its_weight_and_limit_but_a_share_of_its_own() -> None:
    twice = arrivals(*((0, 1, key) for key in ["a", "a", f"a{COPY}2", f"a{COPY}2", "b", "b"]))
    found = run(twice, CandidatePolicy(slots=6, limits=Limits(keys={"a": 1})))
    assert sorted((found.start // MICROS).tolist()) == [0, 0, 0, 0, 1, 1]
    found = run(twice, CandidatePolicy(slots=1), {"a": 2.0})
    assert [original_key(twice.keys[key]) for key in found.key[np.argsort(found.start)]] == list(
        "aabaab"
    )
