"""`capacity`: slots that each queue needs in each hour of the week ahead. The job needs no
Spark."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.backends.sql.sql_file import load
from fairlead.clock import Clock, to_datetime, to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline.capacity.forecast import HOURS, NAIVE
from fairlead.pipeline.capacity.plan import (
    MONDAY,
    Load,
    QueuePlan,
    Target,
    TooYoung,
    week_ahead,
)
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.capacity import CAPACITY
from fairlead.pipeline.definitions.latency import GROWTH, LATENCY_HIST
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.gold.capacity import FIRST_DEFERRABLE_PRIORITY
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.parts import HOUR_US, dates_of, hours_between, micros_of
from fairlead.pipeline.runs import OnRows, recorded
from fairlead.pipeline.warehouse.warehouse import Warehouse

_STATEMENTS = load("capacity.sql", __package__)
_JUDGED_WEEKS = 3
"""Weeks of history from which a forecast can be judged."""
_COVERED = 0.8
"""Share of the held-out hours below the forecast of the 90th percentile that calls for a note."""


class Horizon(msgspec.Struct, frozen=True):
    """History that a forecast uses."""

    until: datetime | None = None
    """Start of the week ahead, a whole hour; None for the end of the tables."""
    weeks: int = 8
    """Maximum number of whole weeks of history."""
    hold_out: int = 2
    """Weeks held out to judge the forecast."""


class Capacity(msgspec.Struct, frozen=True):
    """Result of the job; its rows are in gold.capacity."""

    week_start: datetime
    target: Target
    queues: list[QueuePlan]
    too_young: list[TooYoung]
    notes: list[str]


def capacity(
    lake: Warehouse,
    tables: SmallTables,
    clock: Clock,
    target: Target,
    horizon: Horizon = Horizon(),  # noqa: B008 - frozen
    on_rows: OnRows = lambda table, rows: None,
) -> Capacity:
    """Forecast the week ahead from past weeks, and save the slots it needs in gold.capacity; a
    repeated forecast for the same instant replaces the earlier one.

    Raise ConfigurationError for less than one whole week of history, BrokenLake.
    """
    until = horizon.until and horizon.until.isoformat()
    params = {**msgspec.structs.asdict(horizon), "until": until, **msgspec.structs.asdict(target)}
    with recorded(lake, clock, "capacity", params) as run:
        parts = tables.parts(SERVICE)
        if not parts:
            raise ConfigurationError("silver.service is empty; run `fairlead pipeline build`")
        begun, end = micros_of(parts[0]) // HOUR_US, micros_of(parts[-1]) // HOUR_US + 1
        if horizon.until is not None:
            end = min(end, to_micros(horizon.until) // HOUR_US)
        weeks = min(horizon.weeks, (end - begun) // HOURS)
        start = to_datetime(end * HOUR_US)
        if weeks < 1:
            raise ConfigurationError(
                f"the tables have {end - begun} hours before {start:%Y-%m-%d %H:%M} UTC; at least"
                f" one week ({HOURS} hours) is needed"
            )
        loads = gather(tables, end - weeks * HOURS, end)
        found = [
            week_ahead(queue, of_queue, end, weeks, target, horizon.hold_out)
            for queue, of_queue in sorted(loads.items())
        ]
        planned = [each for each in found if not isinstance(each, TooYoung)]
        schema = CAPACITY.arrow()
        made = [
            pa.Table.from_pandas(frame.assign(week_start=start), schema) for _, frame in planned
        ]
        rows = pa.concat_tables([schema.empty_table(), *made])
        tables.merge(
            CAPACITY,
            rows,
            [f"{start:%Y-%m-%d}"],
            lambda old: pc.not_equal(old["week_start"], pa.scalar(start)),
        )
        on_rows(CAPACITY.name, len(rows))
        run.rows_in, run.rows_out = sum(len(each.arrived) for each in loads.values()), len(rows)
    too_young = [each for each in found if isinstance(each, TooYoung)]
    plans = [plan for plan, _ in planned]
    return Capacity(start, target, plans, too_young, _notes(plans, too_young))


def gather(tables: SmallTables, first_hour: int, end_hour: int) -> dict[str, Load]:
    """Return the load of each queue in [first_hour, end_hour), hours since the epoch, from
    silver.backlog, gold.latency_hist and silver.tasks. Arrivals are read from a week before that
    on, because they tell which queues are older."""
    found: dict[str, Load] = defaultdict(Load)
    names = hours_between((first_hour - HOURS) * HOUR_US, (end_hour - 1) * HOUR_US)
    hours = names[HOURS:]
    parts = {BACKLOG: names, LATENCY_HIST: dates_of(hours), TASKS: hours}.__getitem__
    for row in tables.select(_STATEMENTS["arrivals"], parts):
        found[row["queue"]].arrived[row["minute"]] = row["tasks"]
    for row in tables.select(
        _STATEMENTS["served"],
        parts,
        first=first_hour,
        last=end_hour - 1,
        monday=MONDAY,
        growth=GROWTH,
        deferrable=FIRST_DEFERRABLE_PRIORITY,
    ):
        queue, hour, *sums = row.values()
        found[queue].served[hour] = sums
    return found


def _notes(plans: list[QueuePlan], too_young: list[TooYoung]) -> list[str]:
    """Return warnings about the forecast."""
    notes = [
        f"{queue.queue}: not enough history: {queue.hours} hours since its first task, and a plan"
        f" needs {HOURS}; try again in {queue.missing_hours} hours"
        for queue in too_young
    ]
    for plan in plans:
        if not plan.held_out:
            notes.append(
                f"{plan.queue}: too little history to judge the forecast, which repeats the last"
                f" week: {plan.weeks - plan.quiet_weeks} weeks, and a test needs {_JUDGED_WEEKS}"
            )
        elif plan.method == NAIVE:
            by = "" if plan.skill is None else f"{-plan.skill:.0%} "
            notes.append(
                f"{plan.queue}: the damped trend had {by}more loss than the seasonal naive method"
                f" on {plan.held_out} held-out weeks, so the naive method is used"
            )
        if plan.covered is not None and plan.covered < _COVERED:
            notes.append(
                f"{plan.queue}: {1 - plan.covered:.0%} of the hours of these weeks had more tasks"
                " than the 90th percentile that was forecast (10% is right): plan more slots"
            )
        if plan.quiet_weeks:
            notes.append(
                f"{plan.queue}: {plan.quiet_weeks} of {plan.weeks} weeks had hardly a task and are"
                " left out"
            )
    return notes
