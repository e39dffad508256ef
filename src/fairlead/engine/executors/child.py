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
from fairlead.declare.handler import encode_result, entered, overridden
from fairlead.engine.executors.process import _LENGTH, Job, JobEnd
from fairlead.engine.outcome import error_text
from fairlead.errors import Retry, Snooze


def serve(application: Any, source: BinaryIO, sink: BinaryIO) -> None:
    """Run jobs one after another until the input ends."""
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        job = msgspec.json.decode(source.read(_LENGTH.unpack(head)[0]), type=Job)
        answer = msgspec.json.encode(_run(application, job))
        sink.write(_LENGTH.pack(len(answer)) + answer)
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
        handler = application.handlers[job.name]
        args, kwargs = handler.arguments.decode(unpack(job.payload, job.payload_format))
        with entered(overridden(application.interceptors, "in_child"), task):
            result = handler.function(*args, **kwargs)
        return (
            JobEnd(result=msgspec.Raw(encode_result(result))) if handler.keep_result else JobEnd()
        )
    except Snooze as snooze:
        return JobEnd(snooze_until=to_micros(snooze.until))
    except Retry as retry:
        return JobEnd(retry=True, retry_after=retry.after, reset_tries=retry.reset_tries)
    except BaseException as error:
        return JobEnd(error_type=type(error).__qualname__, error_text=error_text(error))
    finally:
        set_run(None)


def main() -> None:
    """`python -m fairlead.engine.executors.child MODULE:APP`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Keep the output of handlers apart from the frames.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module, _, attribute = sys.argv[1].partition(":")
    application = getattr(importlib.import_module(module), attribute or "app")
    serve(application, sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
