"""Structs of options as parameters of a command."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from fairlead.cli.parameters import CommandOptions, with_options


class Order(StrEnum):
    FAIR = "fair"
    FIFO = "fifo"


class Connection(CommandOptions, frozen=True, kw_only=True):
    url: Annotated[str | None, typer.Option(help="Where tasks live.", envvar="TEST_URL")] = None
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False


class Filters(CommandOptions, frozen=True, kw_only=True):
    queue: Annotated[str | None, typer.Option(help="Only tasks of this queue.")] = None
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100


class WideFilters(Filters, frozen=True, kw_only=True):
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 1000
    order: Annotated[Order, typer.Option(help="Which first.")] = Order.FAIR


class ReplayOptions(CommandOptions, frozen=True, kw_only=True):
    trace: Annotated[Path, typer.Argument(help="A file.", metavar="TRACE")]
    out: Annotated[str, typer.Option(help="Where to.")]
    filters: WideFilters
    require: Annotated[list[str] | None, typer.Option(help="What must hold.")] = None
    progress: Annotated[bool, typer.Option("--progress/--quiet", help="Bars.")] = True
    connection: Connection


def application(*commands: Any) -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    for command in commands:
        app.command()(command)
    return app


class Calls(list[Any]):
    """Calls of a command with their arguments."""

    def run(self, app: typer.Typer, *args: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, args, terminal_width=200)
        assert result.exit_code == code, result.output
        return " ".join(result.output.split())


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def app(calls: Calls) -> typer.Typer:
    @with_options
    def replay(options: ReplayOptions) -> None:
        """Replay a trace."""
        calls.append(options)

    @with_options
    def look(context: typer.Context, id: str, filters: Filters, connection: Connection) -> None:
        calls.append((context.command.name, id, filters, connection))

    return application(replay, look)


def test_an_option_not_given_has_the_default_of_its_field(app: typer.Typer, calls: Calls) -> None:
    calls.run(app, "replay", "a.swf", "--out", "b")
    assert calls == [
        ReplayOptions(trace=Path("a.swf"), out="b", filters=WideFilters(), connection=Connection())
    ]
    assert calls[0].filters.limit == 1000  # not the default of its base class


def test_flags_lists_numbers_and_enums_reach_the_fields(app: typer.Typer, calls: Calls) -> None:
    given = "replay a.swf --out b --quiet --require x --require y --limit 3 --order fifo --json"
    calls.run(app, *given.split())
    (options,) = calls
    assert (options.progress, options.require) == (False, ["x", "y"])
    assert options.filters == WideFilters(limit=3, order=Order.FIFO)
    assert options.connection == Connection(json=True)


def test_an_environment_variable_is_read(
    app: typer.Typer, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_URL", "sqlite:///a.db")
    calls.run(app, "replay", "a.swf", "--out", "b")
    assert calls[0].connection.url == "sqlite:///a.db"


def test_a_command_may_have_several_structs_and_plain_parameters(
    app: typer.Typer, calls: Calls
) -> None:
    calls.run(app, "look", "t-1", "--queue", "mail")
    assert calls == [("look", "t-1", Filters(queue="mail"), Connection())]


class Other(CommandOptions, frozen=True, kw_only=True):
    queue: str = ""


class Flag(CommandOptions, frozen=True, kw_only=True):
    as_json: Annotated[bool, typer.Option("--json/--table")] = False


def test_two_fields_of_one_name_are_refused() -> None:
    def both(filters: Filters, other: Other) -> None: ...

    with pytest.raises(TypeError, match="command both: .*queue is in Filters and in Other; rename"):
        with_options(both)


def test_two_fields_of_one_flag_are_refused() -> None:
    def both(connection: Connection, flag: Flag) -> None: ...

    with pytest.raises(TypeError, match="command both: --json is in Connection and in Flag"):
        with_options(both)


def test_a_field_and_a_plain_parameter_of_one_name_are_refused() -> None:
    def look(queue: str, filters: Filters) -> None: ...

    with pytest.raises(TypeError, match="queue is in look and in Filters"):
        with_options(look)
