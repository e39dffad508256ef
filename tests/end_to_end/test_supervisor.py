"""Several workers under one supervisor: real processes, real signals, on SQLite."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.declare.options import Options
from fairlead.declare.task import Draft
from services.process import free_port
from tests import tiers
from tests.builders import idle
from tests.end_to_end.test_command_line import environment
from tests.waiting import wait_until

SHOP = """
import asyncio, logging.config, os, time
import fairlead
app = fairlead.App("sqlite:///shop.db")
logging.config.dictConfig({"version": 1})  # disables all loggers that exist

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

@app.task
async def pay(n: int) -> None:
    say("paid", n, os.getpid())

@app.task
async def hold(n: int) -> None:
    say("held", n, os.getpid())
    while not os.path.exists("gate"):
        await asyncio.sleep(0.02)

@app.task(executor="process")
def spin(n: int) -> None:
    os.write(2, b"spinning\\n")
    while True:
        time.sleep(0.1)
"""
PATIENCE = 60.0  # timeout in seconds


class Supervised:
    """One `fairlead worker`, with `--workers` unless `workers` is None, and the output of its
    processes."""

    def __init__(self, folder: Path, workers: int | None, *options: str) -> None:
        given = () if workers is None else ("--workers", str(workers))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", "worker", "shop:app", *given]
            + ["--log-format", "json", *options],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._unread: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self._unread.put(line)
        self._unread.put(None)

    def wait_for(self, pattern: str, count: int = 1) -> list[re.Match[str]]:
        """Wait for `count` further lines that match, and return the matches."""
        found: list[re.Match[str]] = []
        while len(found) < count:
            line = self._unread.get(timeout=PATIENCE)
            assert line is not None, f"no {pattern!r} in:\n{''.join(self.lines)}"
            if match := re.search(pattern, line):
                found.append(match)
        return found

    def wait_for_end(self) -> int:
        """Wait until the supervisor and all its processes have ended; return the exit code."""
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive(), "".join(self.lines)
        return self.process.wait(PATIENCE)

    def events(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    def pids(self) -> list[int]:
        """Return the ids of the living worker processes."""
        pid = self.process.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


Start = Callable[..., Supervised]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    app = shop(folder)
    app.migrate()
    app.close()
    started: list[Supervised] = []

    def begin(workers: int | None, *options: str) -> Supervised:
        started.append(Supervised(folder, workers, *options))
        return started[-1]

    yield begin
    (folder / "gate").touch()
    for each in started:
        if each.process.poll() is None:
            each.process.send_signal(signal.SIGTERM)
            each.process.send_signal(signal.SIGTERM)
        each.wait_for_end()


def shop(folder: Path) -> App:
    """Return the application of the shop, to submit its tasks."""
    app = App(f"sqlite:///{folder}/shop.db")
    idle(app, "pay")
    idle(app, "hold")

    @app.task(executor="process")
    def spin(n: int) -> None: ...

    return app


def submit(folder: Path, task: str, count: int) -> None:
    app = shop(folder)
    app.submit_many([Draft(app.handlers[task], (), {"n": n}, Options()) for n in range(count)])
    app.close()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def get_until(port: int, path: str, holds: Callable[[int, str], bool]) -> tuple[int, str]:
    """Repeat the request until `holds` accepts the response."""
    while not holds(*(response := get(port, path))):
        threading.Event().wait(0.02)
    return response


def finished(metrics: str) -> float:
    found = re.findall(r"^fairlead_finished_total\{.*\} ([\d.e+]+)$", metrics, re.MULTILINE)
    return sum(map(float, found))


def test_one_signal_drains_all_workers_and_ready_is_503_meanwhile(
    folder: Path, start: Start
) -> None:
    port = free_port()
    crew = start(2, "--name", "w", "--metrics-port", str(port))
    crew.wait_for("worker is ready", 2)
    status, body = get(port, "/ready")
    assert (status, json.loads(body)["reason"]) == (200, None)
    assert {each["node"].partition("#")[0] for each in json.loads(body)["workers"]} == {
        "w-1",
        "w-2",
    }
    assert get(port, "/live")[0] == 200
    submit(folder, "pay", 20)
    submit(folder, "hold", 2)
    crew.wait_for("held", 2)
    for pid in (*crew.pids(), crew.process.pid):  # every process, as a service manager does
        os.kill(pid, signal.SIGTERM)
    status, body = get_until(
        port, "/ready", lambda status, body: json.loads(body)["reason"] == "draining"
    )
    assert status == 503
    assert get(port, "/live")[0] == 200
    (folder / "gate").touch()
    assert crew.wait_for_end() == 0
    assert sum(line.startswith("paid") for line in crew.lines) == 20
    assert len(crew.events("supervisor starts")) == 1
    stopped = {line["node"].partition("#")[0] for line in crew.events("node stopped")}
    assert stopped == {"w-1", "w-2"}


def test_a_killed_worker_is_started_again_and_no_counter_falls(folder: Path, start: Start) -> None:
    port = free_port()
    crew = start(2, "--metrics-port", str(port))
    crew.wait_for("worker is ready", 2)
    submit(folder, "pay", 20)
    crew.wait_for("paid", 20)
    _, metrics = get_until(port, "/metrics", lambda _, body: finished(body) == 20)
    nodes = set(re.findall(r'^fairlead_in_flight\{node="([^"]+)"\}', metrics, re.MULTILINE))
    assert len(nodes) == 2
    os.kill(crew.pids()[0], signal.SIGKILL)
    crew.wait_for("worker ended and is started again")
    assert get(port, "/ready")[0] == 503
    crew.wait_for("worker is ready")
    assert get(port, "/ready")[0] == 200
    assert finished(get(port, "/metrics")[1]) == 20


def test_no_worker_outlives_a_killed_supervisor(folder: Path, start: Start) -> None:
    crew = start(2, "--drain", "0")
    crew.wait_for("worker is ready", 2)
    submit(folder, "hold", 2)
    crew.wait_for("held", 2)
    crew.process.kill()
    # The pipe of the output is closed when its last process ends.
    assert crew.wait_for_end() == -signal.SIGKILL
    assert len(crew.events("node stopped")) == 2


def test_no_child_process_outlives_a_killed_worker(folder: Path, start: Start) -> None:
    submit(folder, "spin", 1)
    alone = start(None)
    alone.wait_for("spinning")
    alone.process.kill()
    # The pipe of the output is closed when its last process ends.
    assert alone.wait_for_end() == -signal.SIGKILL


@pytest.mark.parametrize(
    "case",
    tiers.matrix(
        (SHOP, ("--queues", "nothing"), "no queue named 'nothing'"),  # the workers raise this error
        ("import nothing_of_that_name", (), "shop cannot be imported"),
        ("1 / 0", (), "shop cannot be imported"),
        ("", (), "shop has no App named 'app'"),
        (SHOP, ("--workers", "0"), "use a whole number from 1 to "),
    ),
)
def test_a_worker_that_cannot_run_ends_the_supervisor_with_one_error(
    folder: Path, start: Start, case: tuple[str, tuple[str, ...], str]
) -> None:
    code, options, expected = case
    (folder / "shop.py").write_text(code)
    crew = start(2, *options)
    assert crew.wait_for_end() == 2
    (line,) = [line for line in crew.lines if line.startswith("fairlead: ")]
    assert expected in line
    assert "fairlead/cli" not in "".join(crew.lines)  # its frames


@tiers.NIGHTLY("a long run: each process is restarted")
def test_a_hangup_replaces_each_worker_by_one_with_the_new_code(folder: Path, start: Start) -> None:
    crew = start(2, "--name", "w")
    crew.wait_for("worker is ready", 2)
    before = {*crew.pids()}
    (folder / "shop.py").write_text(SHOP.replace('"paid"', '"newly paid"'))
    crew.process.send_signal(signal.SIGHUP)
    order = [m[0] for m in crew.wait_for("worker is ready|node stopped", 4)]
    assert order == ["worker is ready", "node stopped"] * 2
    submit(folder, "pay", 4)
    crew.wait_for("newly paid", 4)
    wait_until(lambda: not before & {*crew.pids()})  # an interpreter ends after its node
    # Code that cannot be loaded replaces nothing.
    (folder / "shop.py").write_text("import nothing_of_that_name")
    crew.process.send_signal(signal.SIGHUP)
    crew.wait_for("reload failed")
    (folder / "shop.py").write_text(SHOP)
    submit(folder, "pay", 4)
    crew.wait_for("newly paid", 4)


def test_one_worker_alone_serves_its_health_beside_its_metrics(folder: Path, start: Start) -> None:
    port = free_port()
    crew = start(None, "--metrics-port", str(port))
    crew.wait_for("node started")
    get_until(port, "/ready", lambda status, _: status == 200)
    assert json.loads(get(port, "/live")[1])["live"] is True
    assert "fairlead_in_flight" in get(port, "/metrics")[1]
    submit(folder, "hold", 1)
    crew.wait_for("held")
    crew.process.send_signal(signal.SIGTERM)
    status, body = get_until(port, "/ready", lambda status, _: status == 503)
    assert json.loads(body)["reason"] == "draining"
    (folder / "gate").touch()
    assert crew.wait_for_end() == 0
