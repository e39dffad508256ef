"""The outcome of a run for its task: done, retry, snooze, or ERROR."""

from __future__ import annotations

import traceback

from fairlead.clock import MICROS, to_micros
from fairlead.declare.handler import encode_result
from fairlead.engine.execution import CancelReason, Execution
from fairlead.errors import FairleadError, InvalidTask, Retry, Snooze, TaskTimeout, UnknownTask
from fairlead.model import Finish, Outcome, State

MOST_ERROR_TEXT = 4000
"""Most characters kept of an error and its traceback."""

_HANDED_BACK = {
    CancelReason.SHUTDOWN: "the worker shut down",
    CancelReason.PERMITS: "the worker's permits of a cluster-wide limit ran out",
}
"""Outcome in the history for each stop that is not the fault of the task; the stop spends no
try."""

_HOPELESS = (UnknownTask, InvalidTask)
"""Errors that no retry can mend."""


def succeeded(execution: Execution, result: object, now: int) -> Finish:
    """Return the finish of a run that returned. A result that is not JSON fails the attempt."""
    claimed = execution.claimed
    kept = None
    if claimed.keep_result:
        try:
            kept = encode_result(result)
        except (TypeError, ValueError) as error:
            return failed(
                execution, InvalidTask(f"its result cannot be kept as JSON: {error}"), now
            )
    return Finish(
        claimed.id,
        claimed.version,
        Outcome.DONE,
        State.DONE,
        execution.started_at,
        now,
        None,
        None,
        kept,
        None,
        claimed.row,
    )


def failed(execution: Execution, error: BaseException, now: int) -> Finish:
    """Return the finish of a run that raised, by its retry policy."""
    if isinstance(error, Snooze):
        return _finish(
            execution, error, now, Outcome.SNOOZED, to_micros(error.until), spends_try=False
        )
    outcome = Outcome.TIMED_OUT if isinstance(error, TaskTimeout) else Outcome.RETRIED
    delay = error.after if isinstance(error, Retry) else None
    tries = execution.claimed.tries
    resets = False
    if isinstance(error, Retry):
        resets = error.reset_tries
        # Judge a Retry by the error it was raised from.
        cause: BaseException = error.__cause__ or error
    else:
        cause = error
    if not isinstance(error, _HOPELESS):
        by_policy = _policy_delay(execution, 1 if resets else tries, cause)
        if isinstance(by_policy, BaseException):
            return _finish(execution, by_policy, now, Outcome.FAILED, None)
        if by_policy is not None:
            due = now + round((by_policy if delay is None else delay) * MICROS)
            return _finish(execution, error, now, outcome, due, resets_tries=resets)
    return _finish(
        execution,
        error,
        now,
        Outcome.TIMED_OUT if outcome is Outcome.TIMED_OUT else Outcome.FAILED,
        None,
    )


def stopped(execution: Execution, now: int) -> Finish | None:
    """Return the finish of a run that was stopped from outside; None when the task is no longer
    this node's."""
    if execution.cancel_reason is CancelReason.TIMEOUT:
        handler = execution.handler
        timeout = handler.processing.timeout if handler is not None else None
        return failed(execution, TaskTimeout(f"ran longer than its timeout of {timeout} s"), now)
    if execution.cancel_reason in _HANDED_BACK:
        claimed = execution.claimed
        return Finish(
            claimed.id,
            claimed.version,
            Outcome.CANCELLED,
            State.SUBMITTED,
            execution.started_at,
            now,
            None,
            _HANDED_BACK[execution.cancel_reason],
            None,
            None,
            claimed.row,
            spends_try=False,
        )
    return None


def _policy_delay(
    execution: Execution, tries: int, error: BaseException
) -> float | BaseException | None:
    handler = execution.handler
    if handler is None:
        return None
    try:
        return handler.retry.delay(tries, error)
    except Exception as broken:  # an error in a user's policy must harm no other task
        return broken


def _finish(
    execution: Execution,
    error: BaseException,
    now: int,
    outcome: Outcome,
    run_at: int | None,
    spends_try: bool = True,
    resets_tries: bool = False,
) -> Finish:
    """Return the finish of a failed attempt; without a `run_at` the task goes to ERROR."""
    claimed = execution.claimed
    if run_at is None:
        state = State.ERROR
    else:
        state = State.WAITING if run_at > now else State.SUBMITTED
    return Finish(
        claimed.id,
        claimed.version,
        outcome,
        state,
        execution.started_at,
        now,
        f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        error_text(error),
        None,
        run_at,
        claimed.row,
        spends_try,
        resets_tries,
        run_at is None and execution.handler is not None and execution.handler.skips_failed,
    )


def error_text(error: BaseException) -> str:
    """Return the error as text for operators: the message, and for errors that are not Fairlead's
    own the end of the traceback."""
    message = str(error)
    if not isinstance(error, FairleadError) and error.__traceback__ is not None:
        message = (
            f"{message}\n{''.join(traceback.format_exception(error))[-MOST_ERROR_TEXT + 500 :]}"
        )
    return (
        message[:MOST_ERROR_TEXT]
        .replace("\x00", "\\0")
        .encode("utf-8", "backslashreplace")
        .decode()
    )
