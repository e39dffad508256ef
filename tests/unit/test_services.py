"""The PostgreSQL server that tests and benchmarks start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from services import MissingProgram, postgres
from services.postgres import PostgresServer

ROOT = Path(__file__).parents[2]

needs_postgres = pytest.mark.usefixtures("postgres_server")


def until_gone(pid: int, seconds: float = 20) -> bool:
    """Return whether the process ends within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_the_error_about_a_missing_program_is_one_line_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres.glob, "glob", lambda _: [])
    with pytest.raises(
        MissingProgram, match=r"^PostgreSQL's server is missing: apt-get install postgresql$"
    ):
        PostgresServer()


@needs_postgres
def test_the_command_prints_the_url_and_runs_until_it_is_stopped() -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "services", "postgres"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    with command.stdout:
        url = command.stdout.readline().removeprefix("postgres: ").strip()
        with psycopg.connect(url) as connection:
            pid = connection.execute("SELECT pg_backend_pid()").fetchone()[0]
        command.send_signal(signal.SIGTERM)
        assert command.wait(30) == 0
    assert until_gone(pid, 1)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_an_unknown_service_exits_with_the_code_of_wrong_use() -> None:
    command = subprocess.run(
        [sys.executable, "-m", "services", "oracle"], cwd=ROOT, capture_output=True, text=True
    )
    assert (command.returncode, command.stderr) == (
        2,
        "unknown server oracle; use one of postgres, redis, zookeeper, kafka, cassandra\n",
    )
