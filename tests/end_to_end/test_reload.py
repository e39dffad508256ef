"""`fairlead worker --reload` runs the code as it is now."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("watchfiles", reason="needs the extra reload")
from fairlead import App  # noqa: E402
from tests.end_to_end.test_command_line import start_worker  # noqa: E402

SOON = 60.0

CODE = """
import fairlead
app = fairlead.App("sqlite:///shop.db")

@app.task
def pay() -> None:
    print("VERSION ONE", flush=True)
"""


def test_a_worker_starts_again_after_each_change_also_one_that_does_not_compile(
    tmp_path: Path,
) -> None:
    code = tmp_path / "shop.py"
    code.write_text(CODE)
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    app.migrate()
    pay = app.task(name="pay")(lambda: None)
    pay.submit()
    worker = start_worker(tmp_path, "--reload", stderr=subprocess.STDOUT)
    assert worker.stdout is not None
    late = threading.Timer(SOON, worker.kill)
    late.start()

    def until(text: str) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            if text in line:
                return
        pytest.fail(f"the worker ended without {text!r}")

    try:
        until("VERSION ONE")
        pay.submit()
        until("VERSION ONE")
        code.write_text(CODE.replace("app.task", "app.task(").replace("ONE", "TWO"))
        until("SyntaxError")
        code.write_text(CODE.replace("ONE", "THREE"))
        pay.submit()
        until("VERSION THREE")
        worker.send_signal(signal.SIGINT)
        assert worker.wait() == 0
        assert "THREE" not in worker.stdout.read()  # the pipe is closed: no worker is left
    finally:
        late.cancel()
        worker.kill()
        worker.wait()
        worker.stdout.close()
        app.close()


SLOW = """
import time
import fairlead
app = fairlead.App({url!r})

@app.task
def pay() -> None:
    print("BEGIN ONE", flush=True)
    time.sleep({seconds})
    print("END", flush=True)
"""

MANAGE = """
import sys
from fairlead.cli.main import main
sys.argv = ["fairlead", "worker", "shop:app", "--reload", "--drain", "3600"]
main()
"""
"""A program in the folder of the code, such as manage.py."""


@contextmanager
def reloading(
    tmp_path: Path, seconds: float
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], object], Callable[[str], None]]]:
    """Give the process of a worker whose code is not below the current folder, a submit, and a
    wait for a line."""
    folder, url = tmp_path / "code", f"sqlite:///{tmp_path / 'shop.db'}"
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (folder / "shop.py").write_text(SLOW.format(url=url, seconds=seconds))
    (folder / "manage.py").write_text(MANAGE)
    app = App(url)
    app.migrate()
    pay = app.task(name="pay")(lambda: None)
    source = Path(__file__).parents[2] / "src"
    process = subprocess.Popen(
        [sys.executable, str(folder / "manage.py")],
        cwd=tmp_path / "elsewhere",
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    late = threading.Timer(SOON, process.kill)
    late.start()

    def until(text: str) -> None:
        assert process.stdout is not None
        read = []
        for line in process.stdout:
            read.append(line)
            if text in line:
                return
        pytest.fail(f"the worker ended without {text!r}: {''.join(read)}")

    try:
        yield process, pay.submit, until
    finally:
        late.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
        app.close()


def test_code_in_the_folder_of_the_program_is_found_and_watched(tmp_path: Path) -> None:
    with reloading(tmp_path, 0) as (process, submit, until):
        submit()
        until("BEGIN ONE")
        code = tmp_path / "code" / "shop.py"
        # Python takes code of the same size, changed within a second, for unchanged.
        code.write_text(code.read_text().replace("ONE", "TWO NOW"))
        until("worker starts")
        submit()
        until("BEGIN TWO")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_a_second_signal_ends_a_running_task_at_once(tmp_path: Path) -> None:
    with reloading(tmp_path, 3600) as (process, submit, until):
        submit()
        until("BEGIN ONE")
        process.send_signal(signal.SIGINT)
        until("stopping")
        process.send_signal(signal.SIGINT)
        assert process.wait() != 0
        assert process.stdout is not None
        assert "END" not in process.stdout.read()  # the pipe is closed: no worker is left


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells the end of a parent on Linux")
def test_no_worker_outlives_a_killed_reloader(tmp_path: Path) -> None:
    with reloading(tmp_path, 3600) as (process, submit, until):
        submit()
        until("BEGIN ONE")
        process.kill()
        assert process.stdout is not None
        assert "END" not in process.stdout.read()  # the pipe is closed: no worker is left
