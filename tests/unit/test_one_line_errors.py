"""Errors of commands: one line for each cause, whatever groups of errors are around it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from fairlead import App
from fairlead.cli.application import load
from fairlead.cli.output import one_line_errors
from fairlead.errors import ConfigurationError, StoreUnavailable


async def fail_deep_inside(*errors: Exception) -> None:
    """Raise the errors from tasks in a group within a group."""

    async def fail(error: Exception) -> None:
        raise error

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(fail(error))

    async with asyncio.TaskGroup() as outer:
        outer.create_task(run())


def test_an_error_in_nested_groups_is_one_line_for_each_cause(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = ConfigurationError("the server refused us: ask for more rights")
    same = ConfigurationError("the server refused us: ask for more rights")
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        asyncio.run(fail_deep_inside(refused, same, StoreUnavailable("the store is down")))
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err.splitlines() == [
        "fairlead: the server refused us: ask for more rights",
        "fairlead: the store is down",
    ]


def test_a_bug_in_nested_groups_shows_its_own_traceback_without_the_groups() -> None:
    with pytest.raises(ZeroDivisionError) as caught, one_line_errors():
        asyncio.run(fail_deep_inside(StoreUnavailable("down"), ZeroDivisionError("a bug")))
    assert caught.value.__suppress_context__


def run(folder: Path, *arguments: str, stdout: object, **variables: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it wrote to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=stdout,  # type: ignore[call-overload]
        stderr=subprocess.PIPE,
        text=True,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("options", [["--json"], []])
def test_output_to_a_full_disk_is_one_line(tmp_path: Path, options: list[str]) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    App(url).migrate()
    with open("/dev/full", "w") as full:
        code, errors = run(tmp_path, "queues", "--url", url, *options, stdout=full)
    assert (code, errors) == (1, "fairlead: cannot write the output: No space left on device\n")


def test_names_that_a_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    app = App(url)
    app.migrate()
    app.task(name="grüße")(print_nothing).submit()
    app.close()
    with open(tmp_path / "shown", "wb") as file:
        code, errors = run(tmp_path, "tasks", "--url", url, stdout=file, PYTHONIOENCODING="ascii")
    assert (code, errors) == (0, "")
    assert b"gr\\xfc\\xdfe" in (tmp_path / "shown").read_bytes()


def test_a_function_that_makes_an_app_is_named_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_by_function.py").write_text("def create_app(): ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"it is a function.*app = create_app\(\)"):
        load("made_by_function:create_app")


def print_nothing() -> None:
    """Do nothing, as a task."""
