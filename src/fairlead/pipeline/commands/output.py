"""Progress, results, errors and stops of the commands of `fairlead pipeline`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.console import Console

from fairlead.cli.output import as_json, as_table, one_line_errors, say
from fairlead.core import values
from fairlead.errors import ConfigurationError

if TYPE_CHECKING:
    from fairlead.pipeline.runs import JobRun

Row = TypeVar("Row")


@contextmanager
def failures() -> Iterator[None]:
    """Turn Fairlead's errors, Ctrl-C and a missing library into one line and an exit code."""
    with one_line_errors():
        try:
            yield
        except KeyboardInterrupt:
            typer.echo("stopped; run it again to continue", err=True)
            raise typer.Exit(130) from None
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in (
                "duckdb",
                "pyspark",
                "pyarrow",
                "pandas",
            ):
                raise
            raise ConfigurationError(
                f"{error.name} is missing: pip install 'fairlead[pipeline]'"
            ) from error


@contextmanager
def watching(what: str) -> Iterator[None]:
    """Show on a terminal that the work goes on."""
    console = Console(stderr=True)
    with console.status(what) if console.is_terminal else nullcontext():
        yield


def instant_of(text: str | None) -> datetime | None:
    """Return an instant in UTC; a text without an offset is in UTC. Raise ConfigurationError, also
    for years that no table can have."""
    return None if text is None else values.instant("instant", text)


def show_rows(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], object]]) -> None:
    """Print a table for people, from a function for each heading that returns the cell of a row."""
    as_table(tuple(columns), [tuple(cell(row) for cell in columns.values()) for row in rows])


def print_run(run: JobRun, json: bool, text: str | None = None) -> None:
    """Print the result of a job; `text` replaces its summary line."""
    if json:
        as_json(run)
        return
    if run.tables:
        as_table(("table", "rows"), [(name, f"{rows:,}") for name, rows in run.tables.items()])
    say(
        text
        or f"{run.job}: {run.state}, {run.rows_in:,} rows in, {run.rows_out:,} out, "
        f"in {run.seconds:,.1f} s"
    )
    for found in run.checks:
        say(f"  {'ok  ' if found.holds else 'FAIL'} {found.name}: {found.found:,.0f}")
    for note in run.notes:
        say(f"  {note}")
    if run.quarantined:
        say(f"  {run.quarantined:,} rows are invalid and are in bronze.quarantine")
