"""A task of an ordered queue is found by its id before it has run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead import State
from fairlead.cli.main import app as commands
from fairlead.errors import NotAllowed, UnknownTask
from fairlead.testing import running
from tests.integration.ordered_kit import PAIRS, Kit, open_app
from tests.tiers import matrix


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "url" in metafunc.fixturenames:
        metafunc.parametrize("url", matrix(*PAIRS), indirect=True)


async def test_a_task_is_unknown_while_in_the_log_and_found_by_its_id_in_the_schedule(
    kit: Kit,
) -> None:
    app, management = kit.app, kit.app.management
    handle = kit.submit("later", "a", kit.at(86_400), "u")
    elsewhere = app.handle(handle.id)
    with pytest.raises(UnknownTask, match="not read from the log yet"):
        handle.record()
    with pytest.raises(UnknownTask, match="in the log of an ordered queue"):
        elsewhere.state()
    assert await management.ordered.unread() == {"reminders": 1}
    async with running(app):
        while await management.ordered.unread():
            await asyncio.sleep(0.01)
        for found in (handle.record(), elsewhere.record(), management.show(handle.id)):
            assert (found.id, found.state, found.queue) == (handle.id, State.WAITING, "reminders")
            assert (found.ordering_key, found.unique_key, found.attempt) == ("a", "u", 0)
            assert found.run_at == handle.key.run_at
    assert json.loads(management.payload(handle.id) or b"") == {"name": "later"}
    assert management.named(handle.id).id == handle.id
    with pytest.raises(NotAllowed, match="fairlead ordered drop"):
        management.cancel(handle.id)


async def test_a_task_that_ran_is_found_in_the_history_and_no_more_in_the_schedule(
    kit: Kit,
) -> None:
    handle = kit.submit("now")
    async with running(kit.app) as node:
        await kit.runs.until("now")
        while node.in_flight:
            await asyncio.sleep(0.01)
    assert kit.app.connections.schedule is not None
    assert kit.app.connections.schedule.find_now(handle.id) is None
    assert kit.app.handle(handle.id).state() == State.DONE


def test_the_command_shows_a_waiting_task_and_says_that_the_log_is_not_read(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = open_app(url)
    handle = kit.submit("later", "a", kit.at(86_400))

    def show() -> Any:
        return CliRunner().invoke(commands, ["tasks", "show", handle.id, "--url", url, "--json"])

    missing = show()
    assert missing.exit_code != 0
    assert "1 entries of the log of 'reminders' are not read yet" in missing.stderr
    asyncio.run(_read_log(kit))
    shown = json.loads(show().stdout)
    assert (shown["task"]["id"], shown["task"]["state"]) == (handle.id, "WAITING")
    assert (shown["attempts"], json.loads(shown["arguments"])) == ([], {"name": "later"})
    kit.app.close()


async def _read_log(kit: Kit) -> None:
    async with running(kit.app):
        while await kit.app.management.ordered.unread():
            await asyncio.sleep(0.01)
