"""`fairlead worker --reload` runs the code as it is now."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("watchfiles", reason="needs the extra reload")
from fairlead import App  # noqa: E402
from fairlead.cli import reload  # noqa: E402
from fairlead.errors import ConfigurationError  # noqa: E402
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


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fairlead\[reload\]'"):
        reload.run_again(["worker", "shop:app"], 1.0)
