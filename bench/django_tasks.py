"""Measure tasks of Django projects on one PostgreSQL server: Fairlead, django-tasks-db, and
Procrastinate with its Django connector.

    python bench/django_tasks.py                  # 2,000 tasks each
    python bench/django_tasks.py --tasks 20000

Each project enqueues its tasks one by one through Django, in transactions of 100, and then one
worker process with default settings runs them; the task does nothing. Prints one JSON line for
each: enqueued and run tasks per second, the latter from the first start to the last end that its
tables show. django-tasks-db runs one task at a time in a worker; Procrastinate runs one too by
default, and Fairlead as many as it has threads. The peers live in bench/.venv/django, made at the
first run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
VENV = HERE / ".venv" / "django"
REQUIREMENTS = HERE / "requirements-django.txt"
NAMES = ("fairlead", "django-tasks-db", "procrastinate")
EACH = 100
"""Tasks of one transaction."""

APPS = {
    "fairlead": ["django_tasks", "fairlead.contrib.django"],
    "django-tasks-db": ["django_tasks", "django_tasks_db"],
    "procrastinate": ["procrastinate.contrib.django"],
}
BACKENDS = {
    "fairlead": "fairlead.contrib.django.backend.FairleadBackend",
    "django-tasks-db": "django_tasks_db.DatabaseBackend",
}
WORKERS = {
    "fairlead": ["fairlead", "worker", "--until-empty", "--log-level", "warning"],
    "django-tasks-db": ["db_worker", "--batch", "--interval", "0", "--no-startup-delay"],
    "procrastinate": ["procrastinate", "worker", "--one-shot"],
}
SPANS = {
    "fairlead": "SELECT count(*), (max(finished_at) - min(started_at)) / 1e6 FROM fairlead_attempts"
    " WHERE outcome = 'done'",
    "django-tasks-db": "SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))"
    " FROM django_tasks_database_dbtaskresult WHERE status = 'SUCCESSFUL'",
    "procrastinate": "SELECT count(*) FILTER (WHERE type = 'succeeded'),"
    " extract(epoch FROM max(at) FILTER (WHERE type = 'succeeded')"
    " - min(at) FILTER (WHERE type = 'started')) FROM procrastinate_events",
}
"""Statements that return the number of tasks done, and the seconds from first start to last end."""

SETTINGS = """
DATABASES = {{"default": {database!r}}}
INSTALLED_APPS = {apps!r} + ["sample"]
SECRET_KEY = "only for this benchmark"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {{"default": {{"BACKEND": {backend!r}}}}}
"""
TASKS_OF_DJANGO = """
from django_tasks import task


@task
def noop(number):
    pass
"""
TASKS_OF_PROCRASTINATE = """
from procrastinate.contrib.django import app


@app.task
def noop(number):
    pass
"""
ENQUEUE = """
import sys, time
import django
django.setup()
from django.db import transaction
from sample.tasks import noop

enqueue = noop.defer if hasattr(noop, "defer") else noop.enqueue
enqueue(number=0)
begun = time.perf_counter()
for start in range(1, {tasks}, {each}):
    with transaction.atomic():
        for number in range(start, min(start + {each}, {tasks})):
            enqueue(number=number)
print(time.perf_counter() - begun)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--only", choices=NAMES)
    options = parser.parse_args()
    python = make_venv()
    sys.path.insert(0, str(ROOT))
    from services.postgres import PostgresServer

    with PostgresServer() as server:
        for name in NAMES if options.only is None else [options.only]:
            print(json.dumps(measure(name, server, python, options.tasks)), flush=True)


def make_venv() -> Path:
    """Return the interpreter with the peers, installed if it is missing or out of date."""
    python, stamp = VENV / "bin" / "python", VENV / ".installed"
    text = REQUIREMENTS.read_text()
    if not stamp.is_file() or stamp.read_text() != text:
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(REQUIREMENTS)], check=True)
        constraints = ["-c", str(ROOT / "constraints.txt")]
        subprocess.run([*install, *constraints, "-e", f"{ROOT}[postgres]"], check=True)
        stamp.write_text(text)
    return python


def measure(name: str, server: Any, python: Path, tasks: int) -> dict[str, Any]:
    """Return the figures of one project in a new database."""
    import psycopg

    url = server.create_database()
    with tempfile.TemporaryDirectory() as folder:
        write_project(Path(folder), name, url)
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONPATH": os.pathsep.join([folder, str(ROOT / "src")]),
        }

        def run(*arguments: str) -> tuple[str, float]:
            begun = time.perf_counter()
            done = subprocess.run(
                [str(python), *arguments],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise SystemExit(f"{name}: {arguments}\n{done.stdout}\n{done.stderr}")
            return done.stdout, time.perf_counter() - begun

        run("-m", "django", "migrate", "--verbosity", "0")
        enqueuing = float(run("-c", ENQUEUE.format(tasks=tasks, each=EACH))[0])
        _, working = run("-m", "django", *WORKERS[name])
    with psycopg.connect(url) as connection:
        done, seconds = connection.execute(SPANS[name]).fetchone()
    return {
        "name": name,
        "tasks": tasks,
        "done": done,
        "enqueued_per_second": round((tasks - 1) / enqueuing),
        "run_per_second": round(done / float(seconds)),
        "worker_seconds": round(working, 1),
    }


def write_project(folder: Path, name: str, url: str) -> None:
    """Write a project with one task that does nothing."""
    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": str(parts.port),
        "CONN_MAX_AGE": None,
    }
    backend = BACKENDS.get(name, "django_tasks.backends.dummy.DummyBackend")
    settings = SETTINGS.format(database=database, apps=APPS[name], backend=backend)
    (folder / "settings.py").write_text(settings)
    (folder / "sample").mkdir()
    (folder / "sample" / "__init__.py").touch()
    of_django = name != "procrastinate"
    text = TASKS_OF_DJANGO if of_django else TASKS_OF_PROCRASTINATE
    (folder / "sample" / "tasks.py").write_text(text)


if __name__ == "__main__":
    main()
