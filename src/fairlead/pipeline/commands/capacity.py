"""`fairlead pipeline capacity`: forecast the slots for the coming week."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, duration, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.pipeline.commands.access import existing_lake
from fairlead.pipeline.commands.options import LakeOptions
from fairlead.pipeline.commands.output import failures, instant_of, watching


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
        columns = (
            "queue",
            "tasks in the week",
            "peak / mean",
            "slots at the peak",
            "hour",
            "in half of the hours",
            "with shifted work",
            "method",
            "error / naive error",
            "loss saved",
            "hours within p90",
        )
        as_table(
            columns,
            [
                (
                    plan.queue,
                    f"{plan.tasks:,.0f}",
                    f"{plan.peak_ratio:.1f}",
                    plan.slots_peak,
                    _hour_name(plan.peak_hour),
                    plan.slots_median,
                    plan.slots_if_shifted,
                    plan.method,
                    None if plan.mase is None else f"{plan.mase:.2f}",
                    None if plan.skill is None else f"{plan.skill:.0%}",
                    None if plan.covered is None else f"{plan.covered:.0%}",
                )
                for plan in done.queues
            ],
        )
        for note in done.notes:
            say(note)


def _hour_name(hour_of_week: int) -> str:
    return (
        f"{['Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun'][hour_of_week // 24]}"
        f" {hour_of_week % 24:02}:00"
    )
