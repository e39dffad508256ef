"""Handlers in child processes keep neither the pipes to their worker nor its standard input."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import State
from fairlead.testing import drain

APP = """
import logging, multiprocessing, os, subprocess, threading
import fairlead

app = fairlead.App()
never = threading.Event()

@app.task(name="reads input", executor="process", keep_result=True, retry=fairlead.NoRetry())
def reads_input() -> str:
    return subprocess.run(["cat"], capture_output=True, text=True).stdout

@app.task(name="leaves a reader", executor="process", retry=fairlead.NoRetry())
def leaves_a_reader() -> None:
    subprocess.Popen(["cat"], stdout=subprocess.DEVNULL)

@app.task(name="dies and leaves a process", executor="process", retry=fairlead.NoRetry())
def dies_and_leaves_a_process() -> None:
    multiprocessing.get_context("fork").Process(target=never.wait, args=(20,)).start()
    os._exit(7)

@app.task(name="plain", executor="process", keep_result=True)
def plain() -> int:
    print("noise on the pipe of the results")
    return os.getpid()

@app.task(name="noted", executor="process", keep_log=True, retry=fairlead.Fixed(0.001, max_attempts=2))
def noted() -> None:
    task = fairlead.current_task()
    logging.getLogger("shop").warning("begins after %s", task.last_checkpoint)
    for n in range(1000):
        task.progress(n, 1000)
    task.progress(1000, 1000, "all")
    if task.last_checkpoint is None:
        task.checkpoint({"row": 7})
        raise ValueError("again")
    try:
        task.checkpoint("x" * 70_000)
    except fairlead.InvalidTask as error:
        logging.getLogger("shop").error("%s", error)

@app.task(name="fenced", executor="process", keep_result=True)
def fenced() -> list[int]:
    task = fairlead.current_task()
    return [task.fence, task.version]
"""


@pytest.fixture
def tasks(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """Yield the names of a module that worker and child processes import."""
    (tmp_path / "child_app.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FAIRLEAD_URL", sqlite_url)
    module = importlib.import_module("child_app")
    module.app.migrate()
    yield vars(module)
    module.app.close()
    del sys.modules["child_app"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("reads_input", None),
        ("leaves_a_reader", None),
        ("dies_and_leaves_a_process", "ended with code 7"),
    ],
)
async def test_a_process_that_a_handler_starts_reads_no_job_and_keeps_no_pipe(
    tasks: dict[str, Any], name: str, error: str | None
) -> None:
    app = tasks["app"]
    odd, plain = tasks[name].submit(), tasks["plain"].submit()
    await drain(app, timeout=10, application="child_app:app", processes=1)
    assert plain.result() not in (None, os.getpid())
    (attempt,) = app.management.attempts(odd.id)
    assert (error or "") in (attempt.error_text or "")
    assert odd.state() == (State.ERROR if error else State.DONE)


async def test_a_child_process_sees_the_fencing_token_of_its_run(tasks: dict[str, Any]) -> None:
    fenced = tasks["fenced"].submit()
    await drain(tasks["app"], timeout=10, application="child_app:app", processes=1)
    fence, version = fenced.result()
    assert fence == version > 0


async def test_a_handler_in_a_child_process_reports_progress_checkpoints_and_log_lines(
    tasks: dict[str, Any],
) -> None:
    app, handle = tasks["app"], tasks["noted"].submit()
    await drain(app, timeout=60, application="child_app:app", processes=1)
    assert handle.state() == State.DONE
    first, second = app.management.notes(handle.id)
    assert first.progress.text == second.progress.text == "1000 of 1000 (100 %): all"
    assert [line.text for line in first.lines] == ["begins after None"]
    assert second.lines[0].text == "begins after {'row': 7}"
    assert "checkpoint_limit" in second.lines[1].text
