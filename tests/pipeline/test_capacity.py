"""Capacity: the queueing formula against known values and a simulation, and the forecast against later
weeks."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.capacity import erlang
from fairlead.pipeline.capacity.erlang import Work, slots_for
from fairlead.pipeline.capacity.forecast import (
    DAMPED,
    HOURS,
    NAIVE,
    damped,
    forecast,
    naive,
    pinball,
)
from fairlead.pipeline.capacity.plan import Target
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.capacity import CAPACITY
from fairlead.pipeline.definitions.latency import LATENCY_HIST
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.jobs.capacity import Horizon, capacity
from fairlead.pipeline.runs import last_runs
from tests.pipeline.tables_by_hand import MemoryTables, put, row
from tests.pipeline.warehouses import lake_in

# the formula --------------------------------------------------------------------------------------


def erlang_c(slots: int, load: float) -> float:
    """Return the probability that a task has to wait."""
    return next(islice(erlang.waiting(load), slots - 1, None))


def late(slots: int, work: Work, wait_s: float) -> float:
    """Return the share of the tasks that wait longer."""
    return erlang.late(erlang_c(slots, work.load), slots, work, wait_s)


def mean_wait(slots: int, work: Work) -> float:
    """Return the mean wait in seconds, by the formula of Allen and Cunneen."""
    waits = erlang_c(slots, work.load)
    return waits * work.mean_s / (slots - work.load) * work.variability


@pytest.mark.parametrize(
    ("slots", "load", "waiting"),
    [
        (1, 0.5, 0.5),
        (1, 0.9, 0.9),
        (2, 1.0, 1 / 3),
        (3, 2.0, 4 / 9),
        (5, 4.0, 0.5541),
        (10, 8.0, 0.4092),
        (4, 4.0, 1.0),
        (3, 0.0, 0.0),
    ],
)
def test_erlang_c_has_the_known_values(slots: int, load: float, waiting: float) -> None:
    assert erlang_c(slots, load) == pytest.approx(waiting, abs=5e-5)


@given(slots=st.integers(1, 60), busy=st.floats(0, 0.999))
def test_erlang_c_equals_the_sum_in_its_definition(slots: int, busy: float) -> None:
    load = Fraction(busy) * slots
    last = load**slots / math.factorial(slots) * slots / (slots - load)
    exact = last / (sum(load**n / Fraction(math.factorial(n)) for n in range(slots)) + last)
    assert erlang_c(slots, busy * slots) == pytest.approx(float(exact), rel=1e-9, abs=1e-300)


def test_hundreds_of_thousands_of_slots_do_not_overflow_and_obey_the_square_root_rule() -> None:
    # Halfin and Whitt 1981: with load + b sqrt(load) slots, waiting tends to 1 / (1 + b P(b) /
    # p(b)).
    load, b = 400_000.0, 1.0
    normal = math.exp(-b * b / 2) / math.sqrt(2 * math.pi)
    limit = 1 / (1 + b * (0.5 + math.erf(b / math.sqrt(2)) / 2) / normal)
    assert erlang_c(round(load + b * math.sqrt(load)), load) == pytest.approx(limit, rel=0.005)


_WORK = st.builds(
    Work, st.floats(0.001, 50), st.floats(0.001, 20), st.floats(0, 20), st.floats(0, 20)
)


@given(work=_WORK, wait=st.floats(0, 100), quantile=st.floats(0.01, 0.999))
def test_the_computed_slots_suffice_and_one_less_does_not(
    work: Work, wait: float, quantile: float
) -> None:
    slots = slots_for(work, wait, quantile)
    assert slots > work.load and late(slots, work, wait) <= 1 - quantile
    assert slots == 1 or slots - 1 <= work.load or late(slots - 1, work, wait) > 1 - quantile


@given(work=_WORK, wait=st.floats(0.01, 10), more=st.floats(1.01, 3))
def test_more_work_or_more_variety_never_needs_fewer_slots(
    work: Work, wait: float, more: float
) -> None:
    slots = slots_for(work, wait, 0.95)
    assert slots_for(work._replace(rate=work.rate * more), wait, 0.95) >= slots
    assert slots_for(work._replace(cv2_service=work.cv2_service * more), wait, 0.95) >= slots
    assert slots_for(work, wait * more, 0.95) <= slots <= slots_for(work, wait, 0.99)


def test_no_work_needs_no_slots_and_invalid_targets_are_refused() -> None:
    assert slots_for(Work(0, 1), 5, 0.95) == 0
    for wait_us, quantile in ((5, 1.0), (5, 0.0), (-1, 0.5)):
        with pytest.raises(ConfigurationError, match="between 0 and 1, .* the wait at least 0"):
            Target(wait_us, quantile)


def simulated(slots: int, arrivals: Any, service: Any, tasks: int) -> list[float]:
    """Return the waits of `tasks` tasks in one fifo queue before `slots` workers, without the first
    tenth."""
    free = [0.0] * slots
    now, waits = 0.0, []
    for _ in range(tasks):
        now += arrivals()
        start = max(now, heapq.heappop(free))
        heapq.heappush(free, start + service())
        waits.append(start - now)
    return waits[tasks // 10 :]


@pytest.mark.parametrize("slots", [1, 4, 20])
def test_a_simulated_queue_with_poisson_arrivals_and_exponential_runs_waits_as_predicted(
    slots: int,
) -> None:
    rng = random.Random(slots)
    work = Work(rate=0.85 * slots, mean_s=1.0)
    waits = simulated(
        slots, lambda: rng.expovariate(work.rate), lambda: rng.expovariate(1.0), 120_000
    )
    assert sum(waits) / len(waits) == pytest.approx(mean_wait(slots, work), rel=0.2)
    for wait in (0.0, 1.0, 3.0):
        assert sum(w > wait for w in waits) / len(waits) == pytest.approx(
            late(slots, work, wait), abs=0.04
        )


@pytest.mark.parametrize(("slots", "sigma"), [(1, 0.5), (1, 1.0), (4, 0.5), (4, 1.0), (20, 0.5)])
def test_a_simulated_queue_of_other_distributions_waits_about_as_predicted(
    slots: int, sigma: float
) -> None:
    """The formula of Allen and Cunneen is an approximation: at this load, within a third of the mean
    wait."""
    rng = random.Random(7)
    cv2 = math.exp(sigma**2) - 1
    work = Work(rate=0.85 * slots, mean_s=1.0, cv2_arrival=0.5, cv2_service=cv2)
    waits = simulated(
        slots,
        lambda: rng.gammavariate(2.0, 1 / work.rate / 2.0),  # cv2 = 1 / 2
        lambda: rng.lognormvariate(-(sigma**2) / 2, sigma),
        120_000,
    )
    assert sum(waits) / len(waits) == pytest.approx(mean_wait(slots, work), rel=0.33)


# the forecast -------------------------------------------------------------------------------------


def shape(hour: int) -> float:
    return 100 + 60 * math.sin(2 * math.pi * hour / 24) + (40 if hour % HOURS < 120 else 0)


def weeks_of(count: int, growth: float, noise: float, seed: int = 1) -> list[list[float]]:
    rng = random.Random(seed)
    return [
        [
            max(0.0, shape(hour) * growth**week * rng.lognormvariate(0, noise))
            for hour in range(HOURS)
        ]
        for week in range(count)
    ]


def test_equal_weeks_are_forecast_exactly() -> None:
    weeks = weeks_of(5, 1.0, 0.0)
    found = forecast(weeks)
    assert found.middle == pytest.approx(weeks[0]) and found.high == pytest.approx(weeks[0])
    assert (found.method, found.held_out) == (DAMPED, 2) and sum(found.loss) < 1e-6


def test_the_forecast_averages_noise_out_and_the_naive_forecast_repeats_it() -> None:
    found = forecast(weeks_of(8, 1.0, 0.3))
    assert found.method == DAMPED and found.skill is not None and found.skill > 0.1
    assert found.mase is not None and found.mase < 0.95


def test_the_naive_forecast_is_used_and_named_when_a_change_of_shape_makes_it_better() -> None:
    weeks = weeks_of(12, 1.0, 0.02)
    for week in weeks[9:]:
        week.reverse()
    found = forecast(weeks)
    assert found.method == NAIVE and found.skill is not None and found.skill < 0
    assert found.mase is not None and found.mase > 1
    assert sum(found.loss) > sum(found.naive_loss)


def test_a_forecast_continues_growth_with_damping() -> None:
    weeks = np.array(weeks_of(8, 1.1, 0.0))
    forecasted, last, next_week = sum(damped(weeks)), sum(weeks[-1]), sum(weeks[-1]) * 1.1
    assert last * 0.97 < forecasted < next_week
    assert (naive(weeks) == weeks[-1]).all()


def test_nine_of_ten_hours_stay_below_the_high_forecast() -> None:
    below = []
    for seed in range(5):
        *past, actual = weeks_of(9, 1.0, 0.25, seed)
        below += [
            was <= forecasted for was, forecasted in zip(actual, forecast(past).high, strict=True)
        ]
    assert 0.85 < sum(below) / len(below) < 0.96


def test_the_methods_do_not_use_held_out_hours() -> None:
    weeks = weeks_of(6, 1.0, 0.2)
    changed = [*weeks[:5], [10 * each for each in weeks[5]]]
    assert (forecast(weeks, 1).naive_loss != forecast(changed, 1).naive_loss).any()
    by_hand = [
        sum(pinball(forecasted, was, q) for q, forecasted in ((0.5, mid), (0.9, high))) / 2
        for was, mid, high in zip(weeks[5], *(forecast(weeks[:5], 0)[:2]), strict=True)
    ]
    assert forecast(weeks[:5], 0).method == NAIVE
    assert forecast(weeks, 1).naive_loss == pytest.approx(by_hand)


@pytest.mark.parametrize("count", [1, 2])
def test_after_too_short_a_history_no_method_is_tested_and_next_week_equals_the_last(
    count: int,
) -> None:
    weeks = weeks_of(count, 1.0, 0.2)
    found = forecast(weeks)
    assert (found.method, found.held_out, found.loss, found.skill) == (NAIVE, 0, None, None)


@given(seed=st.integers(0, 10**6), count=st.integers(1, 4), rate=st.floats(0, 20))
def test_a_forecast_is_never_negative_and_its_median_is_at_most_its_ninth_decile(
    seed: int, count: int, rate: float
) -> None:
    rng = random.Random(seed)
    weeks = [
        [float(rng.randrange(1 + int(rate * rng.random()))) for _ in range(HOURS)]
        for _ in range(count)
    ]
    found = forecast(weeks)
    assert all(0 <= low <= high for low, high in zip(found.middle, found.high, strict=True))


_TOTALS = st.lists(st.sampled_from([0.0, 0.01, 1.0]), min_size=1, max_size=9).filter(any)


@given(totals=_TOTALS, rate=st.floats(1, 10_000))
def test_quiet_weeks_never_multiply_a_forecast(totals: list[float], rate: float) -> None:
    """A steady 100 tasks an hour after weeks without any gave a 90th percentile of 10,100."""
    found = forecast([[rate * total] * HOURS for total in totals])
    most = max(totals) * rate
    chance = 1.3 * math.sqrt(most) if len(totals) - found.quiet == 1 else 0.0
    assert max(found.middle) <= 1.6 * most
    assert max(found.high) <= 2.6 * most + chance + 1e-6


@given(
    weeks=st.integers(2, 8),
    before=st.integers(0, 4),
    closed=st.integers(0, 2),
    at=st.integers(0, 6),
    rate=st.floats(1, 10_000),
)
def test_a_steady_queue_with_a_closed_time_is_forecast_as_without_it(
    weeks: int, before: int, closed: int, at: int, rate: float
) -> None:
    steady, nothing = [rate] * HOURS, [0.0] * HOURS
    after = max(1, weeks - at)
    found = forecast(
        [*[nothing] * before, *[steady] * (weeks - after), *[nothing] * min(closed, weeks - 1)]
        + [steady] * after
    )
    assert found.middle == pytest.approx(steady)
    assert max(found.high) <= rate * (1 + 1e-9) + 1.3 * math.sqrt(rate)


def test_the_end_of_all_traffic_is_followed_after_two_weeks() -> None:
    steady, nothing = [100.0] * HOURS, [0.0] * HOURS
    assert max(forecast([steady] * 5 + [nothing]).middle) == pytest.approx(100)
    for method in (forecast([steady] * 5 + [nothing] * n) for n in (2, 3, 4)):
        assert max(method.middle) < 40


def test_a_queue_that_works_in_one_week_of_three_keeps_its_quiet_weeks() -> None:
    steady, nothing = [100.0] * HOURS, [0.0] * HOURS
    found = forecast([steady, nothing, nothing] * 3)
    assert found.quiet == 0 and max(found.middle) < 60 and max(found.high) >= 90


@pytest.mark.parametrize("weeks", [2, 4, 8])
@pytest.mark.parametrize("every", [12, 24])
def test_batches_of_random_sizes_are_planned_although_most_hours_are_empty(
    every: int, weeks: int
) -> None:
    """The errors of empty hours hid those of the batches: half of the batches were greater."""
    below, said = [], []
    for seed in range(40):
        chance = random.Random(seed)
        *past, actual = (
            [chance.lognormvariate(5, 0.6) if hour % every == 3 else 0.0 for hour in range(HOURS)]
            for _ in range(weeks + 1)
        )
        found = forecast(past)
        below += [actual[hour] <= found.high[hour] for hour in range(3, HOURS, every)]
        assert all(found.high[hour] == 0 for hour in range(HOURS) if hour % every != 3)
        said += [found.covered] if found.covered is not None else []
    assert 0.8 < sum(below) / len(below) < 0.95
    assert not said or min(said) < 0.9


@given(
    seed=st.integers(0, 10_000),
    weeks=st.integers(1, 6),
    sizes=st.lists(st.sampled_from([0.0, 1.0, 10.0, 1000.0]), min_size=1, max_size=4),
    spread=st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.5]), min_size=6, max_size=6),
)
def test_no_hour_is_planned_with_more_than_thrice_the_tasks_ever_seen(
    seed: int, weeks: int, sizes: list[float], spread: list[float]
) -> None:
    chance = random.Random(seed)
    given = [
        [chance.choice(sizes) if chance.random() < spread[n] else sizes[0] for _ in range(HOURS)]
        for n in range(weeks)
    ]
    most, found = max(map(max, given)), forecast(given)
    assert max(found.high) <= 3 * most + 1.3 * math.sqrt(most)
    assert sum(found.middle) <= 2 * max(map(sum, given)) + 1e-6


def test_after_a_single_week_the_variation_between_days_counts() -> None:
    """With Poisson variation alone, a quarter fewer of these hours stay below."""
    assert forecast([[100.0] * HOURS]).high == pytest.approx([112.8] * HOURS, abs=0.1)
    below = []
    for seed in range(5):
        week, actual = weeks_of(2, 1.0, 0.4, seed)
        below += [
            was <= forecasted for was, forecasted in zip(actual, forecast([week]).high, strict=True)
        ]
    assert 0.8 < sum(below) / len(below) < 0.98


# the job ------------------------------------------------------------------------------------------

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
TARGET = Target(5_000_000, 0.95)


def poisson(rng: random.Random, rate: float) -> int:
    count, left = 0, rng.expovariate(rate)
    while left < 1:
        count, left = count + 1, left + rng.expovariate(rate)
    return count


def filled(weeks: int, seed: int = 3) -> tuple[MemoryTables, list[list[float]]]:
    """Return tables of a queue with Poisson arrivals, ten times as many by day as by night, and the
    number of tasks by hour."""
    rng = random.Random(seed)
    backlog, latency, served, tasks = [], [], [], []
    made = []
    for hour in range(weeks * HOURS):
        start = MONDAY + timedelta(hours=hour)
        rate = 10.0 if 8 <= hour % 24 < 20 else 1.0
        total = 0
        for minute in range(60):
            count = poisson(rng, rate)
            total += count
            if count:
                at = start + timedelta(minutes=minute)
                half = count // 2  # of two keys
                backlog += [
                    row(BACKLOG, minute=at, queue="q", fairness_key=k, arrived=n)
                    for k, n in (("a", half), ("b", count - half))
                ]
        made.append(float(total))
        latency += [
            row(
                LATENCY_HIST,
                hour=start,
                queue="q",
                fairness_key=key,
                measure=measure,
                bucket=814,
                n=50,
                max_us=10**9,
            )
            for key in ("*", "a")
            for measure in ("run", "pickup")
        ]
        served.append(row(SERVICE, window_start=start))
        tasks += [
            row(TASKS, submitted_at=start, queue="q", priority=p, run_us=n)
            for p, n in ((5, 300), (8, 100))
        ]
    tables_by_name = {
        BACKLOG.name: backlog,
        LATENCY_HIST.name: latency,
        SERVICE.name: served,
        TASKS.name: tasks,
    }
    return MemoryTables(tables_by_name), [made[n : n + HOURS] for n in range(0, len(made), HOURS)]


def test_a_queue_of_known_rates_gets_the_slots_that_the_formula_gives(tmp_path: Path) -> None:
    lake = lake_in(tmp_path / "lake")
    tables, weeks = filled(3)
    found = capacity(lake, tables, SYSTEM_CLOCK, TARGET)
    assert found.week_start == MONDAY + timedelta(weeks=3)
    rows = sorted(tables.rows(CAPACITY), key=lambda r: r["hour_of_week"])
    assert [r["hour_of_week"] for r in rows] == list(range(HOURS))
    run_s = 2 / 2.02 * 1.02**814 / 1e6
    expected = forecast(weeks)
    for n, r in enumerate(rows):
        assert (
            r["forecast_p90"] == pytest.approx(expected.high[n] / 3600)
            and r["lambda_p50"] <= r["lambda_p99"]
        )
        assert r["mean_us"] == pytest.approx(run_s * 1e6) and r["cv2_service"] == pytest.approx(
            0, abs=1e-9
        )
        assert r["deferrable_share"] == 0.25
        work = Work(r["forecast_p90"], run_s, r["cv2_arrival"], r["cv2_service"])
        assert r["slots_for_target"] == slots_for(work, 5, 0.95)
        assert r["utilisation"] == pytest.approx(work.load / r["slots_for_target"])
    by_day = [r for r in rows if 8 <= r["hour_of_week"] % 24 < 20]
    assert sum(r["cv2_arrival"] for r in by_day) / len(by_day) == pytest.approx(0.95, abs=0.1)
    assert sum(r["lambda_p50"] for r in by_day) / len(by_day) == pytest.approx(10 / 60, rel=0.05)
    [plan] = found.queues
    assert plan.slots_peak == max(r["slots_for_target"] for r in rows)
    assert 0 < plan.slots_if_shifted < plan.slots_peak and plan.slots_median <= plan.slots_peak
    assert 1.5 < plan.peak_ratio < 2.2 and 8 <= plan.peak_hour % 24 < 20
    assert last_runs(lake)["capacity"]["rows_out"] == HOURS


def test_a_second_forecast_of_a_week_replaces_the_first_unless_its_target_differs(
    tmp_path: Path,
) -> None:
    lake = lake_in(tmp_path / "lake")
    tables, _ = filled(2)
    short, long = (
        capacity(lake, tables, SYSTEM_CLOCK, Target(wait, 0.99)).queues[0]
        for wait in (0, 600_000_000)
    )
    assert short.slots_peak > long.slots_peak
    capacity(lake, tables, SYSTEM_CLOCK, TARGET, Horizon(MONDAY + timedelta(weeks=1, hours=30)))
    rows = tables.rows(CAPACITY)
    assert len(rows) == 2 * HOURS and {r["wait_us"] for r in rows} == {600_000_000, 5_000_000}
    assert len({(r["week_start"], r["queue"], r["hour_of_week"]) for r in rows}) == len(rows)


def test_too_little_history_and_invalid_targets_are_refused(tmp_path: Path) -> None:
    lake = lake_in(tmp_path / "lake")
    with pytest.raises(ConfigurationError, match="build"):
        capacity(lake, SmallTables(lake), SYSTEM_CLOCK, TARGET)
    put(
        lake,
        SERVICE,
        [
            row(SERVICE, window_start=MONDAY),
            row(SERVICE, window_start=MONDAY + timedelta(hours=40)),
        ],
    )
    tables = SmallTables(lake)
    with pytest.raises(ConfigurationError, match="41 hours .* one week"):
        capacity(lake, tables, SYSTEM_CLOCK, TARGET)
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        capacity(lake, tables, SYSTEM_CLOCK, Target(0, 1.0))


def steady(queue: str, hours: Iterable[int], count: int = 100) -> list[dict[str, Any]]:
    return [
        row(BACKLOG, minute=MONDAY + timedelta(hours=n), queue=queue, arrived=count) for n in hours
    ]


def test_hours_before_the_first_task_of_a_queue_are_not_known_and_not_zero(tmp_path: Path) -> None:
    end = 8 * HOURS
    arrived = [
        *steady("old", range(end)),
        *steady("young", range(5 * HOURS + 30, end)),
        *steady("new", range(end - 30, end)),
        *steady("closed", [n for n in range(end) if n // HOURS != 4]),
    ]
    served = [row(SERVICE, window_start=MONDAY + timedelta(hours=n)) for n in range(end)]
    tables = MemoryTables({BACKLOG.name: arrived, SERVICE.name: served})
    found = capacity(lake_in(tmp_path / "lake"), tables, SYSTEM_CLOCK, TARGET)
    plans = {plan.queue: plan for plan in found.queues}
    assert {queue: plan.weeks for queue, plan in plans.items()} == {
        "old": 8,
        "young": 2,
        "closed": 8,
    }
    for planned in tables.rows(CAPACITY):
        assert planned["forecast"] == pytest.approx(100 / 3600)
        assert planned["forecast_p90"] <= 113 / 3600
    assert len({plan.slots_peak for plan in plans.values()}) == 1
    assert plans["closed"].quiet_weeks == 1 and plans["old"].covered == 1
    [new] = found.too_young
    assert (new.queue, new.hours, new.missing_hours) == ("new", 30, HOURS - 30)
    assert any("new: not enough history: 30 hours" in note for note in found.notes)
    assert any("closed: 1 of 8 weeks had hardly a task" in note for note in found.notes)


def test_a_queue_with_tasks_before_the_horizon_keeps_its_quiet_beginning(tmp_path: Path) -> None:
    end = 9 * HOURS
    hours = [n for n in range(end) if not HOURS - 10 < n < HOURS + 50]
    served = [row(SERVICE, window_start=MONDAY + timedelta(hours=n)) for n in range(end)]
    tables = MemoryTables({BACKLOG.name: steady("q", hours), SERVICE.name: served})
    found = capacity(lake_in(tmp_path / "lake"), tables, SYSTEM_CLOCK, TARGET)
    assert found.queues[0].weeks == 8


def test_the_output_says_that_a_forecast_is_worse_than_the_naive_one(tmp_path: Path) -> None:
    lake = lake_in(tmp_path / "lake")
    hours = [MONDAY + timedelta(hours=n) for n in range(4 * HOURS)]
    counts = [n % HOURS + 1 if n < 2 * HOURS else HOURS - n % HOURS for n in range(4 * HOURS)]
    tables_by_name = {
        BACKLOG.name: [
            row(BACKLOG, minute=at, queue="q", arrived=c)
            for at, c in zip(hours, counts, strict=True)
        ],
        SERVICE.name: [row(SERVICE, window_start=at) for at in hours],
    }
    found = capacity(lake, MemoryTables(tables_by_name), SYSTEM_CLOCK, TARGET, Horizon(hold_out=1))
    assert (
        found.queues[0].method == NAIVE
        and "more loss" in found.notes[0]
        and "naive method is used" in found.notes[0]
    )
