"""The lifespan of an application in real workers: opened before the first task, closed after the
last one, also after a signal; a failure is one line."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fairlead import App
from fairlead.errors import ConfigurationError
from fairlead.testing import drain, running
from tests.end_to_end.test_command_line import start_worker

CODE = """
import os
from contextlib import asynccontextmanager
import fairlead

def note(text):
    os.write(1, f"NOTE {os.getpid()} {text}\\n".encode())  # in one piece, beside other workers

async def lifespan(app):
    note("open lifespan")
    FAIL_START
    yield "client"
    note("close lifespan")
    FAIL_END

app = fairlead.App("sqlite:///shop.db", lifespan=lifespan)

@app.task
def pay() -> None:
    note(f"pay by {app.state}")
"""
EXECUTORS = """
import os
from contextvars import ContextVar
import fairlead

REGION = ContextVar("region", default="nowhere")

async def lifespan(app):
    REGION.set("Crete")
    yield f"pool of {os.getpid()}"

app = fairlead.App(lifespan=lifespan)

@app.task(keep_result=True)
async def on_loop() -> str:
    return f"{app.state} in {REGION.get()}"

@app.task(keep_result=True)
def in_thread() -> str:
    return f"{app.state} in {REGION.get()}"

@app.task(keep_result=True, executor="process")
def in_child() -> str:
    return f"{app.state} in {REGION.get()}"
"""
SOON = 600.0  # seconds; a guard against a hang, not a measure


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    app.migrate()
    app.close()
    return tmp_path


def write(folder: Path, start: str = "pass", end: str = "pass") -> None:
    (folder / "shop.py").write_text(CODE.replace("FAIL_START", start).replace("FAIL_END", end))


def submit(folder: Path) -> None:
    app = App(f"sqlite:///{folder / 'shop.db'}")
    app.task(name="pay")(lambda: None).submit()
    app.close()


def notes(output: str) -> dict[str, list[str]]:
    """Return the notes of each process, by pid."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        if line.startswith("NOTE "):
            _, pid, text = line.split(" ", 2)
            found.setdefault(pid, []).append(text)
    return found


def stopped(
    folder: Path, *options: str, number: signal.Signals, when: Callable[[list[str]], bool]
) -> list[str]:
    """Run a worker until `when` accepts its lines, then send it the signal; return all lines."""
    worker = start_worker(folder, *options, stderr=subprocess.DEVNULL)
    assert worker.stdout is not None
    late = threading.Timer(SOON, worker.kill)
    late.start()
    lines = []
    try:
        for line in worker.stdout:
            lines.append(line)
            if when(lines):
                break
        worker.send_signal(number)
        lines += [*worker.stdout]
        assert worker.wait() == 0
    finally:
        late.cancel()
        worker.kill()
        worker.wait()
        worker.stdout.close()
    return lines


WHOLE = ["open lifespan", "pay by client", "close lifespan"]


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["alone", "supervised"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_it(folder: Path, workers: tuple[str, ...], number: signal.Signals) -> None:
    submit(folder)

    def has_run(lines: list[str]) -> bool:
        opened = sum("open lifespan" in each for each in lines)
        return any(" pay" in each for each in lines) and opened == (2 if workers else 1)

    lines = stopped(folder, *workers, number=number, when=has_run)
    found = sorted(notes("".join(lines)).values(), key=len)
    assert found[-1] == WHOLE, "".join(lines)
    assert found[:-1] == ([["open lifespan", "close lifespan"]] if workers else [])


@pytest.mark.parametrize("workers", [(), ("--workers", "1")], ids=["alone", "supervised"])
def test_a_failure_at_the_start_ends_the_worker_with_one_line(
    folder: Path, workers: tuple[str, ...]
) -> None:
    write(folder, start="raise ConnectionError('no cache server')")
    submit(folder)
    worker = start_worker(folder, *workers, "--log-level", "error", stderr=subprocess.PIPE)
    output, errors = worker.communicate(timeout=SOON)
    assert worker.returncode == 1
    assert errors.splitlines() == [
        "fairlead: the lifespan failed at the start of the worker: ConnectionError: no cache server"
        f" ({folder / 'shop.py'}:11)"
    ]
    assert "pay" not in output


def test_a_failure_at_the_end_shows_in_the_exit_code(folder: Path) -> None:
    write(folder, end="raise OSError('cannot flush')")
    submit(folder)
    worker = start_worker(folder, "--until-empty", "--log-level", "error", stderr=subprocess.PIPE)
    output, errors = worker.communicate(timeout=SOON)
    assert worker.returncode == 1
    assert "failed at the end of the worker: OSError: cannot flush" in errors
    assert [*notes(output).values()] == [WHOLE]


def test_a_reloaded_worker_closes_and_opens_it_again(folder: Path) -> None:
    pytest.importorskip("watchfiles", reason="needs the extra reload")
    submit(folder)

    def is_reloaded(lines: list[str]) -> bool:
        if " pay" in lines[-1]:
            write(folder, start="note('reloaded')")
        return "reloaded" in lines[-1]

    lines = stopped(folder, "--reload", number=signal.SIGINT, when=is_reloaded)
    first, second = notes("".join(lines)).values()
    assert (first, second) == (WHOLE, ["open lifespan", "reloaded", "close lifespan"])


async def test_a_test_runs_it_too_and_no_error_is_hidden(sqlite_url: str) -> None:
    calls = []

    class Hiding:
        async def __aenter__(self) -> None:
            calls.append("open")

        async def __aexit__(self, *error: object) -> bool:
            calls.append("close")
            return True

    app = App(sqlite_url, lifespan=lambda app: Hiding())
    app.migrate()

    @app.task
    async def pay() -> None:
        calls.append("pay")

    pay.submit()
    await drain(app)
    assert calls == ["open", "pay", "close"]
    with pytest.raises(KeyError):
        async with running(app):
            raise KeyError
    app.close()


async def test_handlers_of_every_executor_get_what_it_yields(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state_app.py").write_text(EXECUTORS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FAIRLEAD_URL", sqlite_url)
    module = importlib.import_module("state_app")
    try:
        module.app.migrate()
        handles = [task.submit() for task in (module.on_loop, module.in_thread, module.in_child)]
        await drain(module.app, application="state_app:app")
        here = os.getpid()
        *found, of_child = [handle.result() for handle in handles]
        assert found == [f"pool of {here} in Crete"] * 2
        assert of_child.endswith(" in Crete") and of_child not in found
    finally:
        module.app.close()
        del sys.modules["state_app"]


async def test_its_state_exists_while_it_is_open(sqlite_url: str) -> None:
    async def lifespan(app: App) -> AsyncIterator[str]:
        yield "pool"

    app = App(sqlite_url, lifespan=lifespan)
    app.migrate()
    with pytest.raises(ConfigurationError, match="read it in a task that a worker runs"):
        _ = app.state
    async with running(app):
        assert app.state == "pool"
    with pytest.raises(ConfigurationError, match="read it in a task that a worker runs"):
        _ = app.state
    app.close()
