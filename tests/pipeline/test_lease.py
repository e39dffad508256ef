"""One process at a time builds, erases, restores or expires a lake, and a dead one blocks nobody."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from typer.testing import CliRunner

from fairlead.backends.sql.history import SqlHistory
from fairlead.cli.main import app
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.jobs.maintain import Sources, maintain
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import attempt
from tests.pipeline.tables_by_hand import put

HOLD = """
import sys
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.warehouse.lease import lease
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse

with lease(Warehouse(Location.of(*sys.argv[1:])), SYSTEM_CLOCK, "build"):
    print("held", flush=True)
    sys.stdin.read()
"""
runner = CliRunner()
both_catalogs = pytest.mark.parametrize("catalog_url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def lake(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    put(warehouse, ATTEMPTS, [attempt(fairness_key=key) for key in ("acme", "b")])
    monkeypatch.setenv("FAIRLEAD_LAKE", str(warehouse.location.folder))
    monkeypatch.setenv("FAIRLEAD_CATALOG", warehouse.location.catalog)
    return warehouse


@contextmanager
def builder(lake: Warehouse) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has the lease of a build until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, lake.location.lake, lake.location.catalog],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def ran(*arguments: str, code: int = 0) -> str:
    done = runner.invoke(app, ["pipeline", *arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


@both_catalogs
@pytest.mark.parametrize("command", [["build"], ["erase", "acme", "--yes"], ["restore"]])
def test_a_second_process_names_the_first_one_in_one_line(
    lake: Warehouse, command: list[str]
) -> None:
    with builder(lake) as first:
        (line,) = ran(*command, code=1).splitlines()
    assert "another process uses lake" in line and "build since 20" in line
    assert f" UTC, pid {first.pid} on " in line and line.endswith("again when it has ended")


@both_catalogs
def test_a_builder_that_was_killed_blocks_nobody(lake: Warehouse) -> None:
    with builder(lake) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert "bronze.attempts" in ran("erase", "acme", "--yes")


def test_a_dry_run_and_a_compaction_need_no_lease(lake: Warehouse) -> None:
    with builder(lake):
        assert "nothing was changed" in ran("erase", "acme", "--dry-run")
        done = maintain(nightly(lake), skip=("expire", "reconcile", "check"))
    assert not done.failed


def test_the_nightly_work_waits_for_the_end_of_a_build(
    lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, flock = Event(), fcntl.flock

    def locked(descriptor: int, how: int) -> None:
        asked.set()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", locked)
    with builder(lake) as first, ThreadPoolExecutor() as threads:
        night = threads.submit(maintain, nightly(lake), skip=("compact", "reconcile", "check"))
        asked.wait()
        assert not night.done()
        first.kill()
        assert not night.result().failed


def nightly(lake: Warehouse) -> Sources:
    def no_store() -> SqlHistory:
        raise AssertionError

    return Sources(lake, SYSTEM_CLOCK, no_store)
