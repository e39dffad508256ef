"""`fairlead celery-report`: what it finds in the source of a project and in its application."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fairlead.cli.celery_report import celery_report
from fairlead.contrib.celery.report import changes, report
from tests.end_to_end.test_command_line import environment

PROJECT = {
    "shop/__init__.py": "",
    "shop/celery.py": """
        from celery import Celery
        from celery.schedules import crontab

        app = Celery("shop", broker="redis://localhost/0", include=["shop.tasks"])
        app.conf.task_serializer = "pickle"
        app.conf.worker_prefetch_multiplier = 1
        app.conf.update(task_routes={"shop.*": "mail"}, accept_content=["pickle", "json"])
        app.conf.beat_schedule = {
            "clean": {"task": "shop.tasks.clean", "schedule": crontab(minute=0)},
            "odd": {
                "task": "shop.tasks.clean",
                "schedule": crontab(day_of_month=1, day_of_week="mon"),
            },
        }
    """,
    "shop/tasks.py": """
        from celery import shared_task, chain
        from celery.signals import setup_logging
        from kombu import Queue

        @shared_task(bind=True, max_retries=3)
        def clean(self, x=1):
            self.update_state(state="PROGRESS", meta={})
            self.retry(args=[x + 1])

        @shared_task(serializer="pickle")
        def mail(to): ...

        def submit():
            mail.delay({1, 2})
            mail.apply_async(("a",), routing_key="mail.high", countdown=3)
            chain(clean.s(), mail.si("a")).delay()
            mail.apply_async(("a",), compression="gzip")
            app.control.revoke("x")
            app.control.enable_events()
    """,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    return tmp_path


def test_each_line_that_must_change_is_found_with_the_reason_and_the_cure(project: Path) -> None:
    found = report(project / "shop")
    assert [(each.file, each.line, each.what, each.severity) for each in found.findings] == [
        ("celery.py", 5, "setting task_serializer", "change"),
        ("celery.py", 6, "setting worker_prefetch_multiplier", "note"),
        ("celery.py", 12, "crontab(day_of_month=, day_of_week=)", "change"),
        ("tasks.py", 2, "signal setup_logging", "change"),
        ("tasks.py", 3, "import of kombu", "change"),
        ("tasks.py", 10, "serializer='pickle'", "change"),
        ("tasks.py", 14, "a set as argument", "change"),
        ("tasks.py", 15, "routing_key=", "change"),
        ("tasks.py", 17, "compression=", "note"),
        ("tasks.py", 19, ".control.enable_events", "change"),
    ]
    assert all(each.why and each.instead for each in found.findings)
    assert found.carried["task"] == 2 and found.carried["chain"] == 1
    assert found.carried["control.revoke"] == 1
    assert found.application is None and found.files == 3


ATTACK = """
    from celery import Celery, __version__, chunks, group
    from celery.app.task import Task
    from celery.result import GroupResult, ResultSet
    from celery.schedules import crontab, solar
    from celery.signals import task_prerun, task_received
    from celery.utils.functional import noop
    import celery.beat

    app = Celery("shop")
    app.conf.beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"

    @app.task(bind=True, acks_late=False, send_events=True)
    def work(self, other):
        self.update_state(state="PROGRESS", meta={})
        self.update_state(task_id=self.request.id, state="PROGRESS")
        self.update_state(task_id=other, state="PROGRESS")
        raise self.replace(work.s(1))

    def submit(result, text):
        text.replace("a", "b")
        work.chunks([(1,)], 1).apply_async(retry_policy={})
        work.map([1]).delay()
        result.children
        result.get(on_message=print)
        result.forget()
        work.delay(1).then(print)
        GroupResult.restore("x")
        group(work.s(1)).freeze()
        app.worker_main()
        app.control.inspect().active()
"""


def test_what_the_shim_lacks_is_found_on_tasks_results_and_signatures(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(ATTACK).lstrip())
    found = report(tmp_path)
    assert [(each.line, each.what, each.severity) for each in found.findings] == [
        (1, "import of celery.__version__", "change"),
        (4, "import of solar", "change"),
        (5, "signal task_received", "change"),
        (6, "import of celery.utils.functional", "change"),
        (7, "import of celery.beat", "change"),
        (10, "setting beat_scheduler", "change"),
        (12, "acks_late=False", "note"),
        (12, "send_events=", "note"),
        (16, "update_state(task_id=)", "change"),
        (17, ".replace", "change"),
        (21, "retry_policy=", "note"),
        (23, ".children", "change"),
        (24, "get(on_message=)", "change"),
        (25, ".forget", "note"),
        (26, ".then", "change"),
        (27, ".restore", "change"),
        (28, ".freeze", "change"),
        (29, ".worker_main", "change"),
        (30, ".control.inspect", "change"),
    ]
    assert (found.carried["map"], found.carried["chunks"]) == (1, 1)


def test_a_file_that_python_cannot_read_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def (")
    (found,) = report(tmp_path).findings
    assert (found.file, found.line, found.what) == ("bad.py", 1, "cannot be read")


def test_a_project_without_findings_passes(tmp_path: Path) -> None:
    source = "from celery import shared_task\n\n@shared_task\ndef add(x, y):\n    return x + y\n"
    (tmp_path / "tasks.py").write_text(source)
    found = report(tmp_path)
    assert changes(found) == [] and found.carried == {"import of celery": 1, "task": 1}


@pytest.mark.slow
def test_the_command_reads_a_real_celery_application(project: Path) -> None:
    pytest.importorskip("celery", reason="Celery is not installed: pip install celery")
    command = [sys.executable, "-m", "fairlead", "celery-report", "shop.celery:app"]
    done = subprocess.run(
        [*command, "--json"], cwd=project, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["application"]["tasks"] == ["shop.tasks.clean", "shop.tasks.mail"]
    assert found["application"]["periodic"] == ["clean", "odd"]
    by_application = [each["what"] for each in found["findings"] if each["line"] == 0]
    assert by_application == ["beat_schedule['odd']", "serializer 'pickle'", "serializer 'pickle'"]
    done = subprocess.run(
        [*command, "--source-only"], cwd=project, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "tasks.py:14: a set as argument: it is not JSON; instead: use a list" in done.stdout
    assert "8 to change, 2 notes, in 3 files" in done.stdout


def test_the_command_is_documented() -> None:
    assert "Exit code 1" in (celery_report.__doc__ or "")
