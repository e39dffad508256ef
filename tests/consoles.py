"""The web console in a process of its own, and the workers beside it, as a person starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(
    folder: Path, *words: str, module: str = "fairlead", environment: Mapping[str, str] = {}
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Start a command of `module` that serves the console; yield the process, the base and the token, if it has
    a login."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words, "--port", "0"],
        cwd=folder,
        env=os.environ | {"NO_COLOR": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/(?:login\?token=(\S+))?\n", line)
        assert found is not None, line or process.communicate()
        yield process, found[1], found[2]
    finally:
        process.kill()
        process.wait()


@contextmanager
def working(
    folder: Path, application: str, *words: str, environment: Mapping[str, str] = {}
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker, whose log is worker.log in the folder, and end it with SIGTERM."""
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", "worker", application, "--drain", "1", *words],
            cwd=folder,
            env=os.environ | {"NO_COLOR": "1"} | environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
