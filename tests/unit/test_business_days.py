"""Business days of any time zone: their bounds, hours and prices."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import ConfigurationError
from fairlead.pipeline.business_days import (
    begin_date,
    bounds_of,
    days_again,
    days_of,
    hours_from,
    hours_within,
    with_neighbours,
)
from fairlead.pipeline.definitions.windows import window_of_utc
from fairlead.pipeline.settings import Bill, Cost, PipelineSettings, Time, load

BERLIN = ZoneInfo("Europe/Berlin")
SPRING, AUTUMN = date(2026, 3, 29), date(2026, 10, 25)
ZONES = (
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Atlantic/Azores",
    "Pacific/Kiritimati",
)


def hour_of(instant: datetime, zone: ZoneInfo) -> datetime:
    """Return the start of the hour of a business day that contains the instant."""
    begin, _ = bounds_of(instant.astimezone(zone).date(), zone)
    return instant - (instant - begin) % timedelta(hours=1)


@given(st.sampled_from(ZONES), st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1)))
def test_the_next_hour_of_a_day_begins_at_an_instant_or_after_it(
    name: str, naive: datetime
) -> None:
    zone, instant = ZoneInfo(name), naive.replace(tzinfo=UTC)
    start = hours_from(instant, zone)
    assert hour_of(start, zone) == start >= instant
    assert hour_of(start - timedelta.resolution, zone) < instant
    assert hours_from(start, zone) == start


@pytest.mark.parametrize(("day", "hours"), [(SPRING, 23), (AUTUMN, 25), (date(2026, 7, 1), 24)])
def test_a_day_on_which_the_clocks_change_has_23_or_25_hours(day: date, hours: int) -> None:
    begin, end = bounds_of(day, BERLIN)
    assert end - begin == timedelta(hours=hours)
    assert len(hours_within([day], BERLIN)) == hours
    settings = PipelineSettings(
        cost=Cost(workers=2, worker_hour=Decimal("0.5")), time=Time("Europe/Berlin")
    )
    assert settings.bills_for([day]) == [(day, "*", 2 * hours * 3_600_000_000, Decimal(hours))]


@given(st.sampled_from(ZONES), st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1)))
def test_each_instant_is_in_the_day_of_its_zone(name: str, naive: datetime) -> None:
    zone, instant = ZoneInfo(name), naive.replace(tzinfo=UTC)
    day = instant.astimezone(zone).date()
    begin, end = bounds_of(day, zone)
    assert begin <= instant < end
    hour = f"{instant:%Y-%m-%d/%H}"
    assert day in days_of([hour], zone) and hour in hours_within([day], zone)
    assert bounds_of(day + timedelta(days=1), zone)[0] == end


@given(st.sampled_from(ZONES), st.dates(date(2024, 1, 1), date(2028, 1, 1)))
def test_neighbours_are_all_days_that_begin_on_the_same_dates(name: str, day: date) -> None:
    zone = ZoneInfo(name)
    near = [day + timedelta(days=n) for n in range(-3, 4)]
    same = [each for each in near if begin_date(each, zone) == begin_date(day, zone)]
    assert with_neighbours([day], zone) == same


def test_two_days_of_london_begin_on_one_date_of_utc_in_spring() -> None:
    london = ZoneInfo("Europe/London")
    assert with_neighbours([SPRING], london) == [SPRING, SPRING + timedelta(days=1)]


def test_an_unknown_zone_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text('[time]\nzone = "Europe/Berlin"\n')
    assert load(path).zone == BERLIN
    path.write_text('[time]\nzone = "Berlin"\n')
    with pytest.raises(ConfigurationError, match="time zone 'Berlin': use a name such as"):
        load(path)


@given(
    st.sampled_from(ZONES),
    st.lists(st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1)), max_size=5),
    st.one_of(st.just(""), st.dates(date(2024, 1, 1), date(2028, 1, 1)).map(date.isoformat)),
)
def test_days_built_again_are_whole_and_begin_at_the_first_date(
    name: str, instants: list[datetime], first: str
) -> None:
    zone = ZoneInfo(name)
    found = days_again([f"{each:%Y-%m-%d/%H}" for each in instants], zone, first)
    least = datetime.fromisoformat(first or "0001-01-01").replace(tzinfo=UTC)
    for naive in instants:
        begin, end = bounds_of(naive.replace(tzinfo=UTC).astimezone(zone).date(), zone)
        for instant in (begin, min(max(begin, least), end - timedelta.resolution)):
            inside = any(since <= instant < until for since, until in found.spans)
            assert inside == (instant >= least)
            assert not inside or f"{instant:%Y-%m-%d}" in found.dates
        assert {f"{begin:%Y-%m-%d/%H}", f"{end - timedelta.resolution:%Y-%m-%d/%H}"} <= {
            *found.hours
        }
    assert all(since < until for since, until in found.spans)
    assert all(one[1] < two[0] for one, two in pairwise(found.spans))
    assert all(each >= first for each in found.dates)


@pytest.mark.parametrize(
    ("zone", "day", "hour"),
    [
        ("UTC", "2026-03-03", "00:00"),
        ("Europe/Berlin", "2026-03-03", "00:00"),
        ("America/New_York", "2026-03-03", "00:00"),
        ("Asia/Kolkata", "2026-03-03", "00:30"),
        ("Asia/Kathmandu", "2026-03-03", "00:15"),
        # The day of 4 April lasts 24.5 hours, and its last window half an hour.
        ("Australia/Lord_Howe", "2026-04-05", "00:00"),
        ("Australia/Lord_Howe", "2026-04-06", "00:30"),
    ],
)
def test_the_first_hour_of_a_date_is_an_hour_of_a_business_day(
    zone: str, day: str, hour: str
) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
    assert f"{hours_from(begin, ZoneInfo(zone)):%Y-%m-%d %H:%M}" == f"{day} {hour}"


def test_windows_of_other_zones_that_fit_into_dates_of_utc_are_shorter() -> None:
    wanted = {"UTC": 86_400, "Europe/Berlin": 3600, "Asia/Kolkata": 60, "Australia/Lord_Howe": 60}
    assert {zone: window_of_utc(ZoneInfo(zone), 2026) for zone in wanted} == wanted


def test_an_amount_of_more_places_is_rounded_to_a_millionth() -> None:
    settings = PipelineSettings(bill=[Bill(SPRING, Decimal("17.0000015001"), 24.0)])
    assert settings.bills_for([SPRING]) == [(SPRING, "*", 24 * 3_600_000_000, Decimal("17.000002"))]
