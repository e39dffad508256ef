"""Processes that tests kill. Each is a fork of one process that has imported the pipeline, so that it
starts at once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.pipeline.erase_until", "tests.pipeline.export_until"])


def exit_code(target: Callable[..., object], *arguments: Any) -> int | None:
    """Run a function in a process of its own, with the present environment. Return its exit code, or
    minus the signal that killed it."""
    process = FORKS.Process(target=_run, args=(dict(os.environ), target, *arguments))
    process.start()
    process.join()
    return process.exitcode


def _run(environment: Mapping[str, str], target: Callable[..., object], *arguments: Any) -> None:
    os.environ.update(environment)
    target(*arguments)
