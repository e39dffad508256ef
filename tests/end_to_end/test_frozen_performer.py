"""A worker that performs a bulk action and is killed, or stopped for longer than its claim: another
process goes on, each task is changed once, and what the worker had begun changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fairlead import App
from fairlead.errors import NotAllowed
from fairlead.operate import batches
from fairlead.operate.changes import NewValues
from fairlead.operate.store.actions import ActionState, BulkAction
from fairlead.ports.statements import Statement, Steps
from tests.conftest import url_of
from tests.consoles import until
from tests.tiers import matrix

pytestmark = pytest.mark.system_time

ROOT = Path(__file__).parents[2]
TASKS = 400


@pytest.fixture(params=matrix("sqlite", "postgres"))
def full(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """Yield an application with waiting tasks, for each kind of store."""
    monkeypatch.setattr(batches, "MOST_CHANGED", 50)
    monkeypatch.setattr(batches, "CLAIM_SECONDS", 1.0)
    app = App(url_of(request.param, request))

    @app.task(name="pay")
    async def pay(n: int) -> None: ...

    app.migrate()
    later = datetime.now(UTC) + timedelta(days=1)
    pay.options(run_at=later).submit_many([{"n": n} for n in range(TASKS)])
    yield app
    app.close()


def worker(app: App, log: Path, moment: str, stop: signal.Signals) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "fairlead", "worker", "freezing_app:app", "--drain", "1"],
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "FREEZE_URL": app.url,
                "FREEZE": moment,
                "FREEZE_SIGNAL": str(int(stop)),
                "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{Path(__file__).parent}",
            },
        )


def changed(app: App) -> dict[int, int]:
    """Return how many tasks were changed how often."""

    def counts() -> Steps[dict[int, int]]:
        rows = yield Statement(
            "SELECT times, count(*) FROM (SELECT count(*) AS times FROM fairlead_events"
            " GROUP BY task_id) AS t GROUP BY times"
        )
        return {row[0]: row[1] for row in rows}

    found: dict[int, int] = app.operate_context.store.database.read_now(counts())
    return found


def taken_over(app: App, id: int) -> BulkAction:
    """Go on with an action as soon as its claim has ended; return it at its end."""
    actions = app.management.actions
    while True:
        try:
            return actions.perform(actions.resume(id, actor="Bob"))
        except NotAllowed as error:
            assert "is performed by" in str(error)


@pytest.mark.parametrize(
    "moment, stop",
    [("before", signal.SIGKILL), ("within", signal.SIGKILL), ("before", signal.SIGSTOP)],
)
def test_another_process_goes_on_and_changes_each_task_once(
    full: App, tmp_path: Path, moment: str, stop: signal.Signals
) -> None:
    asked = full.management.actions.ask(NewValues(priority=3), full.management.where())
    process = worker(full, tmp_path / "log", moment, stop)
    try:
        assert os.waitpid(process.pid, os.WUNTRACED)[0] == process.pid
        left = full.management.actions.show(asked.id)
        assert (left.state, left.looked) == (ActionState.RUNNING, 50)
        done = taken_over(full, asked.id)
        judge(full, done)
        if stop == signal.SIGSTOP:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            process.wait()
            judge(full, full.management.actions.show(asked.id))
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("full", ["postgres"], indirect=True)
def test_a_worker_that_is_stopped_within_its_transaction_holds_no_lock_for_ever(
    full: App, tmp_path: Path
) -> None:
    asked = full.management.actions.ask(NewValues(priority=3), full.management.where())
    process = worker(full, tmp_path / "log", "within", signal.SIGSTOP)
    try:
        assert os.waitpid(process.pid, os.WUNTRACED)[0] == process.pid
        judge(full, taken_over(full, asked.id))
        process.send_signal(signal.SIGCONT)
        until(lambda: "idle" in (tmp_path / "log").read_text())
        judge(full, full.management.actions.show(asked.id))
    finally:
        process.kill()
        process.wait()


def judge(app: App, done: BulkAction) -> None:
    assert (done.state, done.looked) == (ActionState.DONE, TASKS)
    assert (done.changed, done.refused) == (TASKS, 0)
    assert changed(app) == {1: TASKS}
