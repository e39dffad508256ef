"""CPU-bound handlers in child processes. A child that exceeds its timeout is killed and replaced.

Parent and child exchange frames over pipes: 4 bytes of length, then JSON. The child imports the
application and decodes the payload itself, so that only JSON crosses the pipe.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from fairlead.clock import Clock, to_datetime
from fairlead.engine.executors.loop import Finished
from fairlead.engine.outcome import RemoteError
from fairlead.engine.run import Run
from fairlead.errors import FairleadError, InvalidTask, Retry, Snooze
from fairlead.model import ClaimedTask, LogLine

_LENGTH = struct.Struct(">I")


class ChildDied(FairleadError):
    """The child process of a handler ended unexpectedly (killed, out of memory, sys.exit)."""


class Job(msgspec.Struct, frozen=True):
    """One task for a child to run."""

    name: str
    queue: str
    priority: int
    fairness_key: str
    claimed: ClaimedTask
    """The claimed task; its context is as the interceptors of the worker left it."""
    started_at: int
    """Microseconds since the epoch."""
    keeps_notes: bool
    """Whether the store keeps notes of the run."""


class JobProgress(msgspec.Struct, frozen=True, tag=True):
    """Progress that the handler reported."""

    done: float
    total: float | None
    note: str | None


class JobCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint that the handler stores; the child waits for a `CheckpointEnd`."""

    value: bytes


class CheckpointEnd(msgspec.Struct, frozen=True):
    """Whether the checkpoint was stored, or the error."""

    error_type: str | None = None
    """Name of a class of `fairlead.errors`; None without an error."""
    error_text: str = ""


class JobEnd(msgspec.Struct, frozen=True, tag=True):
    """Outcome of a job: a result as JSON, an error, or a retry or snooze that the handler asked
    for."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error_type: str | None = None
    error_text: str | None = None
    is_hopeless: bool = False
    """Whether no retry can succeed."""
    retry: bool = False
    """Whether the handler raised Retry."""
    retry_after: float | None = None
    """Delay of the retry, in seconds; None for the delay of the retry policy."""
    reset_tries: bool = False
    snooze_until: int | None = None
    """Microseconds since the epoch; None if the handler did not raise Snooze."""
    lines: tuple[LogLine, ...] = ()
    """Log lines of the run."""
    dropped: int = 0
    """Number of earlier lines that were not kept."""


_read = msgspec.json.Decoder(JobEnd | JobProgress | JobCheckpoint).decode


class ProcessExecutor:
    """At most `size` child processes of `python -m fairlead.engine.executors.child MODULE:APP`.
    Each child starts when it is needed and then runs until the node stops."""

    def __init__(
        self,
        clock: Clock,
        size: int,
        application: str | None,
        intercepted: Callable[[Run], AbstractContextManager[object]],
        finished: Finished,
        children_changed: Callable[[], None],
        group: asyncio.TaskGroup,
    ) -> None:
        """`intercepted` returns a context manager, which the executor enters around each run.
        `children_changed` is called when a new child has started, before the child gets a job."""
        self._clock = clock
        self._size = size
        self._application = application
        self._intercepted = intercepted
        self._finished = finished
        self._children_changed = children_changed
        self._group = group
        self._queue: deque[Run] = deque()
        self._idle: list[asyncio.subprocess.Process] = []
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._running = 0

    @property
    def children(self) -> list[int]:
        """Return the process ids of the living children."""
        return [pid for pid, child in self._children.items() if child.returncode is None]

    def start(self, runs: Iterable[Run]) -> None:
        """Queue runs to begin as soon as a child is idle."""
        self._queue.extend(runs)
        while self._queue and self._running < self._size:
            self._running += 1
            self._group.create_task(self._run(), name="fairlead-process")

    def take_back(self) -> list[Run]:
        """Remove the runs that have not started from this executor and return them."""
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    async def stop(self) -> None:
        """Stop the idle children."""
        for child in self._idle:
            if child.stdin is not None:
                child.stdin.close()
        for child in self._idle:
            await child.wait()
        self._idle.clear()

    async def _run(self) -> None:
        runner = asyncio.current_task()
        assert runner is not None
        try:
            while self._queue:
                run = self._queue.popleft()
                run.interrupt = runner.cancel
                result: Any = None
                error: BaseException | None = None
                try:
                    run.start(self._clock.now())
                    with self._intercepted(run):
                        result = await self._run_one(run)
                except BaseException as raised:  # an interceptor may raise, too
                    if run.cancel_reason is None and (
                        runner.cancelling() or type(raised) is GeneratorExit
                    ):
                        raise  # the node stops
                    error = raised
                run.interrupt = None
                if run.cancel_reason is not None:
                    while runner.cancelling():
                        runner.uncancel()
                self._finished(run, result, error, self._clock.now())
        finally:
            self._running -= 1

    async def _run_one(self, run: Run) -> Any:
        child = await self._child()
        job = _job(run)
        try:
            assert child.stdin is not None and child.stdout is not None
            await _send(child, job)
            while True:
                (length,) = _LENGTH.unpack(await child.stdout.readexactly(_LENGTH.size))
                frame = _read(await child.stdout.readexactly(length))
                if isinstance(frame, JobEnd):
                    break
                await self._take_notes(child, run, frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await child.wait()
            raise ChildDied(f"the child process running this task ended with code {code}") from None
        except BaseException:
            child.kill()
            await child.wait()
            raise
        self._idle.append(child)
        if frame.lines:
            run.current.notes.child_lines = (frame.lines, frame.dropped)
        return _unpack(frame)

    async def _take_notes(
        self,
        child: asyncio.subprocess.Process,
        run: Run,
        frame: JobProgress | JobCheckpoint,
    ) -> None:
        """Pass a progress or a checkpoint of the handler to the store."""
        notes = run.current.notes
        if isinstance(frame, JobProgress):
            notes.report(frame.done, frame.total, frame.note)
            return
        stored = CheckpointEnd()
        try:
            await notes.store_async(msgspec.Raw(frame.value))
        except FairleadError as error:
            stored = CheckpointEnd(type(error).__name__, str(error))
        await _send(child, msgspec.json.encode(stored))

    async def _child(self) -> asyncio.subprocess.Process:
        while self._idle:
            child = self._idle.pop()
            if child.returncode is None:
                return child
        if self._application is None:
            raise FairleadError(
                "executor='process' needs the name of the application; start the worker as"
                " `fairlead worker MODULE:APP`"
            )
        self._children = {
            pid: child for pid, child in self._children.items() if child.returncode is None
        }
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "fairlead.engine.executors.child",
            self._application,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            limit=1 << 24,
            start_new_session=True,  # Ctrl-C goes to the node, which drains its children
        )
        self._children[child.pid] = child
        self._children_changed()
        return child


async def _send(child: asyncio.subprocess.Process, frame: bytes) -> None:
    assert child.stdin is not None
    child.stdin.write(_LENGTH.pack(len(frame)) + frame)
    await child.stdin.drain()


def _job(run: Run) -> bytes:
    trigger, started_at = run.trigger, run.started_at
    assert started_at is not None
    context = msgspec.json.encode(run.current.context).decode()
    claimed = msgspec.structs.replace(run.claimed, context=context)
    return msgspec.json.encode(
        Job(
            trigger.name,
            trigger.queue,
            trigger.priority,
            trigger.fairness_key,
            claimed,
            started_at,
            run.reporter is not None,
        )
    )


def _unpack(job_end: JobEnd) -> Any:
    if job_end.snooze_until is not None:
        raise Snooze(to_datetime(job_end.snooze_until))
    if job_end.retry:
        raise Retry(job_end.retry_after, reset_tries=job_end.reset_tries)
    if job_end.is_hopeless:
        raise InvalidTask(job_end.error_text)
    if job_end.error_type is not None:
        raise RemoteError(job_end.error_type, job_end.error_text or "")
    return job_end.result
