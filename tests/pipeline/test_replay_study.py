"""A replay of a record: policies are chosen on early arrivals and reported on later ones,
with the same results on Spark and without."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.clock import MICROS
from fairlead.errors import ConfigurationError
from fairlead.lab.policies.arrivals import Arrivals
from fairlead.lab.policies.candidate import (
    Candidate,
    Setup,
    in_process,
    part_of,
    perform,
)
from fairlead.lab.policies.grid import PolicyGrid
from fairlead.lab.policies.objective import parse_objective
from fairlead.lab.policies.policy import CandidatePolicy, Limits
from fairlead.lab.policies.samples import WEEK
from fairlead.lab.policies.study import BASELINE, StudyPlan, study, usual_train
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.replay.on_spark import on_spark
from fairlead.pipeline.replay.record import of_lake
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import at, attempt
from tests.pipeline.replaying import arrivals
from tests.pipeline.tables_by_hand import put
from tests.pipeline.warehouses import lake_in

HOUR = 3600 * MICROS


def flood(days: int = 2) -> Arrivals:
    """Return arrivals: each hour key a submits 30 tasks of 100 s, then b and c one task of 10 s each."""
    tasks = []
    for hour in range(24 * days):
        tasks += [(3600.0 * hour, 100.0, "a")] * 30
        tasks += [(3600.0 * hour + 60, 10.0, "b"), (3600.0 * hour + 120, 10.0, "c")]
    return arrivals(*tasks)


def plan(*policies: CandidatePolicy, **options: Any) -> StudyPlan:
    asked = {"resamples": 4, **options}
    objective = parse_objective(asked.pop("objective", "key_p99_p50"), asked.pop("require", ()))
    return StudyPlan(
        PolicyGrid(list(policies), len(policies), asked.pop("recorded", None)), objective, **asked
    )


FIFO, FAIR = (
    CandidatePolicy(order="fifo", weights="equal", slots=2),
    CandidatePolicy(slots=2, weights="equal"),
)
NO_SAMPLES = {"resamples": 0}
LIMITED = CandidatePolicy(slots=2, weights="equal", limits=Limits(per_key=1))


# choosing -----------------------------------------------------------------------------------------


def test_the_fair_order_is_chosen_on_early_arrivals_and_is_better_on_later_ones() -> None:
    recorded = flood()
    found = study(recorded, plan(FIFO, FAIR, train_us=24 * HOUR), in_process(recorded))
    assert found.best.policy == FAIR and found.baseline == 0
    assert found.best.policy_id == 1
    fair, fifo = found.standings
    assert fair.trained is not None and fifo.trained is not None and fair.trained < fifo.trained / 5
    assert fair.resampled is not None and fair.resampled.low <= fair.resampled.high
    # All policies ran on the early arrivals, the finalists on 1 + 4 samples of the later ones.
    assert len(found.found) == 2 + 2 * 5
    assert {each.measures.tasks for each in found.found if each.candidate.part == "train"} == {
        24 * 32
    }
    assert not [note for note in found.notes if "same arrivals" in note]


def test_later_arrivals_influence_neither_the_choice_nor_the_weights() -> None:
    early = arrivals(*((float(n), 10.0, key) for n in range(50) for key in "ab"))
    late = [(float(1000 + n), 90.0, "b") for n in range(50)]
    both = arrivals(*((float(n), 10.0, key) for n in range(50) for key in "ab"), *late)
    asked = plan(FIFO, CandidatePolicy(slots=2, weights="usage^-1"), train_us=500 * MICROS)
    setup = asked.setup(both)
    assert (part_of(both, "train", setup).at == early.at).all()
    candidate = Candidate(1, CandidatePolicy(slots=2, weights="usage^-1"), "train")
    alone = perform(candidate, early, Setup(None, setup.window_us)).measures
    assert perform(candidate, both, setup).measures == alone


def test_without_a_second_week_all_arrivals_are_used_twice_and_the_result_says_so() -> None:
    assert usual_train(0) is usual_train(WEEK) is None
    assert (usual_train(WEEK + 1), usual_train(2 * WEEK), usual_train(2 * WEEK + 1)) == (
        WEEK,
        WEEK,
        2 * WEEK,
    )
    recorded = flood(1)
    found = study(recorded, plan(FAIR), in_process(recorded))
    assert any("same arrivals" in note for note in found.notes)
    assert found.baseline == BASELINE and found.standings[-1].policy == FIFO
    with pytest.raises(ConfigurationError, match="--train: nothing arrives after it"):
        plan(FAIR, train_us=48 * HOUR).setup(recorded)


def test_the_result_says_when_the_baseline_is_the_best() -> None:
    recorded = flood()
    found = study(recorded, plan(FIFO, LIMITED, objective="wait_p50"), in_process(recorded))
    assert found.best.policy == FIFO and found.best.against_baseline == "baseline"
    assert [standing.policy_id for standing in found.standings] == [0, 1]


def test_the_study_finds_the_fewest_slots_that_meet_a_requirement() -> None:
    recorded = flood()
    policies = [CandidatePolicy(slots=slots, weights="equal") for slots in (1, 2, 4, 8, 16, 32)]
    found = study(
        recorded,
        plan(*policies, objective="slots", require=["wait_max <= 400s"], **NO_SAMPLES),
        in_process(recorded),
    )
    measured = {
        each.candidate.policy.slots: each.measures.wait_max_us
        for each in found.found
        if each.candidate.part == "train"
    }
    assert found.best.policy.slots == min(
        slots for slots, wait in measured.items() if wait <= 400 * MICROS
    )
    unmet = study(
        recorded,
        plan(FAIR, require=["wait_max <= 1s"], **NO_SAMPLES),
        in_process(recorded),
    )
    assert any("no policy meets" in note for note in unmet.notes)
    assert unmet.best.resampled is None and unmet.best.against_baseline == "no samples"


def test_the_policy_of_a_simulated_record_repeats_it_exactly() -> None:
    recorded = flood(1)
    from fairlead.lab.policies.virtual import run

    ran = run(recorded, FIFO)
    as_it_was = arrivals(
        *(
            (a / MICROS, r / MICROS, recorded.keys[k])
            for a, r, k in zip(recorded.at, recorded.run, recorded.key, strict=True)
        ),
        waits=[wait / MICROS for wait in ran.wait],
    )
    gap = study(as_it_was, plan(FAIR, **NO_SAMPLES), in_process(as_it_was)).gap
    assert gap is not None and gap.policy == str(FIFO)  # two slots, the number of concurrent runs
    assert (gap.ks, gap.error("p50"), gap.error("p99"), gap.error("mean")) == (0, 0, 0, 0)
    other = study(
        as_it_was,
        plan(FAIR, recorded=CandidatePolicy(order="fifo", slots=4).plain(), **NO_SAMPLES),
        in_process(as_it_was),
    )
    assert other.gap is not None and other.gap.ks > 0.3
    assert any("off the record" in note for note in other.notes)
    assert study(recorded, plan(FAIR, **NO_SAMPLES), in_process(recorded)).gap is None


# records ------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Warehouse:
    lake = lake_in(tmp_path / "lake")
    rows = [
        attempt(
            ready_at=float(n),
            started_at=n + 2.0,
            finished_at=n + 5.0,
            fairness_key=f"k{n % 3}",
            weight=2.0,
            priority=4,
        )
        for n in range(0, 6000, 10)
    ]
    rows += [
        attempt(ready_at=1.0, started_at=None, finished_at=2.0, outcome="cancelled"),  # never ran
        attempt(ready_at=1.0, started_at=3.0, finished_at=2.0),  # its clock went back
        attempt(ready_at=1.0, weight=float("nan")),
        attempt(ready_at=1.0, queue="other"),
    ]
    put(lake, ATTEMPTS, rows)
    return lake


def test_the_arrivals_from_a_lake_are_the_runs_of_a_queue(lake: Warehouse) -> None:
    found = of_lake(lake, "q")
    assert (len(found), found.queue) == (600, "q")
    assert (found.at == np.arange(0, 6000, 10) * MICROS).all()
    assert set(found.wait.tolist()) == {2 * MICROS} and set(found.run.tolist()) == {3 * MICROS}
    assert set(found.weight.tolist()) == {2.0} and set(found.priority.tolist()) == {4}
    assert found.keys == ("k0", "k1", "k2") and found.names == ("work",)
    some = of_lake(lake, "q", since=at(100), until=at(200))
    assert (len(some), some.at[0]) == (10, 0)
    assert len(of_lake(lake, "q", limit=7)) == 7


_POOLS: list[pa.MemoryPool] = []
"""Pools that stay, because buffers that outlive a test return their memory to them."""


def test_one_long_key_costs_the_memory_of_one_text(tmp_path: Path) -> None:
    """300,000 attempts with one key of 900 characters once took 3 GB."""
    count, texts = 20_000, ["k" * 900, *(f"key-{n}" for n in range(99))]
    row = attempt(weight=1.0)
    columns = {name: [value] * count for name, value in row.items()}
    columns["fairness_key"] = [texts[n % 100] for n in range(count)]
    lake = lake_in(tmp_path / "lake")
    table = lake.table(ATTEMPTS)
    rows = pa.Table.from_pydict(columns, schema=ATTEMPTS.arrow())
    seen = table.state()
    table.append(table.write(rows, "a", seen), {}, seen)
    del rows
    usual, measured = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    _POOLS.append(measured)
    pa.set_memory_pool(measured)
    tracemalloc.start()
    try:
        found = of_lake(lake, "q")
        python_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert len(found) == count and set(found.keys) == set(texts)
    # A row is eight columns of 8 bytes; there are a few copies of them on the way.
    assert python_bytes < 300 * count
    assert measured.max_memory() < 200 * count


def test_the_error_about_a_lake_without_matching_runs_is_one_line(
    lake: Warehouse, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigurationError, match="several queues: choose one with --queue: other, q"
    ):
        of_lake(lake)
    with pytest.raises(ConfigurationError, match="no run of queue 'none'"):
        of_lake(lake, "none")
    with pytest.raises(ConfigurationError, match="no run in that time"):
        of_lake(lake_in(tmp_path / "empty"))


def test_a_study_on_spark_equals_one_in_one_process(spark: SparkSession) -> None:
    recorded = flood(1)
    asked = plan(
        FIFO,
        FAIR,
        LIMITED,
        CandidatePolicy(slots=2, weights="run^-1"),
        resamples=1,
    )
    found = study(recorded, asked, on_spark(spark, recorded))
    assert found == study(recorded, asked, in_process(recorded))


# the command --------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "grid.toml").write_text(
        "[grid]\norder = ['fifo', 'fair']\nslots = 4\nweights = ['equal', 'usage^-0.5']"
    )
    put(
        lake_in(tmp_path / "lake"),
        ATTEMPTS,
        [
            attempt(
                fairness_key=f"user-{1 if n % 4 else n % 3}",
                ready_at=at(n * 5),
                started_at=at(n * 5),
                finished_at=at(n * 5 + 20 + n % 7),
            )
            for n in range(400)
        ],
    )

    def call(*arguments: str) -> Any:
        grid, lake = str(tmp_path / "grid.toml"), str(tmp_path / "lake")
        return CliRunner().invoke(
            app,
            ["pipeline", "replay", "--policies", grid, "--lake", lake]
            + ["--resamples", "2", *arguments],
        )

    return call


def test_the_command_prints_the_results(command: Callable[..., Any]) -> None:
    found = command("--here", "--train", "20m", "--objective", "key_p99_p50", "--json")
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert (summary["tasks"], len(summary["policies"]), summary["objective"]) == (
        400,
        4,
        "least key_p99_p50",
    )
    assert summary["best"]["policy"]["order"] == "fair" and summary["calibration"] is not None
    assert all(len(each["keys"]) == 3 for each in summary["reported"])
    assert {each["candidate"]["policy_id"] for each in summary["reported"]} >= {
        summary["best"]["policy_id"]
    }
    shown = command("--here", "--objective", "jain_mean")
    assert (
        shown.exit_code == 0
        and "400 tasks of 3 keys" in shown.stdout
        and "usage^-0.5" in shown.stdout
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--objective", "speed"], "unknown measure"),
        (["--train", "9d"], "--train: nothing arrives after it"),
        (["--queue", "none"], "no run of queue 'none'"),
        (["--train", "soon"], "duration 'soon'"),
        (["--require", "wait_p99 <= 3"], "is a time"),
    ],
)
def test_wrong_use_is_refused_before_anything_starts(
    command: Callable[..., Any], arguments: list[str], expected: str
) -> None:
    found = command(*arguments)
    assert found.exit_code == 2 and expected in found.stderr
