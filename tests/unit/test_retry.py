"""Retry and processing policies: when the next try is due; policies and limits that are refused."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import ClusterLimit, ClusterRateLimit, Limit, LimitTree, RateLimit
from fairlead.core.policies.processing import Processing
from fairlead.core.policies.retry import ONE_DAY, Delays, Exponential, Fixed, NoRetry, RetryPolicy
from fairlead.errors import (
    LATEST_SNOOZE,
    LONGEST_DELAY,
    ConfigurationError,
    InvalidDelay,
    Retry,
    Snooze,
)

ERROR = ValueError("no")


def waits(policy: RetryPolicy, tries: int) -> list[float | None]:
    return [policy.delay(n, ERROR) for n in range(1, tries + 1)]


def test_exponential_without_jitter_waits_1_2_4_8_seconds_and_then_stops() -> None:
    assert waits(Exponential(max_attempts=5, jitter=0), 6) == [1, 2, 4, 8, None, None]


def test_after_200_tries_the_exponential_wait_is_one_day() -> None:
    assert Exponential(max_attempts=1000, jitter=0).delay(200, ERROR) == ONE_DAY
    assert Exponential(max_attempts=10**9, factor=10.0, jitter=0).delay(10**6, ERROR) == ONE_DAY
    assert Exponential(max_attempts=10**9, factor=2, jitter=0).delay(10**4, ERROR) == ONE_DAY
    assert Exponential(max_attempts=10**9, first=0, jitter=0).delay(10**6, ERROR) == 0


@given(tries=st.integers(1, 400), jitter=st.floats(0, 1), seed=st.integers())
def test_jitter_shortens_the_wait_by_at_most_its_share(
    tries: int, jitter: float, seed: int
) -> None:
    exact = Exponential(max_attempts=1000, jitter=0).delay(tries, ERROR)
    drawn = Exponential(max_attempts=1000, jitter=jitter, random=random.Random(seed)).delay(
        tries, ERROR
    )
    assert exact is not None and drawn is not None
    assert exact * (1 - jitter) <= drawn <= exact


def test_the_same_seed_draws_the_same_waits_and_they_differ_among_themselves() -> None:
    first, second = (waits(Exponential(9, factor=1, random=random.Random(7)), 8) for _ in range(2))
    assert first == second
    assert len(set(first)) == 8


def test_fixed_delays_and_no_retry_wait_as_declared() -> None:
    assert waits(Fixed(0.5, max_attempts=3), 4) == [0.5, 0.5, None, None]
    assert waits(Delays([1, 5, 60]), 4) == [1, 5, 60, None]
    assert waits(NoRetry(), 1) == [None]


def test_only_the_named_errors_are_retried() -> None:
    policy = Fixed(1, on=(OSError, ValueError), never_on=(UnicodeError,))
    assert policy.delay(1, ConnectionError()) == 1
    assert policy.delay(1, ValueError()) == 1
    assert policy.delay(1, KeyError()) is None
    assert policy.delay(1, UnicodeError()) is None  # a ValueError, but excluded by never_on


def test_by_default_only_subclasses_of_exception_are_retried() -> None:
    assert Fixed(1).delay(1, KeyboardInterrupt()) is None


def test_a_policy_keeps_its_delays_when_the_callers_list_changes() -> None:
    delays = [1.0, 2.0]
    policy = Delays(delays)
    delays.clear()
    assert waits(policy, 3) == [1, 2, None]


@pytest.mark.parametrize(
    "build",
    [
        lambda: Fixed(-1),
        lambda: Fixed(float("nan")),
        lambda: Fixed(1, max_attempts=0),
        lambda: Fixed(1, max_attempts=2.5),  # type: ignore[arg-type]
        lambda: Fixed("1"),  # type: ignore[arg-type]
        lambda: Exponential(factor=0.5),
        lambda: Exponential(factor=float("nan")),
        lambda: Exponential(jitter=1.5),
        lambda: Exponential(jitter=float("nan")),
        lambda: Exponential(max_delay=float("inf")),
        lambda: Delays([1, -1]),
        lambda: Fixed(1, on=("ValueError",)),  # type: ignore[arg-type]
        lambda: NoRetry(never_on=(ValueError(),)),  # type: ignore[arg-type]
        lambda: Processing(timeout=0),
        lambda: Processing(timeout=float("nan")),
        lambda: Processing(max_stuck=float("inf")),
        lambda: Processing(timeout=10, max_stuck=10),
        lambda: Processing(when_stuck="retry"),  # type: ignore[arg-type]
        lambda: Limit(0),
        lambda: Limit(True),
        lambda: Limit(1.5),  # type: ignore[arg-type]
        lambda: Limit(1, per="queue"),  # type: ignore[arg-type]
        lambda: LimitTree(0),
        lambda: LimitTree(1, names={"pay": 0}),
        lambda: LimitTree(1, fairness_keys={"acme": -1}),
        lambda: LimitTree(1, per_fairness_key=0),
        lambda: RateLimit(0, per=1),
        lambda: RateLimit(1, per=0),
        lambda: RateLimit(1, per=float("nan")),
        lambda: RateLimit(1, per="second"),  # type: ignore[arg-type]
        lambda: RateLimit(1, per=1, burst=0),
        lambda: RateLimit(1, per=1, key="queue"),  # type: ignore[arg-type]
        lambda: ClusterLimit(0),
        lambda: ClusterLimit(3, per="queue"),  # type: ignore[arg-type]
        lambda: ClusterRateLimit(3, per=0),
        lambda: LimitTree(ClusterLimit(3, per="name")),
        lambda: LimitTree(3, names={"pay": ClusterLimit(3, name="mine")}),
    ],
)
def test_a_policy_or_a_limit_with_wrong_values_is_refused_when_it_is_made(build: Any) -> None:
    with pytest.raises(ConfigurationError):
        build()


def test_a_task_with_a_timeout_counts_as_stuck_only_well_after_it() -> None:
    assert Processing().max_stuck is None
    assert Processing(timeout=30).max_stuck == 120
    assert Processing(timeout=30, max_stuck=40).max_stuck == 40


@pytest.mark.parametrize("after", [None, 0, 0.5, 30, LONGEST_DELAY])
def test_a_retry_may_ask_for_seconds_up_to_100_years_or_leave_them_to_its_policy(
    after: float | None,
) -> None:
    assert Retry(after).after == after


@pytest.mark.parametrize(
    "after",
    [
        "120",
        math.inf,
        math.nan,
        -1,
        -0.1,
        1e300,
        pytest.param(10**5000, id="more digits than Python prints"),
        True,
        timedelta(1),
        object(),
    ],
)
def test_a_retry_after_an_invalid_time_is_refused_where_it_is_made(after: Any) -> None:
    with pytest.raises(InvalidDelay, match="use a number of seconds from 0 to 3155760000"):
        Retry(after)
    with pytest.raises(ValueError, match="or None to leave the time to the retry policy"):
        Retry(after)


def test_a_retry_resets_the_tries_only_on_request() -> None:
    assert Retry(reset_tries=True).reset_tries
    with pytest.raises(InvalidDelay, match="use True or False"):
        Retry(reset_tries="yes")  # type: ignore[arg-type]


class OddZone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta | None:
        raise RuntimeError("no offset")


class NoZone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta | None:
        return None


@pytest.mark.parametrize(
    "until",
    [
        "tomorrow",
        60,
        None,
        date(2100, 1, 1),
        datetime(2100, 1, 1),
        datetime(2100, 1, 1, tzinfo=NoZone()),
        datetime(2100, 1, 1, tzinfo=OddZone()),
        LATEST_SNOOZE,
        datetime.max.replace(tzinfo=UTC),
    ],
)
def test_a_snooze_takes_an_aware_datetime_and_nothing_else(until: Any) -> None:
    with pytest.raises(InvalidDelay, match="use an aware datetime before 9000"):
        Snooze(until)


def test_a_snooze_may_name_a_time_in_the_past() -> None:
    past = datetime(2000, 1, 1, tzinfo=UTC)
    assert Snooze(past).until == past
