"""`fairlead pipeline` as a person or a cron job runs it: from a file of jobs to a page, and its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app

TASKS = """
from fairlead import App

app = App()

@app.task(name="pay", queue="payouts")
def pay(partner: str, amount: float) -> None:
    if amount > 70:
        raise ValueError(f"no cover for {partner}")
"""


class Ran(NamedTuple):
    """Result of a command."""

    code: int
    stdout: str
    stderr: str


class Workspace:
    """A folder with a task store, a lake and an application in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tasks.py").write_text(TASKS)
        self.environment = {
            **os.environ,
            "FAIRLEAD_URL": f"sqlite:///{folder / 'tasks.db'}",
            "FAIRLEAD_LAKE": str(folder / "lake"),
            "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        }

    def run(self, *arguments: str) -> Ran:
        """Run a command in this process."""
        with chdir(self.folder):
            ran = CliRunner().invoke(app, arguments, env=self.environment)
        return Ran(ran.exit_code, ran.stdout, ran.stderr)

    def done(self, *arguments: str) -> Any:
        """Run a command that must succeed, and return its JSON output."""
        ran = self.run(*arguments, "--json")
        assert ran.code == 0, ran.stderr[-2000:]
        return json.loads(ran.stdout)

    def refused(self, *arguments: str) -> str:
        """Run a command that must be refused, and return its line with cause and cure."""
        ran = self.run(*arguments)
        assert ran.code == 2 and "Traceback" not in ran.stderr, ran.stderr[-2000:]
        return ran.stderr


class OfProcesses(Workspace):
    """A workspace each of whose commands has a process of its own."""

    def run(self, *arguments: str) -> Ran:
        command = [sys.executable, "-m", "fairlead", *arguments]
        ran = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    workspace: Workspace = getattr(request, "param", Workspace)(tmp_path)
    assert workspace.run("migrate").code == 0
    return workspace


@pytest.mark.spark
@pytest.mark.parametrize("workspace", [OfProcesses], ids=["processes"], indirect=True)
def test_the_commands_turn_a_file_of_jobs_into_tables_and_a_page(workspace: Workspace) -> None:
    rows = "".join(f"p{n % 5},{n}.5,{'heavy' if n % 4 else 'light'}\n" for n in range(80))
    (workspace.folder / "jobs.csv").write_text("partner,amount,fairness_key\n" + rows)
    submit = ("pipeline", "submit", "tasks:app", "pay")
    assert workspace.done(*submit, "jobs.csv", "--dry-run")["submission_id"]
    assert workspace.done(*submit, "jobs.csv")["inserted"] == 80
    (workspace.folder / "jobs.csv").rename(workspace.folder / "renamed.csv")
    again = workspace.done(*submit, "renamed.csv")
    assert (again["inserted"], again["is_repeat"]) == (80, True)
    assert workspace.run("worker", "tasks:app", "--until-empty").code == 0
    runs = 70 + 10 * 5  # ten of them fail, five times each
    assert workspace.done("pipeline", "ingest")["attempts"] == runs
    assert workspace.done("pipeline", "ingest")["attempts"] == 0
    built = workspace.done("pipeline", "build")
    assert (built["rows_in"], built["tables"]["silver.tasks"], built["quarantined"]) == (
        runs,
        80,
        0,
    )
    assert built["tables"]["gold.failures"] > 0
    steps = {step["name"]: step for step in workspace.done("pipeline", "maintain")["steps"]}
    assert {name: step["state"] for name, step in steps.items()} == {
        "compact": "done",
        "expire": "done",
        "reconcile": "done",
        "retain": "skipped",
        "check": "done",
    }
    assert steps["reconcile"]["what"] == f"{runs} rows, 2 checks hold"
    assert all(
        found["found"] == found["expected"]
        for found in workspace.done("pipeline", "check")["checks"]
    )
    again = workspace.done("pipeline", "run", "--out", "page.html")  # a build without news
    assert (again["job"], again["rows_in"]) == ("build", 0)
    workspace.done("pipeline", "report")
    page = (workspace.folder / "report.html").read_text()
    assert "heavy" in (workspace.folder / "page.html").read_text()
    assert "no cover for" in page and "heavy" in page
    shown = workspace.done("pipeline", "status")
    assert {run["job"] for run in shown["runs"]} == {
        "ingest",
        "compact",
        "expire",
        "reconcile",
        "build",
        "check",
        "report",
    }
    assert {table["name"]: table["rows"] for table in shown["tables"]}["bronze.attempts"] == runs
    assert shown["readers"][0]["behind"] == 0


def test_errors_about_missing_or_wrong_input_are_one_line(workspace: Workspace) -> None:
    workspace.done("pipeline", "ingest")
    assert "--conf 'memory'" in workspace.refused("pipeline", "build", "--conf", "memory")
    assert "instant 'yesterday'" in workspace.refused("pipeline", "report", "--since", "yesterday")
    (workspace.folder / "bad.toml").write_text("[[slo]]\nid = 1")
    assert "bad.toml" in workspace.refused("pipeline", "build", "--settings", "bad.toml")
    (workspace.folder / "jobs.txt").write_text("")
    submit = ("pipeline", "submit", "tests.pipeline.bulk:app", "pay", "jobs.txt")
    assert "jobs.txt" in workspace.refused(*submit)


def test_the_data_dictionary_can_be_printed_as_json(workspace: Workspace) -> None:
    (attempts,) = [
        table
        for table in workspace.done("pipeline", "tables")
        if table["name"] == "bronze.attempts"
    ]
    assert attempts["key"] == ["store_id", "task_id", "version"]
    assert {"name": "queue", "type": "string"}.items() <= next(
        column for column in attempts["columns"] if column["name"] == "queue"
    ).items()


def test_an_empty_lake_has_nothing_to_report(workspace: Workspace) -> None:
    for command in ("status", "maintain"):
        assert "`fairlead pipeline ingest` makes one" in workspace.refused("pipeline", command)
    assert workspace.done("pipeline", "ingest") | {"seconds": 0} == {
        "attempts": 0,
        "events": 0,
        "files": 0,
        "seconds": 0,
        "more": False,
    }
