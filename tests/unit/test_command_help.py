"""The help of every command exists and has an example that can be run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import fairlead
from fairlead.cli.main import app

ROOT: Any = typer.main.get_command(app)


def commands(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Return the names that lead to each command and group."""
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *path, name)


def command_at(words: list[str]) -> tuple[Any, str]:
    """Return the command to which these words of a command line lead, and its name."""
    command, name = ROOT, "fairlead"
    for word in words:
        child = getattr(command, "commands", {}).get(word)
        if child is None:
            break
        command, name = child, f"{name} {word}"
    return command, name


def flags_of(command: Any) -> set[str]:
    return {
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--")
    }


def examples_in(help_text: str) -> list[str]:
    """Return the command lines after `Example:`."""
    _, found, text = re.sub(r"\s+", " ", help_text).partition("Example")
    return re.findall(r"(?<![\w./])fairlead (?:(?! fairlead | Example).)*", text) if found else []


ALL = [" ".join(path) for path in commands(ROOT)]
RUN = [name for name in ALL if not command_at(name.split())[0].no_args_is_help]


def test_the_commands_of_every_part_are_registered() -> None:
    assert {"worker", "tasks retry", "ordered drop", "simulate", "pipeline tune apply"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_a_help(name: str) -> None:
    result = CliRunner().invoke(app, [*name.split(), "--help"], terminal_width=200)
    assert result.exit_code == 0, result.output
    assert f"Usage: fairlead {name}".strip() in result.output
    # The first line states what the command does.
    text = command_at(name.split())[0].help
    assert not text.startswith("Return")
    assert re.match(r"[A-Z].*[.?]$", re.split(r"\n\n", text.strip())[0], re.DOTALL)


@pytest.mark.parametrize("name", RUN)
def test_every_help_has_an_example_of_its_command(name: str) -> None:
    examples = examples_in(command_at(name.split())[0].help)
    assert any(command_at(e.split()[1:])[1] == f"fairlead {name}" for e in examples), examples


@pytest.mark.parametrize("name", RUN)
def test_examples_have_only_options_that_exist(name: str) -> None:
    for example in examples_in(command_at(name.split())[0].help):
        command, _ = command_at(example.split()[1:])
        given = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", example))
        assert given <= flags_of(command), example


def test_pages_of_the_console_name_commands_that_exist() -> None:
    for page in sorted((Path(fairlead.__file__).parent / "web/templates").rglob("*.html")):
        for line in re.findall(r"(?:<code>|^)fairlead ([^<\n]+)", page.read_text(), re.MULTILINE):
            command, name = command_at(line.split())
            rest = line.split()[len(name.split()) - 1 :]
            takes = [each for each in command.params if each.param_type_name == "argument"]
            assert takes or not rest or rest[0].startswith("--"), (page.name, line)
            assert set(re.findall(r"--[a-z][a-z-]*", line)) <= flags_of(command), (page.name, line)


def test_help_imports_nothing_that_only_some_commands_need() -> None:
    heavy = {"pyspark", "pyarrow", "pandas", "numpy", "matplotlib", "confluent_kafka", "cassandra"}
    heavy.add("fairlead.engine.node")
    script = f"import sys, fairlead.cli.main; print(sorted({heavy!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n", done.stderr


def test_the_help_of_an_age_names_its_units() -> None:
    result = CliRunner().invoke(app, ["tasks", "--help"], terminal_width=200)
    assert re.search(r"--older-than +DURATION .*\n?.*2h", result.output)
