"""`fairlead pipeline replay`: simulate recorded arrivals under other policies."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import duration
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.lab.trace import BrokenTrace, Tenants
from fairlead.pipeline.commands.access import existing_lake, lake_of_options, session_of
from fairlead.pipeline.commands.options import DryRun, LakeOptions, PeriodOptions, SparkOptions
from fairlead.pipeline.commands.output import failures, watching
from fairlead.pipeline.commands.replay_output import runs, show, show_plan

if TYPE_CHECKING:
    from fairlead.lab.policies.arrivals import Arrivals
    from fairlead.lab.policies.study import StudyPlan


class ReplayOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline replay`."""

    policies: Annotated[
        Path, typer.Option(help="Grid (TOML file): each combination of its lists is a policy.")
    ]
    trace: Annotated[
        Path | None,
        typer.Option(help="Trace in the Standard Workload Format; default: the lake."),
    ] = None
    tenants: Annotated[Tenants, typer.Option(help="With a trace: field that names the tenant.")] = (
        Tenants.USER
    )
    queue: Annotated[str | None, typer.Option(help="With a lake: the queue.")] = None
    period: PeriodOptions
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many tasks.")] = None
    objective: Annotated[
        str,
        typer.Option(
            help=(
                "Measure to minimise or maximise: wait_p99, key_p99_p50, slowdown_mean,"
                " jain_mean, ..."
            )
        ),
    ] = "slowdown_mean"
    require: Annotated[
        list[str] | None,
        typer.Option(
            help=("Condition on a measure: 'wait_p99 <= 60s', 'utilisation >= 0.7'; repeatable.")
        ),
    ] = None
    train: Annotated[
        str | None,
        typer.Option(
            help=(
                "Choose on the first part, for example 7d, and report on the rest; default:"
                " all whole weeks but the last."
            )
        ),
    ] = None
    window: Annotated[
        str | None,
        typer.Option(
            help=(
                "Length of the windows for measuring fairness; a longer wait is starvation."
                " Default: 1h or less."
            )
        ),
    ] = None
    perturb: Annotated[
        str | None,
        typer.Option(
            help="Greatest shift of an arrival in a perturbed sample. Default: 10s or less."
        ),
    ] = None
    perturbations: Annotated[
        int, typer.Option(min=0, help="Perturbed samples of each finalist.")
    ] = 20
    resamples: Annotated[
        int, typer.Option(min=0, help="Samples of each finalist with resampled users.")
    ] = 20
    finalists: Annotated[
        int, typer.Option(min=1, help="Number of best policies reported with intervals.")
    ] = 5
    closed: Annotated[
        bool,
        typer.Option("--closed", help="Users wait for results before they send more."),
    ] = False
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first sample.")] = 1
    here: Annotated[bool, typer.Option("--here", help="Run in this process, without Spark.")] = (
        False
    )
    lake: LakeOptions
    spark: SparkOptions
    dry_run: DryRun = False
    json: Json = False

    def plan(self) -> StudyPlan:
        """Return the plan of the study. Raise ConfigurationError for a mistake in the file or the
        options."""
        from fairlead.lab.policies.grid import load
        from fairlead.lab.policies.objective import parse_objective
        from fairlead.lab.policies.study import StudyPlan

        since, until = self.period.instants()
        if self.trace is not None and (self.queue or since or until):
            raise ConfigurationError(
                "--queue, --since and --until select rows of a lake; with --trace, use --limit"
            )
        return StudyPlan(
            grid=load(self.policies),
            objective=parse_objective(self.objective, self.require or []),
            train_us=_micros(self.train),
            window_us=_micros(self.window),
            perturb_us=_micros(self.perturb),
            perturbations=self.perturbations,
            resamples=self.resamples,
            finalists=self.finalists,
            is_closed=self.closed,
            seed=self.seed,
        )

    def arrivals(self) -> Arrivals:
        """Read the tasks from the trace, else from the lake. Raise ConfigurationError,
        BrokenLake."""
        from fairlead.lab.policies.arrivals import of_trace
        from fairlead.pipeline.replay.record import of_lake

        if self.trace is None:
            lake = existing_lake(self.lake.lake, self.lake.catalog)
            return of_lake(lake, self.queue, *self.period.instants(), self.limit)
        try:
            return of_trace(self.trace, self.tenants, self.limit)
        except BrokenTrace as error:
            raise ConfigurationError(str(error)) from error


@with_options
def replay(options: ReplayOptions) -> None:
    """Simulate other policies: run recorded arrivals through the core on a virtual clock, one
    policy per Spark task.

    Example: fairlead pipeline replay --policies grid.toml --lake lake --queue payouts --objective
    wait_p99

    Example: fairlead pipeline replay --policies grid.toml --trace lcg-2005.swf.gz --train 7d
    --require 'utilisation >= 0.7'
    """
    with failures():
        from fairlead.pipeline.jobs.replay import replay as run_replay

        plan = options.plan()
        arrivals = options.arrivals()
        if options.dry_run:
            show_plan(plan, arrivals, options.json)
            return
        lake = lake_of_options(options.lake.lake, options.lake.catalog)
        plan.setup(arrivals)  # report wrong input before Spark starts
        with (
            nullcontext() if options.here else session_of(options.spark) as spark,
            watching(f"replaying about {runs(plan):,} runs") as on_rows,
        ):
            replayed = run_replay(arrivals, plan, lake, SYSTEM_CLOCK, spark, on_rows)
        show(replayed, plan, arrivals, options.json)


def _micros(text: str | None) -> int | None:
    found = duration(text)
    return None if found is None else round(found.total_seconds() * MICROS)
