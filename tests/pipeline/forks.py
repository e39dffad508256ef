"""Processes that tests kill. Each is a fork of one process that has imported the pipeline, so that it
starts at once."""

from __future__ import annotations

import inspect
import multiprocessing
import os
from collections.abc import Callable, Mapping
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.pipeline.killed"])


KILLED = 9
"""Exit code of a process that a test ends between two steps."""


def exit_code(target: Callable[..., object], *arguments: Any) -> int | None:
    """Run a function in a process of its own, with the present environment. Return its exit code, or
    minus the signal that killed it."""
    process = FORKS.Process(target=_run, args=(dict(os.environ), target, *arguments))
    process.start()
    process.join()
    return process.exitcode


def die_after(owner: Any, name: str, times: int) -> None:
    """Let this process end with the code KILLED when the function `name` of a class or module has
    returned `times` times."""
    real, taken = getattr(owner, name), 0

    def then_dies(*arguments: Any, **named: Any) -> Any:
        nonlocal taken
        result = real(*arguments, **named)
        taken += 1
        if taken == times:
            os._exit(KILLED)
        return result

    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(then_dies) if is_static else then_dies)


def _run(environment: Mapping[str, str], target: Callable[..., object], *arguments: Any) -> None:
    os.environ.update(environment)
    target(*arguments)
