"""Text from tasks is shown as text: it is never read as markup, and a terminal obeys none of it."""

import ast
import asyncio
import json
import logging
import pathlib
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import fairlead
from fairlead import App, NoRetry
from fairlead.cli.logs import JsonFormatter, TextFormatter
from fairlead.cli.main import app as command
from fairlead.cli.output import as_table
from fairlead.cli.tables import show
from fairlead.core.visible import LINES, visible
from fairlead.operate.doctor.explain import Reason
from fairlead.testing import drain

HOSTILE = (
    "cannot read [/etc/app/conf]",
    "[/x]",
    "[bold red]name[/]",
    "[name]",
    "\x1b[2J\x1b]0;title\x07",
    "a\rb\x9b31m",
    "user\u202egpj.exe",
    ":warning: \\[x]",
)


@given(st.text(alphabet=st.characters(codec=None)), st.sampled_from(("", LINES)))
def test_visible_text_holds_nothing_that_a_terminal_obeys(text: str, keep: str) -> None:
    shown = visible(text, keep)
    shown.encode()
    assert not [c for c in shown if unicodedata.category(c) == "Cc" and c not in keep]
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_of_a_table_is_no_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    as_table(("key",), [(text,)])
    assert visible(text) in capsys.readouterr().out


@pytest.mark.parametrize("text", ["zebra " * 60, "z" * 300])
def test_a_table_shows_the_whole_explanation(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.cli.output.console", Console(width=60, force_terminal=True))
    show([Reason(kind="its_time", severity="ok", what=text)])
    shown = capsys.readouterr().out
    assert shown.count("z") == text.count("z")


def test_commands_show_tasks_with_any_text(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    app = App(url)
    app.migrate()
    app.queue("mail", order="fair")

    @app.task(queue="mail", retry=NoRetry())
    async def fails(text: str) -> None:
        raise ValueError(text)

    handles = [fails.options(fairness_key=text).submit(text) for text in HOSTILE]
    fails.options(fairness_key="other").submit("other")
    asyncio.run(drain(app))
    app.close()
    for words in (
        ["tasks"],
        *(["tasks", "show", handle.id] for handle in handles),
        ["queues", "show", "mail"],
        ["doctor"],
    ):
        result = CliRunner().invoke(command, [*words, "--url", url])
        assert result.exception is None or isinstance(result.exception, SystemExit), words
        assert "\x1b" not in result.output
    listed = CliRunner().invoke(command, ["tasks", "--url", url]).output
    assert all(visible(text) in listed for text in (*HOSTILE, "other"))


@pytest.mark.parametrize("text", [*HOSTILE, "half \ud800 of a pair", "two\nlines"])
def test_a_log_line_is_one_line(text: str) -> None:
    record = logging.LogRecord("fairlead", logging.INFO, "", 0, text, None, None)
    record.fairness_key = text
    line = TextFormatter().format(record)
    line.encode()
    assert not [c for c in line if unicodedata.category(c) == "Cc"]
    assert visible(text) in line
    json.loads(JsonFormatter().format(record).encode())


def test_an_exception_in_a_log_keeps_its_lines_only() -> None:
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        record = logging.LogRecord("fairlead", logging.ERROR, "", 0, "failed", None, sys.exc_info())
    line = TextFormatter().format(record)
    assert "\\x1b[2J" in line
    assert "\n" in line


def test_commands_print_through_the_gate_only() -> None:
    """`print` and `typer.echo` would show text as it is; `say` and `as_table` do not."""
    package = pathlib.Path(fairlead.__file__).parent
    gate = package / "cli" / "output.py"
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for folder in ("cli", "pipeline/commands")
        for path in sorted((package / folder).glob("*.py"))
        if path != gate
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _prints(node)
    ]
    assert found == []


def _prints(call: ast.Call) -> bool:
    match call.func:
        case ast.Name("print"):
            return True
        case ast.Attribute(ast.Name("typer"), "echo"):
            return bool(call.args) and not isinstance(call.args[0], ast.Constant)
        case _:
            return False
