"""Finished tasks are found from outside, by state and by id."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fairlead import App, NoRetry, State, UnknownTask
from fairlead.testing import drain
from tests.end_to_end.test_command_line import fairlead_here


async def test_the_command_lists_finished_tasks_and_an_id_leads_to_a_handle(
    sqlite_url: str, tmp_path: Path
) -> None:
    app, other = App(sqlite_url), App(sqlite_url)
    app.migrate()

    @app.task(name="pay", keep_result=True)
    async def pay(n: int) -> int:
        return 2 * n

    @app.task(name="bad", retry=NoRetry())
    async def bad() -> None:
        raise ValueError("no")

    paid = [pay.submit(n=n) for n in range(2)]
    failed = bad.submit()
    await drain(app)
    later = datetime.now(UTC) + timedelta(hours=1)
    waiting = pay.options(run_at=later).submit(n=7)
    cancelled = pay.options(run_at=later).submit(n=8)
    app.management.cancel(cancelled.id)
    app.management.fail(failed.id)
    for state, expected in {
        "DONE": {each.id for each in paid},
        "FAILED": {failed.id},
        "CANCELLED": {cancelled.id},
        "WAITING": {waiting.id},
    }.items():
        listed = ("tasks", "list", "--state", state, "--url", sqlite_url)
        found = json.loads(fairlead_here(tmp_path, *listed, "--json"))
        assert {(task["id"], task["state"]) for task in found} == {(id, state) for id in expected}
        table = fairlead_here(tmp_path, *listed)
        assert all(id in table for id in expected)
    assert other.handle(paid[1].id).state() == State.DONE
    assert other.handle(paid[1].id).result(timeout=20) == 2
    assert await other.handle(paid[1].id).result_async(timeout=20) == 2
    assert other.handle(waiting.id).state() == State.WAITING
    unknown = other.handle(str(uuid.uuid4()))
    asks: list[Callable[[], object]] = [unknown.record, unknown.state, unknown.result]
    for ask in asks:
        with pytest.raises(UnknownTask, match="no task"):
            ask()
    with pytest.raises(UnknownTask, match="no task"):
        await unknown.result_async()
    app.close()
    other.close()
