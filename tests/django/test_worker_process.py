"""`manage.py fairlead worker` as a process that is killed or stopped, or has no tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.db import connections

from fairlead.contrib.django.compat import TaskResultStatus
from fairlead.contrib.django.models import Task
from tests.django import sample_tasks as tasks
from tests.django.conftest import ON_SQLITE, ROOT, SHOP
from tests.django.test_project import manage


@tasks.task
def wait_for_line(fifo: str, name: str) -> None:
    """Say in a named pipe that the task runs, and wait for a line of another one."""
    Path(f"{fifo}.in").write_text(name)
    Path(f"{fifo}.out").read_text()
    Group.objects.create(name=name)


@tasks.task(transactional=True)
def make_once(name: str) -> None:
    Group.objects.create(name=name)


def environment_of(url: str) -> dict[str, str]:
    return {
        **os.environ,
        "SHOP_DATABASE": url if url.startswith("postgresql") else url.removeprefix("sqlite:///"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), str(SHOP)]),
        "DJANGO_SETTINGS_MODULE": "site_of_tests",
    }


@contextmanager
def worker(url: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start a worker that knows the tasks of this module."""
    text = "from shop_site.settings import *\nFAIRLEAD = {'MODULES': [%r]}\n"
    (folder / "site_of_tests.py").write_text(text % __name__)
    environment = environment_of(url)
    environment["PYTHONPATH"] += os.pathsep + str(folder)
    command = [sys.executable, str(SHOP / "manage.py"), "fairlead", "worker", *options]
    process = subprocess.Popen(
        command, env=environment, text=True, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    for end in ("in", "out"):
        os.mkfifo(tmp_path / f"fifo.{end}")
    return str(tmp_path / "fifo")


@ON_SQLITE
def test_a_worker_that_is_killed_loses_no_task(database: str, fifo: str, tmp_path: Path) -> None:
    result = wait_for_line.enqueue(fifo, "one")
    others = [make_once.enqueue(f"group {n}") for n in range(20)]
    connections.close_all()
    with worker(database, tmp_path) as first:
        assert Path(f"{fifo}.in").read_text() == "one"
        first.kill()
        first.wait()
    with worker(database, tmp_path) as second:
        assert Path(f"{fifo}.in").read_text() == "one"  # after the heartbeats have stopped
        Path(f"{fifo}.out").write_text("go on")
        second.send_signal(signal.SIGTERM)
        assert second.wait() == 0
    with worker(database, tmp_path, "--until-empty") as third:
        assert third.wait() == 0
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2)
    assert result.errors[0].exception_class.__name__ == "NodeLost"
    for each in others:
        each.refresh()
        assert each.status == TaskResultStatus.SUCCESSFUL, each.errors
    assert Group.objects.count() == 21 and not Task.objects.exists()


@ON_SQLITE
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_worker_that_is_stopped_ends_its_task_first(
    number: signal.Signals, database: str, fifo: str, tmp_path: Path
) -> None:
    result = wait_for_line.enqueue(fifo, "one")
    connections.close_all()
    with worker(database, tmp_path) as process:
        assert Path(f"{fifo}.in").read_text() == "one"
        process.send_signal(number)
        Path(f"{fifo}.out").write_text("go on")
        _, errors = process.communicate()
        assert process.returncode == 0 and "Traceback" not in errors and "Task id=" not in errors
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 1)


@pytest.mark.parametrize(
    "command",
    [("worker", "--until-empty"), ("tasks",)],
    ids=lambda each: each[0],
)
def test_a_command_before_migrate_names_the_cure(command: tuple[str, ...], tmp_path: Path) -> None:
    ended = manage(f"sqlite:///{tmp_path / 'new.sqlite3'}", "fairlead", *command)
    text = ended.stdout + ended.stderr
    assert ended.returncode != 0 and "manage.py migrate" in text and "Traceback" not in text, text
