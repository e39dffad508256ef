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


class Taken(list[Any]):
    """Calls of a command with their arguments."""

    def run(self, app: typer.Typer, *args: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, args, terminal_width=200)
        assert result.exit_code == code, result.output
        return " ".join(result.output.split())


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
def app(taken: Taken) -> typer.Typer:
    @with_options
    def replay(options: ReplayOptions) -> None:
        """Replay a trace."""
        taken.append(options)

    @with_options
    def look(context: typer.Context, id: str, filters: Filters, connection: Connection) -> None:
        taken.append((context.command.name, id, filters, connection))

    return application(replay, look)


def test_an_option_not_given_has_the_default_of_its_field(app: typer.Typer, taken: Taken) -> None:
    taken.run(app, "replay", "a.swf", "--out", "b")
    assert taken == [
        ReplayOptions(trace=Path("a.swf"), out="b", filters=WideFilters(), connection=Connection())
    ]
    assert taken[0].filters.limit == 1000  # not the default of the Struct it inherits from


def test_flags_lists_numbers_and_enums_reach_the_fields(app: typer.Typer, taken: Taken) -> None:
    given = "replay a.swf --out b --quiet --require x --require y --limit 3 --order fifo --json"
    taken.run(app, *given.split())
    (options,) = taken
    assert (options.progress, options.require) == (False, ["x", "y"])
    assert options.filters == WideFilters(limit=3, order=Order.FIFO)
    assert options.connection == Connection(json=True)


def test_an_environment_variable_is_read(
    app: typer.Typer, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_URL", "sqlite:///a.db")
    taken.run(app, "replay", "a.swf", "--out", "b")
    assert taken[0].connection.url == "sqlite:///a.db"


def test_several_structs_stand_beside_plain_parameters(app: typer.Typer, taken: Taken) -> None:
    taken.run(app, "look", "t-1", "--queue", "mail")
    assert taken == [("look", "t-1", Filters(queue="mail"), Connection())]


@pytest.mark.parametrize(
    ("args", "missing"),
    [(("replay", "a.swf"), "--out"), (("replay", "--out", "b"), "TRACE"), (("look",), "id")],
)
def test_a_field_without_default_is_required(
    app: typer.Typer, taken: Taken, args: tuple[str, ...], missing: str
) -> None:
    assert missing.lower() in taken.run(app, *args, code=2).lower()
    assert not taken


def test_a_value_is_checked_as_its_annotation_says(app: typer.Typer, taken: Taken) -> None:
    assert "greater than or equal to 1" in taken.run(app, "look", "t-1", "--limit", "0", code=2)
    assert "fifo" in taken.run(app, "replay", "a", "--out", "b", "--order", "best", code=2)


def test_help_has_every_field_in_the_order_in_which_it_is_written(
    app: typer.Typer, taken: Taken
) -> None:
    shown = taken.run(app, "replay", "--help")
    assert "Replay a trace." in shown
    helps = [
        "A file.",
        "Where to.",
        "Only tasks of this queue.",
        "At most so many.",
        "Which first.",
    ] + ["What must hold.", "Bars.", "Where tasks live.", "One JSON document."]
    places = [shown.index(text) for text in helps]
    assert places == sorted(places)
    assert "[default: 1000]" in shown
    assert "[default: fair]" in shown


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
