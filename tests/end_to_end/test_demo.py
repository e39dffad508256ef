"""`fairlead demo` from the command line: it proves four promises and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fairlead import App
from fairlead.lab.demo import PARCELS, SMALL
from tests.waiting import wait_until


def demo(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "fairlead", "demo", *map(str, arguments)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment)


def test_the_demo_shows_four_promises_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = demo(tmp_path / "temporary")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []
    assert [line[:2] for line in done.stdout.splitlines() if line[:1].isdigit()] == [
        "1.",
        "2.",
        "3.",
        "4.",
    ]
    assert "Try next" in done.stdout


def test_each_promise_has_its_proof_and_the_file_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept.db"
    done = demo(tmp_path / "temporary", "--json", "--keep", kept)
    assert done.returncode == 0, done.stderr
    fairness, transactions, kill, history = json.loads(done.stdout)
    for tenant in SMALL:
        assert fairness["fair_s"][tenant] < fairness["fifo_s"][tenant] / 2
    assert (transactions["orders"], transactions["tasks"]) == (1, 1)
    assert kill["done"] == kill["tasks"] == PARCELS
    assert kill["lost_runs"] == kill["running"] > 0
    app = App(f"sqlite:///{kept}")
    in_error = Counter(task.fairness_key for task in app.management.find(state="ERROR"))
    assert {each["tenant"]: each["needs_person"] for each in history["tenants"]} == in_error
    app.close()

    before = kept.read_bytes()
    done = demo(tmp_path / "temporary", "--keep", kept)
    assert done.returncode == 2
    assert "exists" in done.stderr
    assert kept.read_bytes() == before


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

    command = [sys.executable, "-m", "fairlead", "demo"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        try:
            wait(1)
            running.send_signal(signal_sent)
            _, errors = running.communicate(timeout=30)
        finally:
            running.kill()
    wait(0)
    if signal_sent is signal.SIGINT:
        assert running.returncode == 130 and "Traceback" not in errors
        assert list(tmp_path.iterdir()) == []
