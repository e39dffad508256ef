"""`capacity`: slots that each queue needs in each hour of the week ahead. The job needs no
Spark."""

from __future__ import annotations

from datetime import datetime

import msgspec

from fairlead.clock import Clock, to_datetime, to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline.capacity.forecast import HOURS, NAIVE
from fairlead.pipeline.capacity.plan import QueuePlan, Target, TooYoung, week_ahead
from fairlead.pipeline.capacity.rates import gather
from fairlead.pipeline.definitions.capacity import CAPACITY
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.parts import HOUR_US, micros_of
from fairlead.pipeline.runs import OnRows, recorded
from fairlead.pipeline.warehouse.warehouse import Warehouse

MOST_WEEKS = 8
_JUDGED_WEEKS = 3
"""Weeks of history from which a forecast can be judged."""
_COVERED = 0.8
"""Share of the held-out hours below the forecast of the 90th percentile that calls for a note."""


class Horizon(msgspec.Struct, frozen=True):
    """History that a forecast uses."""

    until: datetime | None = None
    """Start of the week ahead, a whole hour; None for the end of the tables."""
    most_weeks: int = MOST_WEEKS
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

    Raise ConfigurationError for an invalid target or less than one whole week of history,
    BrokenLake.
    """
    if not (0 < target.quantile < 1 and target.wait_us >= 0):
        raise ConfigurationError(
            f"quantile is {target.quantile} and wait is {target.wait_us} us; quantile must be"
            " between 0 and 1, such as 0.95, and the wait at least 0"
        )
    until, most_weeks = horizon.until, horizon.most_weeks
    params = {"until": until and until.isoformat(), "weeks": most_weeks, "wait_us": target.wait_us}
    with recorded(
        lake,
        clock,
        "capacity",
        {**params, "quantile": target.quantile, "hold_out": horizon.hold_out},
    ) as run:
        parts = tables.parts(SERVICE)
        if not parts:
            raise ConfigurationError("silver.service is empty; run `fairlead pipeline build`")
        known = micros_of(parts[-1]) // HOUR_US + 1
        end = known if until is None else min(known, to_micros(until) // HOUR_US)
        weeks = min(most_weeks, (end - micros_of(parts[0]) // HOUR_US) // HOURS)
        if weeks < 1:
            raise ConfigurationError(
                f"the tables have {end - micros_of(parts[0]) // HOUR_US} hours before"
                f" {to_datetime(end * HOUR_US):%Y-%m-%d %H:%M} UTC; at least one week ({HOURS}"
                " hours) is needed"
            )
        loads = gather(tables, end - weeks * HOURS, end)
        found = {
            queue: week_ahead(queue, load, end, weeks, target, horizon.hold_out)
            for queue, load in sorted(loads.items())
        }
        start = to_datetime(end * HOUR_US)
        rows = [{"week_start": start, **row} for _, made in found.values() for row in made]
        _save(tables, start, rows)
        on_rows(CAPACITY.name, len(rows))
        run.rows_in, run.rows_out = sum(len(load.arrived) for load in loads.values()), len(rows)
    made = [plan for plan, _ in found.values()]
    plans = [plan for plan in made if isinstance(plan, QueuePlan)]
    too_young = [plan for plan in made if isinstance(plan, TooYoung)]
    return Capacity(start, target, plans, too_young, _notes(plans, too_young))


def _save(tables: SmallTables, start: datetime, rows: list[dict[str, object]]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    made = pa.Table.from_pylist(rows, CAPACITY.arrow())
    tables.merge(
        CAPACITY,
        made,
        [f"{start:%Y-%m-%d}"],
        lambda old: pc.not_equal(old["week_start"], pa.scalar(start)),
    )


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
