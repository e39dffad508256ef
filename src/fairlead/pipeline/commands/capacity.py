"""`fairlead pipeline capacity`: forecast the slots for the coming week."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, duration, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.pipeline.commands.access import existing_lake
from fairlead.pipeline.commands.options import LakeOptions
from fairlead.pipeline.commands.output import failures, instant_of, show_rows, watching


class CapacityOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline capacity`."""

    wait: Annotated[str, typer.Option(help="Longest wait of a task: 5s, 2m.")] = "5s"
    quantile: Annotated[float, typer.Option(help="Share of tasks within that wait.")] = 0.95
    weeks: Annotated[int, typer.Option(min=1, help="Maximum number of whole weeks of history.")] = 8
    hold_out: Annotated[
        int, typer.Option(min=0, help="Weeks of history kept for testing the forecast.")
    ] = 2
    until: Annotated[
        str | None,
        typer.Option(help="Start of the forecast week; default: the end of the tables."),
    ] = None
    lake: LakeOptions
    json: Json = False


@with_options
def capacity(options: CapacityOptions) -> None:
    """Forecast the slots that each queue needs in each hour of the coming week, and test the
    forecast on past weeks that it does not use.

    The result for each hour is in gold.capacity. Examples: fairlead pipeline capacity --wait 5s
    --quantile 0.95; fairlead pipeline capacity --wait 2m --weeks 12 --json
    """
    with failures():
        from fairlead.pipeline.capacity.plan import Target
        from fairlead.pipeline.in_memory import SmallTables
        from fairlead.pipeline.jobs.capacity import Horizon
        from fairlead.pipeline.jobs.capacity import capacity as run_capacity

        lake = existing_lake(options.lake.lake, options.lake.catalog)
        may_wait = duration(options.wait)
        assert may_wait is not None
        target = Target(round(may_wait.total_seconds() * MICROS), options.quantile)
        with watching("planning") as on_rows:
            horizon = Horizon(instant_of(options.until), options.weeks, options.hold_out)
            done = run_capacity(lake, SmallTables(lake), SYSTEM_CLOCK, target, horizon, on_rows)
        if options.json:
            as_json(done)
            return
        show_rows(
            done.queues,
            {
                "queue": lambda plan: plan.queue,
                "tasks in the week": lambda plan: f"{plan.tasks:,.0f}",
                "peak / mean": lambda plan: f"{plan.peak_ratio:.1f}",
                "slots at the peak": lambda plan: plan.slots_peak,
                "hour": lambda plan: _hour_name(plan.peak_hour),
                "in half of the hours": lambda plan: plan.slots_median,
                "with shifted work": lambda plan: plan.slots_if_shifted,
                "method": lambda plan: plan.method,
                "error / naive error": lambda plan: _or_none(plan.mase, ".2f"),
                "loss saved": lambda plan: _or_none(plan.skill, ".0%"),
                "hours within p90": lambda plan: _or_none(plan.covered, ".0%"),
            },
        )
        for note in done.notes:
            say(note)


def _or_none(value: float | None, format: str) -> str | None:
    return None if value is None else f"{value:{format}}"


def _hour_name(hour_of_week: int) -> str:
    days = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    return f"{days[hour_of_week // 24]} {hour_of_week % 24:02}:00"
