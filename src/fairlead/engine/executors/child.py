"""The child process of the process executor: read jobs from its input, write results to its
output."""

from __future__ import annotations

import contextvars
import ctypes
import importlib
import os
import signal
import sys
from typing import Any, BinaryIO

import msgspec

from fairlead.clock import to_datetime, to_micros
from fairlead.core.payload import unpack
from fairlead.declare.current import CurrentTask, set_run
from fairlead.declare.handler import entered, overridden
from fairlead.engine.executors.process import _LENGTH, Job, JobEnd
from fairlead.engine.outcome import HOPELESS, encoded, error_text, error_type
from fairlead.errors import (
    InvalidDelay,
    Retry,
    Snooze,
    UnknownTask,
    check_after,
    check_reset_tries,
    check_until,
)

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def serve(application: Any, source: BinaryIO, sink: BinaryIO) -> None:
    """Run jobs one after another until the input ends."""
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        job = msgspec.json.decode(source.read(_LENGTH.unpack(head)[0]), type=Job)
        # In a copy, so that no other handler sees the context variables of this one.
        job_end = msgspec.json.encode(contextvars.copy_context().run(_run, application, job))
        sink.write(_LENGTH.pack(len(job_end)) + job_end)
        sink.flush()


def _run(application: Any, job: Job) -> JobEnd:
    deadline = None if job.deadline is None else to_datetime(job.deadline)
    task = CurrentTask(
        job.id,
        job.name,
        job.queue,
        job.version,
        job.attempt,
        job.tries,
        job.priority,
        job.fairness_key,
        job.context,
        deadline,
        job.ready_at,
        job.started_at,
        job.fence,
    )
    set_run(task)
    try:
        if (handler := application.handlers.get(job.name)) is None:
            raise UnknownTask(
                f"no task named {job.name!r} is registered in the child's application"
            )
        args, kwargs = handler.arguments.decode(unpack(job.payload, job.payload_format))
        with entered(overridden(application.interceptors, "in_child"), task):
            result = handler.function(*args, **kwargs)
        kept = encoded(result, handler.keep_result, handler.result_limit)
        return JobEnd() if kept is None else JobEnd(result=msgspec.Raw(kept))
    except BaseException as error:
        return _failed(error)
    finally:
        set_run(None)


def _failed(error: BaseException) -> JobEnd:
    """Return the end of a job that raised. Raises nothing."""
    try:
        if isinstance(error, Snooze):
            until = check_until(getattr(error, "until", None))
            return JobEnd(snooze_until=to_micros(until))
        if isinstance(error, Retry):
            return JobEnd(
                retry=True,
                retry_after=check_after(getattr(error, "after", None)),
                reset_tries=check_reset_tries(getattr(error, "reset_tries", False)),
            )
    except BaseException as wrong:
        if type(wrong) is InvalidDelay:
            error = wrong  # any other error only shows that `error` cannot be read
    return JobEnd(
        error_type=error_type(error),
        error_text=error_text(error),
        is_hopeless=issubclass(type(error), HOPELESS),
    )


def private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the pipes to the worker away from standard input and output, and return them. Neither
    the handler nor a process that it starts can read jobs, write frames, or keep a pipe open."""
    null = os.open(os.devnull, os.O_RDWR)
    pipes = os.dup(0), os.dup(1)
    os.dup2(null, 0)
    os.dup2(2, 1)

    def close_pipes() -> None:
        for pipe in pipes:
            os.dup2(null, pipe, inheritable=False)

    os.register_at_fork(after_in_child=close_pipes)
    return os.fdopen(pipes[0], "rb"), os.fdopen(pipes[1], "wb")


def end_with_parent() -> None:
    """Let the kernel kill this process when its worker ends, because other nodes then run its task.
    Does nothing where the kernel is not Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """`python -m fairlead.engine.executors.child MODULE:APP`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    source, sink = private_pipes()
    module, _, attribute = sys.argv[1].partition(":")
    application = getattr(importlib.import_module(module), attribute or "app")
    serve(application, source, sink)


if __name__ == "__main__":
    main()
