"""Celery's names on Fairlead: beat schedules are periodic tasks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead.contrib.celery import Celery
from fairlead.contrib.celery.exceptions import ImproperlyConfigured
from fairlead.contrib.celery.schedules import crontab
from tests.integration.celery_kit import run


@pytest.mark.parametrize(
    ("given", "expression"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute=0, hour="*/3"), "0 */3 * * *"),
        (crontab(minute="*/15", day_of_week="mon-fri"), "*/15 * * * mon-fri"),
        (crontab(minute=[0, 30], hour={8, 20}), "0,30 8,20 * * *"),
        (crontab(0, 0, day_of_month="1", month_of_year="*/3"), "0 0 1 */3 *"),
        (timedelta(minutes=15), "*/15 * * * *"),
        (7200, "0 */2 * * *"),
        (86_400.0, "0 0 * * *"),
        (90, "* * * * *"),
    ],
)
def test_a_schedule_becomes_a_cron_expression(celery: Celery, given: Any, expression: str) -> None:
    celery.conf.timezone = "Europe/Berlin"
    celery.conf.beat_schedule = {"clean": {"task": "shop.clean", "schedule": given}}
    (periodic,) = celery.fairlead.periodics
    assert (periodic.cron, periodic.name) == (expression, "beat: clean")
    assert periodic.timezone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"task": "a", "schedule": 0.5}, "from 1 on"),
        ({"task": "a", "schedule": "often"}, "use crontab"),
        ({"task": "a", "schedule": 60, "cron": 1}, "beat_schedule"),
        ({"schedule": 60}, "beat_schedule"),
    ],
)
def test_entries_that_cannot_be_carried_out_are_refused(
    celery: Celery, entry: dict[str, Any], text: str
) -> None:
    celery.conf.beat_schedule = {"x": entry}
    with pytest.raises(ImproperlyConfigured, match=text):
        _ = celery.fairlead
    with pytest.raises(ImproperlyConfigured, match="day_of_month and day_of_week"):
        crontab(day_of_month=1, day_of_week="mon")


async def test_a_due_time_of_beat_submits_its_task_once(celery: Celery) -> None:
    seen: list[Any] = []

    @celery.task
    def clean(what: str, *, deep: bool) -> None:
        seen.append((what, deep))

    daily = {"task": clean.name, "schedule": crontab(minute=0), "args": ["cache"]}
    often = {"task": clean.name, "schedule": 25, "args": ["logs"], "kwargs": {"deep": False}}
    celery.conf.beat_schedule = {
        "often": often,
        "daily": {**daily, "kwargs": {"deep": True}, "options": {"priority": 3}},
    }
    slot = datetime(2026, 1, 1, tzinfo=UTC)
    for periodic in celery.fairlead.periodics:
        for _ in range(2):
            await asyncio.to_thread(periodic.handler.function, slot)
    found = celery.fairlead.management.find(limit=10)
    assert sorted(each.priority for each in found) == [5, 5, 5, 6]
    await run(celery)
    assert sorted(seen) == [("cache", True), ("logs", False), ("logs", False), ("logs", False)]
