"""A worker on PostgreSQL whose clock is wrong follows the clock of the server."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest

from fairlead import App, Fixed, State
from fairlead.clock import MICROS, SystemClock
from fairlead.declare.handle import TaskHandle
from fairlead.model import TaskRecord
from fairlead.operate.doctor import examine
from fairlead.testing import running
from tests.waiting import until

AHEAD, LATER = 2000, 1000
"""Seconds by which the clock of the worker is wrong, and until a task is due."""


@pytest.mark.parametrize("ahead", [AHEAD, -AHEAD])
async def test_tasks_and_retries_are_due_by_the_clock_of_the_server(
    migrated_postgres_url: str,
    ahead: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App(migrated_postgres_url)

    @app.task(retry=Fixed(LATER, max_attempts=2))
    async def fail() -> None:
        raise ValueError

    now = datetime.now(UTC)
    later = fail.options(run_at=now + timedelta(seconds=LATER)).submit()
    due, retried = fail.options(run_at=now + timedelta(seconds=0.1)).submit(), fail.submit()
    monkeypatch.setattr(SystemClock, "now", lambda _: time.time_ns() // 1000 + ahead * MICROS)

    def task(handle: TaskHandle) -> TaskRecord:
        return next(each for each in app.management.find() if each.id == handle.id)

    async with running(app):
        await until(lambda: due.state() == retried.state() == State.WAITING and task(due).attempt)
        seconds = task(retried).run_at / MICROS - now.timestamp()
        assert LATER <= seconds < LATER + AHEAD / 2
        assert (later.state(), task(later).attempt) == (State.WAITING, 0)
        await until(lambda: app.store.database.read_now(app.store.incidents.latest(None, 1)))
        found = [each.what for each in await examine(app.operate_context) if "clock" in each.what]
    side = "ahead of" if ahead > 0 else "behind"
    [text] = found
    assert re.search(rf"\b(1999|2000)\.\d s {side} that of the store", text)
    assert caplog.text.count("the clock of the machine is wrong") == 1
    app.close()
