"""`fairlead demo`: run a sample workload."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fairlead.cli.output import as_json, as_table, say, say_error
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.cli.web import DEFAULT_PORT, ServeOptions, listening, made, need_libraries, serve
from fairlead.errors import ConfigurationError
from fairlead.lab.demo import (
    DemoProgress,
    DemoResult,
    DemoSettings,
    TenantResult,
    endless_demo,
    run_demo,
)

_LINE_EVERY = 1.0
_WEB_SECONDS = 60.0
"""Seconds of one round of the workload under the console, unless --seconds gives others."""


class DemoOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `demo`."""

    tasks: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of tasks.")] = (
        DemoSettings.tasks
    )
    seconds: Annotated[float, typer.Option(help="Seconds over which the tasks are submitted.")] = (
        DemoSettings.seconds
    )
    seed: Annotated[int, typer.Option(help="The same seed makes the same workload.")] = (
        DemoSettings.seed
    )
    workers: Annotated[int, typer.Option(min=1, max=16, help="Worker processes.")] = (
        DemoSettings.workers
    )
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep the SQLite file under this name.", metavar="FILE"),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
    web: Annotated[
        bool, typer.Option("--web", help="Repeat the workload under the web console until Ctrl-C.")
    ] = False
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the console; 0 takes a free one.")
    ] = DEFAULT_PORT

    def settings(self) -> DemoSettings:
        """Return what to demonstrate."""
        return DemoSettings(self.tasks, self.seconds, self.seed, self.workers, self.keep)


@with_options
def demo_command(options: DemoOptions) -> None:
    """Run a sample workload of several tenants, with failures and retries, through one SQLite file.

    The file is deleted at the end unless --keep names it.

    Examples: fairlead demo --tasks 5000 --workers 4 --keep demo.db; fairlead demo --web
    """
    errors, seconds = Console(stderr=True), options.seconds
    try:
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ConfigurationError(f"--seconds {seconds}: use 0 or a positive number")
        if options.web:
            _show_on_the_web(options)
            return
        with _display(errors, options.tasks) as report:
            result = run_demo(options.settings(), report)
    except KeyboardInterrupt:
        errors.print("stopped; nothing is left behind")
        raise typer.Exit(130) from None
    if options.json:
        as_json(result)
    else:
        _print(result)


def _show_on_the_web(options: DemoOptions) -> None:
    """Serve the console while the workload repeats. Raise ConfigurationError."""
    if options.json:
        raise ConfigurationError("give --web or --json, not both")
    need_libraries()
    settings, serving = options.settings(), ServeOptions(port=options.port, title="Fairlead demo")
    if settings.seconds == DemoSettings.seconds:
        settings = dataclasses.replace(settings, seconds=_WEB_SECONDS)
    with listening(serving.host, serving.port) as port, endless_demo(settings) as app:
        serve(made(app, serving), serving, port)


@contextmanager
def _display(console: Console, tasks: int) -> Iterator[Callable[[DemoProgress], None]]:
    """Show bars on a terminal, and a line a second elsewhere."""
    if not console.is_terminal:
        yield _lines()
        return
    note = TextColumn("{task.fields[note]}")
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), note)
    with Progress(*columns, console=console, transient=True) as progress:
        submitted = progress.add_task("submitted", total=tasks, note="")
        ended = progress.add_task("ended", total=tasks, note="")

        def report(now: DemoProgress) -> None:
            rate = now.done / now.seconds if now.seconds > 0 else 0.0
            progress.update(submitted, completed=now.submitted, note=f"{now.seconds:.1f} s")
            note = f"{rate:,.0f}/s  {now.failures:,} failed runs, {now.errors:,} given up"
            progress.update(ended, completed=now.done + now.errors, note=note)

        yield report


def _lines() -> Callable[[DemoProgress], None]:
    """Return a function that prints plain lines of progress, for logs."""
    due = 0.0

    def report(now: DemoProgress) -> None:
        nonlocal due
        if now.seconds >= due or now.done + now.errors >= now.planned:
            due = now.seconds + _LINE_EVERY
            say_error(
                f"{now.seconds:5.1f} s: {now.submitted:,} of {now.planned:,} submitted,"
                f" {now.done:,} done, {now.failures:,} failed runs, {now.errors:,} given up"
            )

    return report


def _print(result: DemoResult) -> None:
    say(
        f"{result.seconds:.1f} s, workers: {result.workers}, seed {result.seed}; p50, p99: the"
        " pick-up delay"
    )
    columns = ("tasks", "attempts", "failures", "in ERROR", "tasks/s", "p50 ms", "p99 ms")
    rows = [(each.tenant, *_cells(each)) for each in result.tenants]
    as_table(("tenant", *columns), [*rows, ("all", *_cells(result.total))])
    if result.kept is not None:
        say(f"kept: {result.kept}; see `fairlead tasks list --url sqlite:///{result.kept}`")


def _cells(result: TenantResult) -> list[str]:
    counted = [
        f"{count:,}" for count in (result.tasks, result.attempts, result.failures, result.errors)
    ]
    delays = ["-" if delay is None else f"{delay:,.1f}" for delay in (result.p50_ms, result.p99_ms)]
    return [*counted, f"{result.tasks_per_s:,.1f}", *delays]
