"""`fairlead demo` from the command line: it ends by itself, reports correct figures and leaves
nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead import App
from fairlead.lab.demo import TENANTS, DemoSettings, workload
from tests.end_to_end.test_command_line import fairlead_here
from tests.waiting import wait_until


def demo(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "fairlead", "demo", *map(str, arguments)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment)


def test_the_demo_ends_soon_by_default_and_leaves_nothing_behind(tmp_path: Path) -> None:
    began = time.monotonic()
    done = demo(tmp_path / "temporary")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 30  # about 8 s on two idle cores
    assert list((tmp_path / "temporary").iterdir()) == []
    assert all(tenant in done.stdout for tenant in TENANTS)
    assert "3,000 of 3,000 submitted" in done.stderr


def test_the_figures_of_the_report_follow_from_the_workload(tmp_path: Path) -> None:
    done = demo(tmp_path / "temporary", "--tasks", 1500, "--seconds", 1, "--seed", 7, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    planned = workload(DemoSettings(1500, 1, 7))
    # A task has three attempts: after one or two failures it succeeds, after three it goes to ERROR.
    failures = {
        tenant: sum(min(task.fails, 3) for task in planned if task.tenant == tenant)
        for tenant in TENANTS
    }
    errors = {
        tenant: sum(task.fails >= 3 for task in planned if task.tenant == tenant)
        for tenant in TENANTS
    }
    tasks = {tenant: sum(task.tenant == tenant for task in planned) for tenant in TENANTS}
    for tenant in result["tenants"]:
        name = tenant["tenant"]
        assert (tenant["tasks"], tenant["failures"], tenant["errors"]) == (
            tasks[name],
            failures[name],
            errors[name],
        )
        assert tenant["attempts"] == tasks[name] + failures[name] - errors[name]
    assert result["total"]["tasks"] == 1500
    assert result["total"]["errors"] == sum(errors.values()) > 0


def test_the_file_is_kept_when_asked_for_and_never_overwritten(tmp_path: Path) -> None:
    kept = tmp_path / "kept.db"
    done = demo(tmp_path / "temporary", "--tasks", 50, "--seconds", 0, "--keep", kept, "--json")
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)["total"]["errors"]
    assert len(App(f"sqlite:///{kept}").management.find(state="ERROR")) == errors

    before = kept.read_bytes()
    done = demo(tmp_path / "temporary", "--keep", kept)
    assert done.returncode == 2
    assert "exists" in done.stderr
    assert kept.read_bytes() == before


@pytest.mark.parametrize(
    "arguments", [["--seconds", "-1"], ["--seconds", "nan"], ["--tasks", "0"], ["--workers", "0"]]
)
def test_wrong_use_exits_with_code_2(tmp_path: Path, arguments: list[str]) -> None:
    fairlead_here(tmp_path, "demo", *arguments, exits=2)


def workers_below(folder: Path) -> list[int]:
    """Return the worker processes of demos whose temporary folder is inside `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                environ = (process / "environ").read_bytes()
            except OSError:
                continue
            if f"FAIRLEAD_URL=sqlite:///{folder}".encode() in environ:
                found.append(int(process.name))
    return found


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="needs /proc, which only Linux has"
)
@pytest.mark.parametrize("signal_sent", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_is_left_when_the_demo_is_stopped_or_killed(
    tmp_path: Path, signal_sent: signal.Signals
) -> None:
    def wait(workers: int) -> None:
        wait_until(lambda: len(workers_below(tmp_path)) == workers)

    command = [sys.executable, "-m", "fairlead", "demo", "--seconds", "60"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        try:
            wait(DemoSettings.workers)
            time.sleep(1)
            running.send_signal(signal_sent)
            _, errors = running.communicate(timeout=30)
        finally:
            running.kill()
    wait(0)
    if signal_sent is signal.SIGINT:
        assert running.returncode == 130 and "Traceback" not in errors
        assert list(tmp_path.iterdir()) == []
