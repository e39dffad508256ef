"""A command that changes many tasks, killed or interrupted on its way and resumed: each task is
changed once, and the counts are exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.operate.changes import Cancel
from fairlead.operate.store.actions import ActionState
from fairlead.ports.statements import Statement, Steps
from tests.builders import idle
from tests.conftest import url_of
from tests.tiers import matrix

ROOT = Path(__file__).parents[2]
TASKS = 20_000
PLAIN = {"NO_COLOR": "1", "COLUMNS": "200"}


@pytest.fixture(params=matrix("sqlite", "postgres"))
def full(request: pytest.FixtureRequest) -> App:
    """Return an application with 20,000 waiting tasks, for each kind of store."""
    app = App(url_of(request.param, request))
    pay = idle(app, "pay")
    app.migrate()
    later = datetime.now(UTC) + timedelta(days=1)
    pay.options(run_at=later).submit_many([{"n": n} for n in range(TASKS)])
    request.addfinalizer(app.close)
    return app


def command(app: App, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fairlead", *words, "--url", app.url, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **PLAIN},
    )


def retry(app: App) -> subprocess.Popen[str]:
    return command(app, "tasks", "retry", "--all", "--state", "WAITING", "--yes", "--actor", "Ada")


def progress(process: subprocess.Popen[str], batches: int) -> dict[str, Any]:
    """Return the last of so many lines of progress."""
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(batches)]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def resumptions(app: App) -> Steps[list[int]]:
    """Return how often each task was made to run."""
    rows = yield Statement("SELECT count(*) FROM fairlead_events GROUP BY task_id")
    return [row[0] for row in rows]


def judge(app: App, id: int, resumed: dict[str, Any]) -> None:
    assert (resumed["state"], resumed["looked"]) == ("done", TASKS)
    assert (resumed["changed"], resumed["refused"]) == (TASKS, 0)
    assert app.management.actions.show(id).changed == TASKS
    counts = app.operate_context.store.database.read_now(resumptions(app))
    assert counts == [1] * TASKS


def test_a_killed_command_is_resumed_and_changes_each_task_once(full: App) -> None:
    process = retry(full)
    seen = progress(process, 9)
    process.kill()
    process.wait()
    left = full.management.actions.show(seen["action"])
    assert left.state == ActionState.RUNNING and left.actor == "Ada"
    assert seen["looked"] <= left.looked == left.changed < TASKS
    refused = command(full, "actions", "resume", str(left.id))
    assert "is performed by" in refused.communicate()[1] and refused.returncode == 1
    resumed = command(full, "actions", "resume", str(left.id), "--take-over")
    judge(full, left.id, json.loads(resumed.communicate()[0]))
    assert resumed.returncode == 0


def test_commands_show_and_interrupt_actions_and_list_what_people_did(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'tasks.db'}")
    app.migrate()
    management = app.management
    id = management.actions.ask(Cancel(actor="Ada"), management.where(queue="mail")).id
    stopped = command(app, "actions", "interrupt", str(id), "--actor", "Bob")
    assert json.loads(stopped.communicate()[0])["state"] == "interrupted"
    (shown,) = json.loads(command(app, "actions").communicate()[0])["rows"]
    assert shown["where"]["queue"] == "mail"
    assert json.loads(shown["change"]) == {"verb": "cancel", "actor": "Ada"}
    noted = json.loads(command(app, "audit", "--action", str(id)).communicate()[0])["rows"]
    assert [(entry["actor"], entry["verb"]) for entry in noted] == [
        ("Bob", "interrupt_action"),
        ("Ada", "cancel"),
    ]
    unknown = command(app, "actions", "resume", "99")
    assert "no bulk action 99" in unknown.communicate()[1]
    app.close()
