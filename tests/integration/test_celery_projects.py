"""Projects of others that use Celery: their own test suites pass after their imports were changed."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tiers import NIGHTLY

pytestmark = NIGHTLY  # a long run: it fetches the projects from PyPI


class Project(NamedTuple):
    """A project on PyPI whose source distribution has its tests."""

    name: str
    requirements: tuple[str, ...]
    """Packages that it needs besides Django."""
    command: tuple[str, ...]
    """Module and arguments that run its tests."""
    passed: str
    """Text that the run prints, as with Celery itself."""
    files: Mapping[str, str] = {}
    """Files that its tests need and its distribution lacks."""


PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg=="
EDX_SETTINGS = """
from fairlead.contrib.celery import Celery

SECRET_KEY = "x"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["celery_utils"]
app = Celery("edx", task_always_eager=True)
"""
EDX_TASKS = """
from celery_utils.logged_task import LoggedTask
from celery_utils.persist_on_failure import PersistOnFailureTask
from celery import shared_task


@shared_task(base=LoggedTask)
def simple_logged_task(a, b, c):
    return a + b + c


@shared_task(base=LoggedTask)
def failed_logged_task():
    raise ValueError


@shared_task(base=PersistOnFailureTask)
def fallible_task(message=None):
    if message is not None:
        raise ValueError(message)
"""
POST_OFFICE = (
    "admin",
    "backends",
    "cache",
    "commands",
    "forms",
    "models",
    "tasks",
    "utils",
    "views",
)

PROJECTS = (
    Project(
        "django-celery-email==3.0.0",
        ("django-appconf",),
        (
            "django",
            "test",
            "tests",
            "--settings=tests.settings",
            "--testrunner=tests.DJCETestSuiteRunner",
        ),
        "Ran 25 tests",
        {"tests/image.png": PICTURE},
    ),
    Project(
        "django-post-office==3.12.0",
        ("nh3",),
        (
            "django",
            "test",
            *(f"tests.test_{each}" for each in POST_OFFICE),
            "--settings=tests.test_settings",
        ),
        "OK",
        {"tests/__init__.py": "", "tests/static/dummy.png": PICTURE},
    ),
    Project(
        "edx-celeryutils==2.0.0",
        ("django-model-utils", "jsonfield", "pytest-django"),
        ("pytest", "-q", "-p", "no:cacheprovider", "--ds=test_settings", "tests"),
        "8 passed",
        {
            "test_settings.py": EDX_SETTINGS,
            "test_utils/__init__.py": "",
            "test_utils/tasks.py": EDX_TASKS,
        },
    ),
)


def pip(*arguments: str) -> None:
    """Call pip; skip the test if it cannot fetch something."""
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs projects of PyPI: pip {' '.join(arguments[:1])}: {done.stderr[-300:]}")


@pytest.mark.parametrize("project", PROJECTS, ids=lambda each: each.name.partition("==")[0])
def test_the_suite_of_a_project_passes_with_changed_imports(
    project: Project, tmp_path: Path
) -> None:
    pytest.importorskip("django", reason="Django is not installed: pip install django")
    name = project.name.partition("==")[0]
    pip("download", "--no-deps", "--no-binary", name, "-d", str(tmp_path), project.name)
    pip("install", "--no-deps", "--target", str(tmp_path / "lib"), *project.requirements)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as found:
        found.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    for path, text in project.files.items():
        (source / path).parent.mkdir(exist_ok=True)
        data = base64.b64decode(text) if path.endswith(".png") else text.encode()
        (source / path).write_bytes(data)
    changed = 0
    for path in source.rglob("*.py"):
        before = path.read_text()
        after = re.sub(r"(?m)^( *)from celery\b", r"\1from fairlead.contrib.celery", before)
        after = re.sub(r"(?m)^( *)import celery\b", r"\1from fairlead.contrib import celery", after)
        path.write_text(after)
        changed += before != after
    assert changed
    done = subprocess.run(
        [sys.executable, "-m", *project.command],
        cwd=source,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "DJANGO"))},
            "PYTHONPATH": os.pathsep.join([str(source), str(tmp_path / "lib")]),
            "FAIRLEAD_URL": f"sqlite:///{tmp_path}/tasks.db",
        },
        capture_output=True,
        text=True,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0 and project.passed in output, output[-3000:]
