"""The child process of the process executor: read jobs from its input, write results to its
output."""

from __future__ import annotations

import contextvars
import ctypes
import importlib
import os
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

import msgspec

from fairlead import errors
from fairlead.clock import SYSTEM_CLOCK, to_micros
from fairlead.declare.current import set_run
from fairlead.declare.handler import entered, overridden
from fairlead.declare.notes import Notes
from fairlead.engine.executors.process import (
    _LENGTH,
    CheckpointEnd,
    Job,
    JobCheckpoint,
    JobEnd,
    JobProgress,
)
from fairlead.engine.executors.run_log import collecting
from fairlead.engine.lifecycle import in_child
from fairlead.engine.outcome import HOPELESS, encoded, error_text, error_type
from fairlead.engine.run import Run
from fairlead.errors import (
    FairleadError,
    InvalidDelay,
    LifespanFailed,
    Retry,
    Snooze,
    check_after,
    check_reset_tries,
    check_until,
)
from fairlead.model import Trigger

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


_PROGRESS_SECONDS = 0.5
"""Seconds between two messages of progress to the worker, which writes once a second."""


class Worker:
    """The pipes to the worker. A `fairlead.declare.notes.Reporter` for the handler that runs."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._lock = threading.Lock()
        self._running: Notes | None = None
        """Notes of the job under way; messages about another job are dropped."""
        self._is_reporting = False
        """Whether a thread sends progress."""

    def next(self) -> Job | None:
        """Return the next job; None when the worker has closed the pipe."""
        if (frame := self._receive()) is None:
            return None
        return msgspec.json.decode(frame, type=Job, strict=False)  # SQLite has 0 and 1 for a bool

    def begin(self, notes: Notes) -> None:
        """Take messages about this job from now on."""
        with self._lock:
            self._running = notes

    def end(self, job_end: JobEnd) -> None:
        """Send the last progress and the end of the job."""
        with self._lock:
            self._send_progress()
            self._running = None
            self._send(job_end)

    def now(self) -> int:
        return SYSTEM_CLOCK.now()

    def report(self, notes: Notes) -> None:
        with self._lock:
            if not self._is_reporting:
                self._is_reporting = True
                threading.Thread(target=self._send_regularly, daemon=True).start()

    def store(self, notes: Notes, value: bytes) -> None:
        with self._lock:
            if notes is not self._running:
                raise errors.StaleVersion(f"the run of task {notes.id} has ended")
            self._send(JobCheckpoint(value))
            if (frame := self._receive()) is None:
                raise errors.StoreUnavailable("the worker has ended")
        stored = msgspec.json.decode(frame, type=CheckpointEnd)
        if stored.error_type is not None:
            kind = getattr(errors, stored.error_type, FairleadError)
            raise kind(stored.error_text)

    async def store_async(self, notes: Notes, value: bytes) -> None:
        self.store(notes, value)

    def _send_regularly(self) -> None:
        while True:
            with self._lock:
                self._send_progress()
            time.sleep(_PROGRESS_SECONDS)

    def _send_progress(self) -> None:
        """Send the last progress, unless it was sent. The caller holds the lock."""
        notes = self._running
        if notes is None or (progress := notes.progress) is None or progress is notes.written:
            return
        notes.written = progress
        self._send(JobProgress(progress.done, progress.total, progress.note))

    def _send(self, message: msgspec.Struct) -> None:
        frame = msgspec.json.encode(message)
        self._sink.write(_LENGTH.pack(len(frame)) + frame)
        self._sink.flush()

    def _receive(self) -> bytes | None:
        if len(head := self._source.read(_LENGTH.size)) < _LENGTH.size:
            return None
        return self._source.read(_LENGTH.unpack(head)[0])


def serve(application: Any, source: BinaryIO, sink: BinaryIO) -> None:
    """Run jobs one after another until the input ends."""
    worker = Worker(source, sink)
    with collecting(any(handler.kept.log for handler in application.handlers.values())):
        while (job := worker.next()) is not None:
            # In a copy, so that no other handler sees the context variables of this one.
            context = contextvars.copy_context()
            worker.end(context.run(_run, application, job, worker))


def _run(application: Any, job: Job, worker: Worker) -> JobEnd:
    handler, claimed = application.handlers.get(job.name), job.claimed
    trigger = Trigger(
        claimed.id,
        claimed.version,
        job.queue,
        0,
        job.name,
        job.priority,
        job.fairness_key,
        1.0,
        None,
    )
    reporter = worker if job.keeps_notes else None
    run = Run(trigger, claimed, handler, reporter=reporter)
    run.start(job.started_at)
    notes = run.current.notes
    worker.begin(notes)
    job_end = _call(application, run)
    if notes.log is None:
        return job_end
    lines, dropped = notes.log.kept()
    return msgspec.structs.replace(job_end, lines=lines, dropped=dropped)


def _call(application: Any, run: Run) -> JobEnd:
    set_run(run)
    try:
        args, kwargs = run.arguments()
        handler = run.handler
        assert handler is not None
        with entered(overridden(application.interceptors, "in_child"), run.current):
            result = handler.function(*args, **kwargs)
        kept = encoded(result, handler, handler.kept.result)
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
    if application.lifespan is None:
        serve(application, source, sink)
        return
    try:
        with in_child(application.lifespan) as context:
            context.run(serve, application, source, sink)
    except LifespanFailed as error:
        sys.exit(f"fairlead: {error}")


if __name__ == "__main__":
    main()
