"""The watchdog: a real process that kills another one and its children at a deadline."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import App, ClusterLimit, State
from fairlead.engine.liveness import watchdog
from fairlead.testing import running, settled

PATIENCE = 30.0


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


class Watched:
    """A watchdog of a process with one child."""

    def __init__(self) -> None:
        self.worker, self.child = sleeper(), sleeper()
        self.watchdog = subprocess.Popen(
            [sys.executable, "-I", watchdog.__file__, str(self.worker.pid)],
            stdin=subprocess.PIPE,
            bufsize=0,
        )

    def set_deadline(self, line: str) -> None:
        assert self.watchdog.stdin is not None
        self.watchdog.stdin.write(line.encode() + b"\n")

    def close(self) -> None:
        for process in (self.watchdog, self.worker, self.child):
            process.kill()
            process.wait()
        if self.watchdog.stdin is not None:
            self.watchdog.stdin.close()


@pytest.fixture
def watched() -> Iterator[Watched]:
    found = Watched()
    yield found
    found.close()


def test_at_the_deadline_a_worker_and_its_children_are_killed_even_if_they_are_stopped(
    watched: Watched,
) -> None:
    os.kill(watched.worker.pid, signal.SIGSTOP)
    until = time.monotonic() + 1.0
    watched.set_deadline(f"{until} {watched.child.pid}")
    assert watched.worker.wait(PATIENCE) == watched.child.wait(PATIENCE) == -signal.SIGKILL
    assert time.monotonic() >= until
    assert watched.watchdog.wait(PATIENCE) == 0


def test_a_new_deadline_or_none_replaces_the_previous_deadline(watched: Watched) -> None:
    soon = time.monotonic() + 1.0
    watched.set_deadline(f"{soon}")
    watched.set_deadline(f"{soon + 600}")
    watched.set_deadline("-")
    with pytest.raises(subprocess.TimeoutExpired):
        watched.worker.wait(2.0)
    assert watched.watchdog.poll() is None


def test_child_processes_of_a_dead_worker_are_killed(watched: Watched) -> None:
    watched.set_deadline(f"{time.monotonic() + 600} {watched.child.pid}")
    assert watched.watchdog.stdin is not None
    watched.watchdog.stdin.close()
    assert watched.child.wait(PATIENCE) == -signal.SIGKILL
    assert watched.worker.poll() is None


async def test_a_killed_watchdog_is_started_again_with_the_deadline(sqlite_url: str) -> None:
    app = App(sqlite_url)
    app.queue("payouts", concurrency=ClusterLimit(1))
    gate, started = asyncio.Event(), asyncio.Event()

    @app.task(queue="payouts")
    async def pay() -> None:
        started.set()
        await gate.wait()

    pay.submit()
    async with running(app) as node:
        await started.wait()
        first = node.parts.limits._watchdog
        assert first is not None
        first._process.kill()
        async with asyncio.timeout(PATIENCE):
            while (second := node.parts.limits._watchdog) is first or not (
                second and second._last_line
            ):
                await asyncio.sleep(0.02)
        assert float(second._last_line.split()[0]) > time.monotonic()
        gate.set()
        await settled(app, node)
    app.close()


async def test_the_watchdog_knows_a_child_process_before_it_runs_a_handler(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "limited_process.py").write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "from fairlead import App, ClusterLimit\n"
        f"app = App({sqlite_url!r})\n"
        "app.queue('payouts', concurrency=ClusterLimit(1))\n"
        "@app.task(queue='payouts', executor='process')\n"
        "def pay(here: str) -> None:\n"
        "    Path(here, 'pid').write_text(str(os.getpid()))\n"
        "    while not Path(here, 'go').exists(): time.sleep(0.02)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import limited_process

    app: App = limited_process.app
    handle = limited_process.pay.submit(here=str(tmp_path))
    async with running(app, application="limited_process:app") as node:
        async with asyncio.timeout(PATIENCE):
            while not (
                pid := (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
            ):
                await asyncio.sleep(0.02)
        assert node.parts.limits._watchdog is not None
        assert pid in node.parts.limits._watchdog._last_line.decode().split()[1:]
        (tmp_path / "go").touch()
        await settled(app, node)
    assert handle.state() == State.DONE
    app.close()
