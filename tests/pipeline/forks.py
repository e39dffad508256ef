"""Processes that tests kill. Each is a fork of one process that has imported the pipeline, so that it
starts at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.pipeline.erase_until", "tests.pipeline.export_until"])


def exit_code(target: Callable[..., object], *arguments: Any) -> int | None:
    """Run a function in a process of its own; return the exit code, or minus the signal that killed
    the process."""
    process = FORKS.Process(target=target, args=arguments)
    process.start()
    process.join()
    return process.exitcode
