"""Celery's names under real workers that are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.test_command_line import ROOT, environment

pytestmark = pytest.mark.system_time


def start(url: str, name: str) -> subprocess.Popen[bytes]:
    """Start a worker of the project, named `name` in its environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "fairlead", "worker", "tests.end_to_end.celery_app:app"],
        cwd=ROOT,
        env={**environment(), "TASKS_URL": url, "WORKER": name},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_a_chord_ends_although_the_worker_of_its_header_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    monkeypatch.setenv("TASKS_URL", url)
    monkeypatch.setenv("WORKER", "none")
    from tests.end_to_end import celery_app

    celery_app.app.fairlead.migrate()
    one, body = celery_app.submit()
    first = start(url, "first")
    try:
        assert celery_app.app.AsyncResult(one).get() == 0
        assert celery_app.app.AsyncResult(body).state in ("PENDING", "STARTED")  # it looks again
        first.kill()
        first.wait()
        second = start(url, "second")
        try:
            assert celery_app.app.AsyncResult(body).get() == sum(n * n for n in range(21))
        finally:
            second.terminate()
            second.wait()
    finally:
        first.kill()
        first.wait()
        celery_app.app.close()
