"""The child process of the process executor: read jobs from its input, write results to its
output."""

from __future__ import annotations

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


def serve(application: Any, source: BinaryIO, sink: BinaryIO) -> None:
    """Run jobs one after another until the input ends."""
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        job = msgspec.json.decode(source.read(_LENGTH.unpack(head)[0]), type=Job)
        job_end = msgspec.json.encode(_run(application, job))
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
        kept = encoded(result, handler.keep_result)
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


def main() -> None:
    """`python -m fairlead.engine.executors.child MODULE:APP`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Send what handlers print to stderr, so that only results are in the original stdout.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module, _, attribute = sys.argv[1].partition(":")
    application = getattr(importlib.import_module(module), attribute or "app")
    serve(application, sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
