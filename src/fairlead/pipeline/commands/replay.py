"""`fairlead pipeline replay`: simulate recorded arrivals under other policies."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, duration, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import MICROS
from fairlead.pipeline.commands.access import existing_lake, session_of
from fairlead.pipeline.commands.options import LakeOptions, PeriodOptions, SparkOptions
from fairlead.pipeline.commands.output import failures, show_rows, watching
from fairlead.pipeline.report.numbers import duration as text_of

if TYPE_CHECKING:
    from fairlead.lab.policies.arrivals import Arrivals
    from fairlead.lab.policies.calibration import CalibrationGap
    from fairlead.lab.policies.candidate import Runner
    from fairlead.lab.policies.objective import Interval
    from fairlead.lab.policies.study import Study, StudyPlan


class ReplayOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline replay`."""

    policies: Annotated[
        Path, typer.Option(help="Grid (TOML file): each combination of its lists is a policy.")
    ]
    queue: Annotated[str | None, typer.Option(help="The queue, if the lake has several.")] = None
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
    resamples: Annotated[
        int, typer.Option(min=0, help="Samples of each finalist with resampled users.")
    ] = 20
    here: Annotated[bool, typer.Option("--here", help="Run in this process, without Spark.")] = (
        False
    )
    lake: LakeOptions
    spark: SparkOptions
    json: Json = False

    def plan(self) -> StudyPlan:
        """Return the plan of the study. Raise ConfigurationError for a mistake in the file or the
        options."""
        from fairlead.lab.policies.grid import load
        from fairlead.lab.policies.objective import parse_objective
        from fairlead.lab.policies.study import StudyPlan

        return StudyPlan(
            grid=load(self.policies),
            objective=parse_objective(self.objective, self.require or []),
            train_us=_micros(self.train),
            window_us=_micros(self.window),
            resamples=self.resamples,
        )

    def arrivals(self) -> Arrivals:
        """Read the tasks from the lake. Raise ConfigurationError, BrokenLake."""
        from fairlead.pipeline.replay.record import of_lake

        lake = existing_lake(self.lake.lake, self.lake.catalog)
        return of_lake(lake, self.queue, *self.period.instants(), self.limit)


@with_options
def replay(options: ReplayOptions) -> None:
    """Simulate other policies: run recorded arrivals through the core on a virtual clock, one
    policy per Spark task.

    Example: fairlead pipeline replay --policies grid.toml --lake lake --queue payouts --objective
    wait_p99

    Example: fairlead pipeline replay --policies grid.toml --lake lake --train 7d
    --require 'utilisation >= 0.7'
    """
    with failures():
        from fairlead.lab.policies.study import study

        plan = options.plan()
        arrivals = options.arrivals()
        plan.setup(arrivals)  # report wrong input before Spark starts
        started = time.monotonic()
        with (
            nullcontext() if options.here else session_of(options.spark) as spark,
            watching(f"replaying about {runs(plan):,} runs"),
        ):
            found = study(arrivals, plan, _runner(arrivals, spark))
        show(found, plan, arrivals, time.monotonic() - started, options.json)


def _runner(arrivals: Arrivals, spark: Any) -> Runner:
    """Return the runner on Spark, or in this process without it."""
    from fairlead.lab.policies.candidate import in_process
    from fairlead.pipeline.replay.on_spark import on_spark

    return in_process(arrivals) if spark is None else on_spark(spark, arrivals)


def _micros(text: str | None) -> int | None:
    found = duration(text)
    return None if found is None else round(found.total_seconds() * MICROS)


def runs(plan: StudyPlan) -> int:
    """Return the approximate number of runs: all policies, then the finalists and the baseline on
    every sample."""
    from fairlead.lab.policies.study import FINALISTS

    chosen = min(FINALISTS, len(plan.grid.policies)) + 1
    return len(plan.grid.policies) + chosen * (1 + plan.resamples)


def show(study: Study, plan: StudyPlan, arrivals: Arrivals, seconds: float, json: bool) -> None:
    """Print the best policies; as JSON, the measures of all."""
    trained = [found for found in study.found if found.candidate.part == "train"]
    reported = [
        found
        for found in study.found
        if found.candidate.part == "report" and found.candidate.sample == "recorded"
    ]
    if json:
        facts = ("objective", "setup", "best", "baseline", "standings", "notes")
        as_json(
            {
                "seconds": round(seconds, 3),
                "tasks": len(arrivals),
                "calibration": study.gap,
                "policies": trained,
                "reported": reported,
                **{name: getattr(study, name) for name in facts},
            }
        )
        return
    _print_arrivals(plan, arrivals, study.setup.train_us)
    if study.gap is not None:
        _print_gap(study.gap)
    say(
        f"\nBest policies, {study.objective} on the arrivals for choosing; each interval holds 95"
        " of 100 samples:"
    )
    name = plan.objective.name
    show_rows(
        study.standings,
        {
            "id": lambda each: _id(each.policy_id),
            "policy": lambda each: str(each.policy),
            "chosen on": lambda each: _value(name, each.trained),
            "reported": lambda each: _value(name, each.reported),
            "resampled users": lambda each: _interval(name, each.resampled),
            "against the baseline": lambda each: each.against_baseline,
        },
    )
    say("\nThese policies on later arrivals:")
    show_rows(
        reported,
        {
            "id": lambda each: _id(each.candidate.policy_id),
            "wait p50": lambda each: text_of(each.measures.wait_p50_us),
            "p99": lambda each: text_of(each.measures.wait_p99_us),
            "most": lambda each: text_of(each.measures.wait_max_us),
            "key p50": lambda each: text_of(each.measures.key_wait_p50_us),
            "slowdown": lambda each: f"{each.measures.slowdown_mean:,.2f}",
            "Jain": lambda each: _value("jain_mean", each.measures.jain_mean, ".3f"),
            "starved": lambda each: f"{each.measures.starved_keys:,}",
            "used": lambda each: f"{100 * each.measures.utilisation:.1f} %",
            "makespan": lambda each: text_of(each.measures.makespan_us),
        },
    )
    for note in study.notes:
        say(f"  {note}")
    say(f"{seconds:,.1f} s; --json has all policies, and the waits of each key under the best ones")


def _print_arrivals(plan: StudyPlan, arrivals: Arrivals, train_us: int | None) -> None:
    chosen_on = (
        "everything" if train_us is None else f"the first {text_of(train_us)}, reported on the rest"
    )
    say(
        f"{arrivals.queue}: {len(arrivals):,} tasks of {len(set(arrivals.key.tolist())):,} keys in"
        f" {text_of(arrivals.span)}; {len(plan.grid.policies):,} policies of"
        f" {plan.grid.combinations:,} combinations, chosen on {chosen_on}"
    )


def _print_gap(gap: CalibrationGap) -> None:
    say(
        f"\nThe record and a simulation of its policy ({gap.policy}), Kolmogorov-Smirnov distance"
        f" {gap.ks:.3f}:"
    )
    as_table(
        ("wait", "recorded", "simulated", "gap"),
        [
            (
                which,
                text_of(getattr(gap, f"recorded_{which}_us")),
                text_of(getattr(gap, f"simulated_{which}_us")),
                "" if (error := gap.error(which)) is None else f"{100 * error:+.1f} %",
            )
            for which in ("p50", "p99", "mean")
        ],
    )


def _id(policy_id: int) -> str:
    return "baseline" if policy_id < 0 else str(policy_id)


def _value(name: str, value: Any, format: str = ",.4g") -> str:
    from fairlead.lab.policies.objective import is_time

    if value is None:
        return "-"
    return text_of(value) if is_time(name) else f"{value:{format}}"


def _interval(name: str, found: Interval | None) -> str:
    return "-" if found is None else f"{_value(name, found.low)} to {_value(name, found.high)}"
