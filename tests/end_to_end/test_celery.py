"""Celery's names under real workers that are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.test_command_line import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.system_time]


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

    celery_app.app.declaring.migrate()
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


ON_COMMIT = """
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "own.db"}})
import django
django.setup()
from django.db import transaction
from fairlead.contrib.celery import Celery

app = Celery("shop", url="sqlite:///tasks.db")
app.declaring.migrate()

@app.task
def add(x, y=1):
    return x + y

for fails in (True, False):
    try:
        with transaction.atomic():
            add.delay_on_commit(1, y=2)
            add.apply_async_on_commit((3,), {"y": 4}, priority=9)
            assert app.fairlead.management.count().number == 0
            if fails:
                raise KeyError
    except KeyError:
        pass
    print(app.fairlead.management.count().number)
"""


def test_delay_on_commit_submits_after_djangos_commit_and_never_after_a_rollback(
    tmp_path: Path,
) -> None:
    pytest.importorskip("django", reason="Django is not installed: pip install django")
    done = subprocess.run(
        [sys.executable, "-c", ON_COMMIT],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["0", "2"], done.stderr
