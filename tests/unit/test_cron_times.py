"""Slots of a cron expression, across daylight-saving changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from fairlead.declare.periodic import CronTimes


def slots(cron: str, after: datetime, until: datetime) -> list[str]:
    times = CronTimes(cron, "Europe/Athens")
    return [slot.astimezone(UTC).strftime("%d %H:%M") for slot in times.slots(after, until)]


def test_a_slot_in_the_hour_that_clocks_skip_runs_right_after_it() -> None:
    # Athens, 29 March 2026: 03:00 becomes 04:00 (01:00 UTC).
    day = (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 3, 30, 12, tzinfo=UTC))
    assert slots("30 3 * * *", *day) == ["29 01:00", "30 00:30"]


def test_a_slot_in_the_hour_that_clocks_repeat_runs_once() -> None:
    # Athens, 25 October 2026: 04:00 becomes 03:00 (01:00 UTC).
    day = (datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2026, 10, 26, 12, tzinfo=UTC))
    assert slots("30 3 * * *", *day) == ["25 00:30", "26 01:30"]


def test_a_slot_in_the_repeated_hour_does_not_run_again_in_its_second_pass() -> None:
    second_pass = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)  # 03:30 in Athens, again
    until = datetime(2026, 10, 26, 12, tzinfo=UTC)
    assert slots("45 3 * * *", second_pass, until) == ["26 01:45"]


@given(
    cron=st.sampled_from(["*/5 * * * *", "30 3 * * *", "0,45 2-4 * * *", "0 0 25 * *"]),
    change=st.sampled_from([datetime(2026, 3, 29, 1), datetime(2026, 10, 25, 1)]),
    before=st.integers(0, 100_000),
    after=st.integers(0, 10_000),
    limit=st.integers(1, 40),
)
def test_the_latest_slots_are_the_last_ones_of_all_slots(
    cron: str, change: datetime, before: int, after: int, limit: int
) -> None:
    times = CronTimes(cron, "Europe/Athens")
    start = change.replace(tzinfo=UTC) - timedelta(seconds=before)
    until = change.replace(tzinfo=UTC) + timedelta(seconds=after)
    assert times.latest(start, until, limit) == list(times.slots(start, until))[-limit:]


def test_slots_of_every_five_minutes_continue_through_both_changes() -> None:
    both = datetime(2026, 10, 25, 0, 0, tzinfo=UTC), datetime(2026, 10, 25, 2, 0, tzinfo=UTC)
    assert len(slots("*/5 * * * *", *both)) == 24
