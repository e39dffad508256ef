"""The outcome of a run for its task: done, retry, snooze, or ERROR."""

from __future__ import annotations

import math
import os
import traceback
from asyncio import CancelledError
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, GeneratorType, TracebackType
from typing import cast

from fairlead.clock import MICROS, to_micros
from fairlead.declare.handler import Handler
from fairlead.engine.run import CancelReason, Run
from fairlead.errors import (
    LONGEST_DELAY,
    ConfigurationError,
    FairleadError,
    InvalidDelay,
    InvalidTask,
    Retry,
    Snooze,
    StoreUnavailable,
    TaskTimeout,
    UnknownTask,
    check_after,
    check_reset_tries,
    check_until,
)
from fairlead.model import Finish, Outcome, State
from fairlead.pauses import outage_pause

MOST_ERROR_TEXT = 4000
"""Maximum number of characters kept of an error and its traceback."""

MOST_TYPE_NAME = 300
"""Maximum number of characters kept of the name of an error's type."""

SHORTEST_PAUSE = MICROS
"""Microseconds until the next run of a task that spends no try and asked for a time in the past."""

_module_of = type.__dict__["__module__"].__get__
_qualname_of = type.__dict__["__qualname__"].__get__

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"

_GENERATORS = (GeneratorType, AsyncGeneratorType)

_HANDED_BACK = {
    CancelReason.SHUTDOWN: "the worker shut down",
    CancelReason.PERMITS: "the worker's permits of a cluster-wide limit ran out",
}
"""Error text in the history for each stop that the task did not cause; the stop spends no try."""

UNKNOWN_PAUSE = round(10.0 * MICROS)
"""Microseconds until a task that reached a node without its handler is due again; it spends no
try."""

LONGEST_PAUSE = 10.0
"""Maximum number of seconds until the next run of a task whose transaction could not begin."""

HOPELESS = (UnknownTask, InvalidTask)
"""Errors that no retry can mend."""


class RemoteError(FairleadError):
    """An exception of a handler in its child process; the text holds the child's traceback."""

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(text)
        self.type_name = type_name


class NotBegun(StoreUnavailable):
    """The transaction of a handler could not begin, so nothing of the handler ran."""


def succeeded(run: Run, result: object, now: int) -> Finish:
    """Return the finish of a run that returned. A result that cannot be kept fails the attempt."""
    try:
        return done(run, result, now)
    except BaseException as error:  # encoding the result runs the user's code
        return failed(run, error, now)


def done(run: Run, result: object, now: int) -> Finish:
    """Return the finish of a run that is done. Raises the errors of `encoded`."""
    claimed, handler = run.claimed, run.handler
    assert handler is not None
    kept = encoded(result, handler, claimed.keep_result)
    return Finish(
        claimed.id,
        claimed.version,
        Outcome.DONE,
        State.DONE,
        run.started_at,
        now,
        None,
        None,
        kept,
        None,
        claimed.row,
        notes=run.kept_notes,
    )


def encoded(result: object, handler: Handler, is_kept: bool) -> bytes | None:
    """Return the JSON of a return value that is kept, else None. Raises InvalidTask for a value
    that is not of its type, that JSON would change or that is too large, and for a coroutine or a
    generator, which would never run."""
    if type(result) in _GENERATORS:
        raise InvalidTask(
            "it returned a generator, which never runs: collect what the generator yields, and"
            " return that"
        )
    if type(result) is CoroutineType:
        result.close()
        raise InvalidTask(
            "it returned a coroutine, which never runs: await it in a handler declared with"
            " `async def`"
        )
    if not is_kept:
        return None
    try:
        kept = handler.result.encode(result)
    except Exception as error:
        raise InvalidTask(f"its result cannot be kept as JSON: {message_of(error)}") from error
    if len(kept) > handler.kept.result_limit:
        raise InvalidTask(
            f"its result has {len(kept):,} bytes, more than {handler.kept.result_limit:,}; store"
            " large data elsewhere and return a reference, or raise result_limit on the App"
        )
    return kept


def failed(run: Run, error: BaseException, now: int) -> Finish:
    """Return the finish of a run that raised, by its retry policy.

    Raises nothing, whatever the error does when its fields and its text are read: the attempt then
    fails without a further try.
    """
    try:
        return _judged(run, error, now)
    except BaseException:
        return _finish(run, error, now, Outcome.FAILED, None)


def _judged(run: Run, error: BaseException, now: int) -> Finish:
    if run.handler is None:
        due = now + UNKNOWN_PAUSE
        return _finish(run, error, now, Outcome.SNOOZED, due, spends_try=False)
    if type(error) is NotBegun:
        return _not_begun(run, error, now)
    delay, resets = None, False
    cause = error
    try:
        if isinstance(error, Snooze):
            until = to_micros(check_until(getattr(error, "until", None)))
            due = _with_pause(until, now)
            return _finish(run, error, now, Outcome.SNOOZED, due, spends_try=False)
        if isinstance(error, Retry):
            delay = check_after(getattr(error, "after", None))
            resets = check_reset_tries(getattr(error, "reset_tries", False))
            # Judge a Retry by the error it was raised from.
            cause = error if error.__cause__ is None else error.__cause__
    except InvalidDelay as wrong:
        error = cause = wrong
    outcome = Outcome.TIMED_OUT if isinstance(error, TaskTimeout) else Outcome.RETRIED
    if not isinstance(error, HOPELESS):
        by_policy = _policy_delay(run, 1 if resets else run.claimed.tries, cause)
        if isinstance(by_policy, BaseException):
            return _finish(run, by_policy, now, Outcome.FAILED, None)
        if by_policy is not None:
            due = now + round((by_policy if delay is None else delay) * MICROS)
            if resets:
                due = _with_pause(due, now)
            return _finish(run, error, now, outcome, due, resets_tries=resets)
    return _finish(
        run,
        error,
        now,
        Outcome.TIMED_OUT if outcome is Outcome.TIMED_OUT else Outcome.FAILED,
        None,
    )


def _with_pause(due: int, now: int) -> int:
    """Return the next start of a task that spends no try: one second from now if `due` has passed,
    so that a task cannot run in a loop without a pause."""
    return due if due > now else now + SHORTEST_PAUSE


def stopped(run: Run, now: int) -> Finish | None:
    """Return the finish of a run that was stopped from outside; None when the task is no longer
    this node's."""
    if run.cancel_reason is CancelReason.TIMEOUT:
        handler = run.handler
        timeout = handler.processing.timeout if handler is not None else None
        if run.is_beginning:
            late = NotBegun(f"its transaction did not begin within its timeout of {timeout} s")
            return _not_begun(run, late, now)
        return failed(run, TaskTimeout(f"ran longer than its timeout of {timeout} s"), now)
    if run.cancel_reason in _HANDED_BACK:
        claimed = run.claimed
        return Finish(
            claimed.id,
            claimed.version,
            Outcome.CANCELLED,
            State.SUBMITTED,
            run.started_at,
            now,
            None,
            _HANDED_BACK[run.cancel_reason],
            None,
            None,
            claimed.row,
            spends_try=False,
            notes=run.kept_notes,
        )
    return None


def _not_begun(run: Run, error: NotBegun, now: int) -> Finish:
    """Return the finish of a run whose handler was not called, because its transaction did not
    begin. It spends no try; the pauses double with each such run."""
    unspent = max(0, run.claimed.attempt - run.claimed.tries)
    pause = min(LONGEST_PAUSE, outage_pause() * 2.0 ** min(unspent, 10))
    due = now + round(pause * MICROS)
    return _finish(run, error, now, Outcome.SNOOZED, due, spends_try=False)


def _policy_delay(run: Run, tries: int, error: BaseException) -> float | BaseException | None:
    handler = run.handler
    if handler is None:
        return None
    try:
        delay = handler.retry.delay(tries, error)
        if delay is None:
            return None
        if (
            isinstance(delay, bool)
            or not isinstance(delay, int | float)
            or not 0 <= delay < math.inf
        ):
            raise ConfigurationError(
                f"the retry policy returned {delay!r}: return seconds from 0 on, or None"
            )
        return min(delay, LONGEST_DELAY)
    except BaseException as broken:  # an error in a user's policy must harm no other task
        return broken


def _finish(
    run: Run,
    error: BaseException,
    now: int,
    outcome: Outcome,
    run_at: int | None,
    spends_try: bool = True,
    resets_tries: bool = False,
) -> Finish:
    """Return the finish of a failed attempt; without a `run_at` the task goes to ERROR."""
    claimed = run.claimed
    if run_at is None:
        state = State.ERROR
    else:
        state = State.WAITING if run_at > now else State.SUBMITTED
    return Finish(
        claimed.id,
        claimed.version,
        outcome,
        state,
        run.started_at,
        now,
        error_type(error),
        error_text(error),
        None,
        run_at,
        claimed.row,
        spends_try,
        resets_tries,
        run_at is None and run.handler is not None and run.handler.skips_failed,
        run.kept_notes,
    )


def error_type(error: BaseException) -> str:
    """Return the name of an error's type with its module, for an error of a child process the name
    that the child reported. Runs no code of the type."""
    kind = type(error)
    if kind is RemoteError:
        return _storable(cast("RemoteError", error).type_name, MOST_TYPE_NAME)
    module, name = _module_of(kind), _qualname_of(kind)
    full = f"{module}.{name}" if isinstance(module, str) else name
    return _storable(full.removeprefix("builtins."), MOST_TYPE_NAME)


def error_text(error: BaseException) -> str:
    """Return the error as text for operators: the message, and for errors that are not Fairlead's
    own the end of the traceback. Raises nothing, whatever the error does when it is printed."""
    message = message_of(error)
    if not issubclass(type(error), FairleadError):
        message += _traceback_of(error)
    return _storable(message, MOST_ERROR_TEXT)


def message_of(error: BaseException) -> str:
    """Return the message of an error. Raises nothing."""
    try:
        message = "".join([str(error)])  # exact, where str() returns a subclass of str
    except BaseException as broken:  # also SystemExit
        return f"text not available: printing the error raised {error_type(broken)}"
    if not message and type(error) is CancelledError:
        return "the handler was cancelled by itself or by what it started, not by the worker"
    return message


def _frames_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the first frame on that is not of this package, such as
    a handler; the whole one if there is none."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        found = found.tb_next
    return found or error.__traceback__


def _traceback_of(error: BaseException) -> str:
    """Return the end of the traceback after a line break, empty for an error without one."""
    try:
        if (lines := _frames_of(error)) is None:
            return ""
        try:
            text = "".join(traceback.format_exception(type(error), error, lines))
        except BaseException:  # the error cannot be printed, its frames can
            text = "".join(traceback.format_tb(lines))
        return f"\n{text[-MOST_ERROR_TEXT + 500 :]}"
    except BaseException:
        return ""


def _storable(text: str, most: int) -> str:
    """Return at most `most` characters of a text, in a form that every store takes."""
    return text[:most].replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()
