"""Ends of runs of an ordered queue: the outcome for the task."""

from __future__ import annotations

from fairlead.clock import MICROS
from fairlead.core.policies.retry import UNTIL_DONE
from fairlead.errors import FairleadError, InvalidTask, UnknownTask
from fairlead.model import Finish, Outcome, RunEnd, ScheduledTask, State

_HOPELESS = frozenset(
    f"{kind.__module__}.{kind.__qualname__}" for kind in (UnknownTask, InvalidTask)
)
"""Errors that last until another version of the application is deployed; the key waits and loses no
task."""


def end_of_run(scheduled: ScheduledTask, finish: Finish, triggered_at: int, node: str) -> RunEnd:
    """Return the end of a run. A task without tries left is recorded as failed, and its key
    continues.

    scheduled: the task before the run.
    """
    outcome, state, retry_at = finish.outcome, State(finish.next_state), finish.run_at
    if state == State.ERROR and finish.error_type in _HOPELESS:
        delay = UNTIL_DONE.delay(scheduled.tries + 1, FairleadError())
        outcome, retry_at = Outcome.RETRIED, finish.finished_at + round((delay or 0) * MICROS)
        state = State.WAITING
    elif state == State.ERROR:
        state = State.FAILED
    elif state == State.SUBMITTED:  # at once
        state, retry_at = State.WAITING, finish.finished_at
    spent = 0 if finish.resets_tries else scheduled.tries + finish.spends_try
    return RunEnd(
        scheduled,
        scheduled.attempt + 1,
        spent,
        outcome,
        state,
        finish.finished_at,
        retry_at if state == State.WAITING else None,
        triggered_at,
        finish.started_at,
        finish.error_type,
        finish.error_text,
        node,
    )


def dropped(scheduled: ScheduledTask, is_running: bool, actor: str, now: int, node: str) -> RunEnd:
    """Return the end of a task that a person ended."""
    return RunEnd(
        scheduled,
        scheduled.attempt + is_running,
        scheduled.tries,
        Outcome.CANCELLED,
        State.CANCELLED,
        now,
        error_text=f"by {actor}",
        node=node,
    )
