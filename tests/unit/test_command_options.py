"""Structs of options as parameters of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from fairlead.cli.parameters import CommandOptions, with_options


class Connection(CommandOptions, frozen=True, kw_only=True):
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False


class Filters(CommandOptions, frozen=True, kw_only=True):
    queue: Annotated[str | None, typer.Option(help="Only tasks of this queue.")] = None
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100


class WideFilters(Filters, frozen=True, kw_only=True):
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 1000


class Nested(CommandOptions, frozen=True, kw_only=True):
    filters: WideFilters
    connection: Connection


class Other(CommandOptions, frozen=True, kw_only=True):
    queue: str = ""


class Flag(CommandOptions, frozen=True, kw_only=True):
    as_json: Annotated[bool, typer.Option("--json/--table")] = False


def test_a_command_may_have_nested_structs_and_plain_parameters() -> None:
    app, calls = typer.Typer(), list[Any]()

    @app.command()
    @with_options
    def look(context: typer.Context, id: str, options: Nested) -> None:
        calls.append((context.command.name, id, options))

    for arguments in (["t-1"], ["t-1", "--queue", "mail", "--json"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert calls == [
        ("look", "t-1", Nested(filters=WideFilters(limit=1000), connection=Connection())),
        (
            "look",
            "t-1",
            Nested(filters=WideFilters(queue="mail"), connection=Connection(json=True)),
        ),
    ]


def two_structs(filters: Filters, other: Other) -> None: ...


def two_flags(connection: Connection, flag: Flag) -> None: ...


def plain(queue: str, filters: Filters) -> None: ...


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (two_structs, "command two_structs: .*queue is in Filters and in Other; rename"),
        (two_flags, "command two_flags: --json is in Connection and in Flag"),
        (plain, "queue is in plain and in Filters"),
    ],
)
def test_two_fields_of_one_name_or_flag_are_refused(
    command: Callable[..., None], error: str
) -> None:
    with pytest.raises(TypeError, match=error):
        with_options(command)
