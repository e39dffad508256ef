"""Business days of any time zone: their bounds, hours and prices."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import ConfigurationError
from fairlead.pipeline.business_days import (
    begin_date,
    bounds_of,
    days_of,
    hours_within,
    with_neighbours,
)
from fairlead.pipeline.settings import Cost, PipelineSettings, Time, load

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
