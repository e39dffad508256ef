"""The store that a command uses without a URL: the only file with tasks in the folder."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead import App
from fairlead.cli.main import app as commands

run = CliRunner().invoke


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for key in ("FAIRLEAD_URL", "FAIRLEAD_LAKE"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("other.db") as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    connection.close()
    Path("empty.db").touch()
    Path("text.db").write_text("no database")
    Path("folder.db").mkdir()
    return tmp_path


def store(name: str) -> None:
    app = App(f"sqlite:///{name}")
    app.migrate()
    app.task(name="pay")(lambda: None).submit()
    app.close()


def test_the_only_file_with_tasks_is_used_and_named() -> None:
    store("shop tasks.db")
    done = run(commands, ["tasks", "--json"])
    assert done.exit_code == 0, done.output
    assert '"name":"pay"' in done.stdout.replace(" ", "")
    assert "using --url sqlite:///shop tasks.db" in done.stderr
    assert "(no key)" in run(commands, ["tenants"]).stdout  # the name of its only tenant


@pytest.mark.parametrize(
    "command", [["tasks"], ["doctor"], ["queues", "pause", "mail"], ["pipeline", "ingest"]]
)
def test_a_file_that_does_not_exist_is_not_made(command: list[str]) -> None:
    done = run(commands, [*command, "--url", "sqlite:///typo.db"])
    assert done.exit_code == 2
    assert "typo.db: check the URL" in done.stderr
    assert not Path("typo.db").exists() and not Path("lake").exists()


def test_one_of_several_files_must_be_chosen() -> None:
    store("a.db")
    store("b.sqlite3")
    done = run(commands, ["queues"])
    assert done.exit_code == 2
    assert "several files here have tasks: a.db, b.sqlite3" in done.stderr
    assert "--url sqlite:///a.db" in done.stderr


def test_without_a_file_the_error_has_the_line_to_type() -> None:
    done = run(commands, ["queues"])
    assert done.exit_code == 2 and "--url sqlite:///tasks.db" in done.stderr


def test_a_url_that_is_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    store("a.db")
    store("b.db")
    monkeypatch.setenv("FAIRLEAD_URL", "sqlite:///b.db")
    done = run(commands, ["queues"])
    assert done.exit_code == 0 and "using" not in done.stderr
