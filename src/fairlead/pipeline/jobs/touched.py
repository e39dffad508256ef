"""The hours whose rows change when partitions of bronze have changed."""

from __future__ import annotations

from collections.abc import Iterable
from string import Template
from typing import NamedTuple

from fairlead.pipeline import partitions as p
from fairlead.pipeline.jobs.build_plan import BuildPlan
from fairlead.pipeline.jobs.totals import Tables
from fairlead.pipeline.models import ATTEMPTS, EVENTS, TASKS
from fairlead.pipeline.quality import IS_SOUND, IS_SOUND_EVENT
from fairlead.pipeline.warehouse.layout import part_name


class Touched(NamedTuple):
    """Hours whose rows change, by table."""

    tasks: set[str]
    service: set[str]
    backlog: set[str]
    continued: set[str]
    """Hours of deleted days in which tasks were submitted that have ended later."""


def _hour(micros: str) -> str:
    """Return the number of the hour of an instant, as an expression of SQL; both since the
    epoch."""
    # A negative number has a negative remainder, and Spark has another operator than DuckDB for the
    # division of integers.
    return f"({micros} - ({micros} % {p.HOUR_US} + {p.HOUR_US}) % {p.HOUR_US}) / {p.HOUR_US}"


_OF_ATTEMPTS = Template("""
SELECT DISTINCT $submitted AS submitted, $started AS started, $ready AS ready, $finished AS finished
FROM (
    SELECT unix_micros(submitted_at) AS submitted, unix_micros(finished_at) AS finished,
        unix_micros(least(started_at, finished_at)) AS started,
        unix_micros(least(ready_at, finished_at)) AS ready
    FROM {bronze.attempts} WHERE $sound)
""").substitute(
    {name: _hour(name) for name in ("submitted", "started", "ready", "finished")}, sound=IS_SOUND
)
_OF_EVENTS = Template("""
SELECT DISTINCT $submitted AS submitted, CASE WHEN waits <= $until THEN $waits END AS waits
FROM (
    SELECT unix_micros(event.at) AS submitted,
        unix_micros(greatest(event.at, event.run_at)) AS waits
    FROM {bronze.events} AS event WHERE kind = 'submitted' AND $sound)
""")


def touched(tables: Tables, plan: BuildPlan) -> Touched:
    """Return the hours that depend on the changed partitions: the hours of their submits, runs and
    waits, and every hour since the last build, because tasks may still wait."""
    changed = {ATTEMPTS: plan.changed_attempts, EVENTS: plan.changed_events}.__getitem__
    tasks: set[tuple[float, float]] = set()
    service: set[tuple[float, float]] = set()
    backlog: set[tuple[float, float]] = set()
    for row in tables.totals(_OF_ATTEMPTS, changed):
        tasks.add((row["submitted"], row["submitted"]))
        service.add((row["started"], row["finished"]))
        backlog.add((row["ready"], row["finished"]))
    hours = {name: _hour(name) for name in ("submitted", "waits")}
    for row in tables.totals(
        _OF_EVENTS.substitute(hours, until=plan.until, sound=IS_SOUND_EVENT), changed
    ):
        tasks.add((row["submitted"], row["submitted"]))
        if row["waits"] is not None:
            backlog.add((row["waits"], plan.until // p.HOUR_US))
    # Tasks may wait in every hour since the last build.
    since = p.hours_between(plan.since, plan.until) if plan.since else []
    submitted, ran, waited = (
        {*plan.again, *more, *_names(spans)}
        for spans, more in ((tasks, []), (service, []), (backlog, since))
    )

    # Bronze has no rows of the days before the first one, so their tables stay as they are.
    def kept(hours: set[str]) -> set[str]:
        return {hour for hour in hours if hour >= plan.first_day}

    return Touched(kept(submitted), kept(ran), kept(waited), submitted - kept(submitted))


def _names(spans: Iterable[tuple[float, float]]) -> set[str]:
    """Return the hours from the first to the last of each span, as partitions."""
    numbers = {hour for first, last in spans for hour in range(int(first), int(last) + 1)}
    return {part_name(TASKS, hour) for hour in numbers}
