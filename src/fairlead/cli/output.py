"""Output of commands: a table for people, a JSON document for programs, one line for an error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairlead.clock import to_datetime
from fairlead.core.visible import LINES, visible
from fairlead.errors import (
    ConfigurationError,
    FairleadError,
    InvalidTask,
    SchemaMismatch,
    StoreUnavailable,
    UnknownQueue,
)

WORK_FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

_WRONG_USE = (ConfigurationError, InvalidTask, SchemaMismatch, StoreUnavailable, UnknownQueue)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
console = Console()


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn Fairlead's errors into one line on stderr and an exit code. Any other error is a bug and
    shows its traceback, without the groups around it."""
    try:
        yield
    except (FairleadError, ExceptionGroup) as error:
        found = expected(error)
        if found is None:
            raise bug_in(error) from None
        messages, code = found
        for message in messages:
            say_error(message)
        raise typer.Exit(code) from None


def expected(error: BaseException) -> tuple[list[str], int] | None:
    """Return the messages and the exit code of Fairlead's errors, one line for each cause; None for
    any other error, which is a bug."""
    causes = causes_of(error)
    if not all(isinstance(cause, FairleadError) for cause in causes):
        return None
    is_wrong_use = isinstance(error, (ExceptionGroup, _WRONG_USE))
    return list(dict.fromkeys(map(str, causes))), WRONG_USE if is_wrong_use else WORK_FAILED


def causes_of(error: BaseException) -> list[BaseException]:
    """Return the errors in a group of errors, however deep; the error itself if it is no group."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [cause for inner in error.exceptions for cause in causes_of(inner)]


def bug_in(error: BaseException) -> BaseException:
    """Return the first error of a group that is not Fairlead's; the error itself if it is no
    group."""
    return next(cause for cause in causes_of(error) if not isinstance(cause, FairleadError))


def say(text: str = "") -> None:
    """Print text that may have parts from outside: its control characters are made visible."""
    print(visible(text, keep=LINES))


def say_error(text: str) -> None:
    """Print a message to stderr, as `say` does."""
    print(f"fairlead: {visible(text, keep=LINES)}", file=sys.stderr)


def shown(text: str) -> Text:
    """Return text as a cell of a table: never markup, control characters made visible."""
    return Text(visible(text))


def as_json(value: Any) -> None:
    """Print one JSON document and flush it, for programs that read it at once."""
    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def print_result(json: bool, value: Any, text: str) -> None:
    """Print a result as JSON, or as text for people."""
    if json:
        as_json(value)
    else:
        say(text)


def ask(what: str, cure: str) -> None:
    """Ask a person before something is done; exit if the person refuses. Raise InvalidTask, with
    the cure, where nobody can confirm."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidTask(f"{what}: {cure}")
    if not typer.confirm(f"{what}. Go on?", err=True):
        raise typer.Exit(WRONG_USE)


def as_json_line(value: Any) -> None:
    """Print a line of JSON to stderr, for programs that follow the progress of a command."""
    print(msgspec.json.encode(value).decode(), file=sys.stderr, flush=True)


def as_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; None shows as an empty cell. No cell is cut, and a column `id` is one line,
    because people copy ids."""
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    cells = [[shown("" if cell is None else str(cell)) for cell in row] for row in rows]
    for n, name in enumerate(columns):
        if name == "id":
            table.add_column(
                name, no_wrap=True, min_width=max((r[n].cell_len for r in cells), default=0)
            )
        else:
            table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*row)
    # Without a terminal, most rows are one line.
    (console if console.is_terminal else Console(width=240)).print(table)


def readable(record: msgspec.Struct) -> dict[str, Any]:
    """Return a record with ISO times instead of microseconds, for JSON."""
    fields = msgspec.structs.asdict(record)
    for name, value in fields.items():
        if name.endswith("_at") and isinstance(value, int):
            fields[name] = to_datetime(value)
    return fields


def time_of(micros: int | None) -> str:
    """Return an instant (microseconds since the epoch) as a table shows it."""
    return "" if micros is None else to_datetime(micros).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def duration(text: str | None) -> timedelta | None:
    """Return the duration of a text such as `30s`, `10m`, `2h` or `7d`. Raise InvalidTask."""
    if text is None:
        return None
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (number.isascii() and number.isdigit()):
        raise InvalidTask(f"duration {text!r}: use a number and s, m, h or d, as in 2h")
    try:
        return timedelta(seconds=int(number) * _UNITS[unit])
    except OverflowError:
        raise InvalidTask(f"duration {text!r} is too long: use at most 99999d") from None
