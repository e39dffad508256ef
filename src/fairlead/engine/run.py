"""One run of one claimed task, from the claim to its finish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from fairlead.clock import MICROS, to_datetime
from fairlead.core.payload import unpack
from fairlead.declare.current import CurrentTask
from fairlead.declare.handler import Handler
from fairlead.declare.notes import Notes, Reporter, RunLog
from fairlead.errors import FairleadError, UnknownTask
from fairlead.model import ClaimedTask, Finish, RunNotes, State, Trigger

_context_decoder = msgspec.json.Decoder(dict[str, str])


class CancelReason(StrEnum):
    """Reason why a run was stopped from outside."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"  # the store already records a cancellation or another owner
    SHUTDOWN = "shutdown"
    PERMITS = "permits"  # permits expired: other nodes may acquire them soon


class Superseded(FairleadError):
    """The task was, or may have been, given to another node before this run could commit; what a
    transactional handler wrote is rolled back."""


@dataclass(slots=True, eq=False)
class Run:
    """One run of a claimed task."""

    trigger: Trigger
    claimed: ClaimedTask
    handler: Handler | None
    """None when no handler of its name is registered."""
    holds_slot: bool = True
    """False if a concurrency policy raised for the task: the claim only records the failed
    attempt."""
    reporter: Reporter | None = None
    """Takes the notes of the run; None for a task of an ordered queue."""
    is_held: Callable[[], bool] = lambda: True
    """Returns whether no other node can have the task."""
    is_running: bool = False
    is_beginning: bool = False
    """Whether the run waits for the transaction of its handler, which has not been called."""
    is_done: bool = False
    """Whether the task is DONE after this run."""
    is_refused: bool = False
    """Whether the store refuses the end of this run, which is tried again."""
    is_abandoned: bool = False
    """True when the end of the run is written although its handler still runs. The result of that
    handler is dropped."""
    started_at: int | None = None
    deadline: int | None = None
    """Instant at which the run is stopped, in microseconds since the epoch."""
    expires_at: float | None = None
    """The deadline in monotonic seconds, once the deadline has been checked."""
    seen_at: float | None = None
    """Monotonic seconds of the first check whether the run is stuck."""
    report_at: float = 0.0
    """Monotonic seconds after which the run is reported again as stuck."""
    is_stuck: bool = False
    """Whether it was reported as stuck."""
    cancel_reason: CancelReason | None = None
    interrupt: Callable[[], object] | None = None
    """Interrupts the handler; None while nothing can interrupt it, as in a thread."""
    finish: Finish = field(init=False)
    """End of the run; set once it is known, if the task is still this node's."""
    is_tried: bool = False
    """Whether an earlier write of the end may have succeeded."""
    _current: CurrentTask | None = None

    @property
    def queue(self) -> str:
        """Name of the queue of the task."""
        return self.trigger.queue

    def end(self, finish: Finish) -> None:
        """Record the end of the run."""
        self.finish = finish
        self.is_done = finish.next_state == State.DONE

    def start(self, now: int) -> None:
        """Record the start of the run. Raise Superseded if it was stopped before, or if other
        nodes may have the task."""
        if self.cancel_reason is not None or not self.is_held():
            raise Superseded(f"the claim of task {self.claimed.id} ended before its run began")
        self.started_at = now
        self.is_running = True
        self._set_deadline(now)

    def begin(self, now: int) -> None:
        """Record that the transaction has begun: the timeout counts from here. Raise Superseded if
        the run was stopped meanwhile."""
        self.is_beginning = False
        if self.cancel_reason is not None:
            self.is_beginning = True
            raise Superseded(f"the run was stopped ({self.cancel_reason}) before it began")
        self._set_deadline(now)
        self.expires_at = None
        self.current.deadline = None if self.deadline is None else to_datetime(self.deadline)

    def _set_deadline(self, now: int) -> None:
        if self.handler is not None and (timeout := self.handler.processing.timeout) is not None:
            self.deadline = now + round(timeout * MICROS)

    @property
    def current(self) -> CurrentTask:
        """Return the object that shows this run to its handler. The first call creates it."""
        if self._current is None:
            trigger, claimed = self.trigger, self.claimed
            self._current = CurrentTask(
                claimed.id,
                trigger.name,
                trigger.queue,
                claimed.version,
                claimed.attempt,
                claimed.tries,
                trigger.priority,
                trigger.fairness_key,
                {} if claimed.context is None else _context_decoder.decode(claimed.context),
                None if self.deadline is None else to_datetime(self.deadline),
                claimed.ready_at,
                claimed.ready_at if self.started_at is None else self.started_at,
                claimed.fence or claimed.version,
                self._notes(),
            )
            if self.cancel_reason is not None:
                self._current.cancel(self.cancel_reason)
        return self._current

    def _notes(self) -> Notes:
        claimed, handler = self.claimed, self.handler
        return Notes(
            claimed.id,
            claimed.version,
            claimed.attempt,
            checkpoint=claimed.checkpoint,
            limit=0 if handler is None else handler.kept.checkpoint_limit,
            reporter=self.reporter,
            is_transactional=handler is not None and handler.transactional,
            log=RunLog() if handler is not None and handler.kept.log else None,
        )

    @property
    def kept_notes(self) -> RunNotes | None:
        """Notes that the end of the run has to write."""
        return None if self._current is None else self._current.notes.kept()

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the decoded arguments. Raise InvalidTask for a payload that does not fit the
        handler's parameters, and UnknownTask without a handler."""
        if self.handler is None:
            raise UnknownTask(
                f"no task named {self.trigger.name!r} is registered in this worker's application; "
                "deploy a worker that has it, then resume this task"
            )
        return self.handler.arguments.decode(
            unpack(self.claimed.payload, self.claimed.payload_format)
        )

    def cancel(self, reason: CancelReason) -> None:
        """Ask the run to stop. Interrupt an asynchronous handler. A handler in a thread can read
        `current_task().cancelled`."""
        if self.cancel_reason is not None:
            return
        self.cancel_reason = reason
        if self._current is not None:
            self._current.cancel(reason)
        if self.interrupt is not None:
            self.interrupt()
