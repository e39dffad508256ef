"""Errors of commands: one line for each cause, whatever groups of errors are around it."""

from __future__ import annotations

import asyncio

import pytest
import typer

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
