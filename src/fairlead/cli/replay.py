"""`fairlead replay`: run a recorded workload through a real queue."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fairlead.cli.output import as_json, shown
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.config import Settings as Location
from fairlead.errors import ConfigurationError, FairleadError
from fairlead.lab.replay.report import Pickup, ReplayReport
from fairlead.lab.replay.run import Progress as OnProgress
from fairlead.lab.replay.run import ReplaySettings, own_schema, replay
from fairlead.lab.trace import Tenants, survey
from fairlead.lab.workers import WorkerEnded

FAILED, WRONG_USE = 1, 2


class TraceReplayOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `replay`."""

    trace: Annotated[
        Path, typer.Argument(help="A trace in the Standard Workload Format.", metavar="TRACE")
    ]
    url: Annotated[
        str | None, typer.Option(help="URL of an empty store; default: the configured one.")
    ] = None
    fresh: Annotated[
        bool,
        typer.Option(
            help="Use a temporary store: a SQLite file, or a schema if the URL is of PostgreSQL."
        ),
    ] = False
    tenants: Annotated[Tenants, typer.Option(help="Field that names the tenant.")] = Tenants.USER
    order: Annotated[str, typer.Option(help="The order of the queue: 'fair' or 'fifo'.")] = "fair"
    push_first: Annotated[
        bool, typer.Option("--push-first", help="Submit everything before the first worker starts.")
    ] = False
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 2
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of tasks at once on one worker; default: as `worker`."
        ),
    ] = None
    time_scale: Annotated[
        float,
        typer.Option(
            help="Factor for the times of the trace; 0 submits all jobs at once as no-ops."
        ),
    ] = 0.0
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only this many jobs.")] = None
    skip_bad: Annotated[bool, typer.Option(help="Skip broken lines and count them.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False

    def settings(self) -> ReplaySettings:
        """Return the settings of the replay. Raise ConfigurationError."""
        if not (math.isfinite(self.time_scale) and self.time_scale >= 0):
            raise ConfigurationError(
                f"--time-scale {self.time_scale}: use 0 (all at once) or a positive number"
            )
        return ReplaySettings(
            trace=self.trace,
            tenants=self.tenants,
            order=self.order,
            push_first=self.push_first,
            workers=self.workers,
            concurrency=self.concurrency,
            time_scale=self.time_scale,
            limit=self.limit,
            skip_bad=self.skip_bad,
        )

    def store(self) -> AbstractContextManager[str | None]:
        """Return the store for the replay: a temporary one, or the configured one."""
        if self.fresh:
            return own_schema(self.url)
        return nullcontext(Location.load(url=self.url).url)


@with_options
def replay_command(options: TraceReplayOptions) -> None:
    """Replay a recorded workload with real submits and worker processes, and count what ran.

    Exit code 0: every job ran exactly once. 1: a job was lost, ran twice or did not finish. 2:
    wrong use or a broken trace.

    Example: fairlead replay lcg-2005.swf.gz --fresh --limit 10000
    """
    errors = Console(stderr=True)
    try:
        settings = options.settings()
        with options.store() as url, _progress(errors, settings) as on_progress:
            report = replay(url, settings, on_progress)
    except WorkerEnded as error:
        _print_error(errors, error)
        raise typer.Exit(FAILED) from error
    except FairleadError as error:
        _print_error(errors, error)
        raise typer.Exit(WRONG_USE) from error
    except KeyboardInterrupt:
        errors.print("stopped; all workers have ended")
        raise typer.Exit(130) from None
    if options.json:
        as_json(report)
    else:
        _print(report, Console())
    if not report.is_sound:
        raise typer.Exit(FAILED)


def _print_error(console: Console, error: Exception) -> None:
    console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _progress(console: Console, settings: ReplaySettings) -> Iterator[OnProgress]:
    """Show a progress bar on a terminal."""
    if not console.is_terminal:
        yield lambda _submitted, _run: None
        return
    jobs = survey(settings.trace, settings.tenants, settings.limit, settings.skip_bad).jobs
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        submitting, running = (
            progress.add_task("submitted", total=jobs),
            progress.add_task("run", total=jobs),
        )

        def on_progress(submitted: int, run: int) -> None:
            progress.update(submitting, completed=submitted)
            progress.update(running, completed=run)

        yield on_progress


def _print(report: ReplayReport, console: Console) -> None:
    table = Table(
        title=shown(f"{report.trace} through {report.store}"),
        title_justify="left",
        show_header=False,
    )
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name in (
        "bad_lines",
        "submitted",
        "finished",
        "lost",
        "ran_twice",
        "seconds",
        "tasks_per_s",
    ):
        table.add_row(name, f"{getattr(report, name):,}")
    for title, pickup in (
        ("pick-up delay", report.pickup_delay),
        ("heaviest tenant", report.pickup_delay_heaviest),
        ("median tenant", report.pickup_delay_median),
    ):
        table.add_row(shown(_title_of(title, pickup)), _delays(pickup))
    if report.positions is not None:
        found = report.positions
        table.add_row("median tenant's p99 pick-up position", f"{found.median_tenant_p99:,.0f}")
        table.add_row("last task of the heaviest tenant", f"{found.heaviest_last:,}")
        table.add_row("Jain's index at half time", f"{found.jain_index:.4f}")
        table.add_row(
            "within the fair bound",
            f"{found.within_bound:.2%}, at most {found.most_beyond_bound:,} beyond",
        )
    peak = report.worker_peak_rss_mb
    table.add_row(
        "peak RSS of a worker", "unknown on this system" if peak is None else f"{peak:,.1f} MB"
    )
    console.print(table)


def _title_of(title: str, pickup: Pickup) -> str:
    whose = "" if pickup.tenant is None else f" ({pickup.tenant}, {pickup.tasks:,} tasks)"
    return f"{title}{whose} p50 / p99"


def _delays(pickup: Pickup) -> str:
    if pickup.p50_ms is None or pickup.p99_ms is None:
        return "-"
    return f"{pickup.p50_ms:,.1f} / {pickup.p99_ms:,.1f} ms"
