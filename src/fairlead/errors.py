"""Errors that Fairlead raises: one base; each message names the cause and the cure."""

from __future__ import annotations

from datetime import UTC, datetime

LONGEST_DELAY = 3_155_760_000.0
"""Maximum number of seconds until the next try of a task: 100 years."""

LATEST_SNOOZE = datetime(9000, 1, 1, tzinfo=UTC)
"""Instant before which a snooze must end, so that every store and every time zone can show it."""


class FairleadError(Exception):
    """Base of all errors raised by Fairlead."""


class ConfigurationError(FairleadError):
    """Raised for a wrong setting of the application: a URL, a queue, a handler, a policy."""


class InvalidTask(FairleadError, ValueError):
    """Raised for a submit that was refused before anything was written: arguments, options, payload
    size."""


class UnknownTask(FairleadError, LookupError):
    """Raised if no handler has this name, or no task has this id."""


class UnknownQueue(FairleadError, LookupError):
    """Raised for a queue that the application does not define."""


class UnknownPolicy(FairleadError, LookupError):
    """Raised for a version of computed weights that does not exist or is no longer kept."""


class UnknownAction(FairleadError, LookupError):
    """Raised for a bulk action that does not exist or is no longer kept."""


class NotSupported(FairleadError):
    """Raised if the chosen store or channel lacks a feature; the message names those that have
    it."""


class StoreUnavailable(FairleadError):
    """Raised while the database, or a part of it, cannot be reached; trying again may work."""


class StoreRefused(StoreUnavailable):
    """Raised if the server refuses the login or has no such database, or if a file cannot be
    opened. A worker that starts ends with it, because its URL is usually wrong."""


class WriteRefused(StoreUnavailable):
    """Raised if the server responds and refuses this write; the same write may work later, and
    others may work now."""


class BatchTooLarge(WriteRefused):
    """Raised if the limits of the server refuse a statement of this size; a smaller batch may
    work."""


class SchemaMismatch(FairleadError):
    """Raised if the tables in the store are older or newer than this code; the message says which,
    and what to run."""


class StaleVersion(FairleadError):
    """Raised if the task has changed since it was read (its version moved on); read it again."""


class NotAllowed(FairleadError):
    """Raised if the task's state does not allow the change; the message names the state, and
    whether `force` would help."""


class TaskFailed(FairleadError):
    """Raised by `handle.result()` if the task ended in ERROR, FAILED or CANCELLED; carries the
    task's error text, and its error type as `error_type`."""

    def __init__(self, message: str, *, task_id: str = "", error_type: str | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.error_type = error_type


class ResultNotKept(FairleadError):
    """Raised for a task that keeps no result: declare it with keep_result=True."""


class ResultTimeout(FairleadError, TimeoutError):
    """Raised by `handle.result(timeout=)` after the timeout; the task continues."""


class LifespanFailed(FairleadError):
    """Raised if the lifespan of the application raised when a worker process started or ended."""


class InvalidDelay(FairleadError, ValueError):
    """Raised for a time that `Retry` or `Snooze` cannot use; the message names the allowed
    values."""


class Retry(FairleadError):
    """Raised by a handler to fail this attempt and try again after `after` seconds, or after the
    delay of the retry policy if `after` is None.

    `after`: from 0 to LONGEST_DELAY. With `reset_tries`, the tries of the task count from zero
    again, and the task waits at least a second. Raises InvalidDelay for other values."""

    def __init__(self, after: float | None = None, *, reset_tries: bool = False) -> None:
        check_after(after)
        check_reset_tries(reset_tries)
        super().__init__(f"retry after {after} s" if after is not None else "retry")
        self.after = after
        self.reset_tries = reset_tries


class Snooze(FairleadError):
    """Raised by a handler to be run again at `until` (an aware datetime) instead of now. Spends no
    try.

    A task that snoozes until a time that has passed runs again after one second. Raises
    InvalidDelay for a naive datetime, for one from LATEST_SNOOZE on, and for any other value.
    """

    def __init__(self, until: datetime) -> None:
        check_until(until)
        super().__init__(f"snoozed until {until.isoformat()}")
        self.until = until


def check_after(after: object) -> float | None:
    """Return the delay of a `Retry` in seconds, or None. Raises InvalidDelay unless it is None or a
    number from 0 to LONGEST_DELAY."""
    if after is None:
        return None
    if (
        isinstance(after, bool)
        or not isinstance(after, int | float)
        or not 0 <= after <= LONGEST_DELAY
    ):
        raise InvalidDelay(
            f"Retry(after={brief(after)}): use a number of seconds from 0 to {LONGEST_DELAY:.0f}"
            " (100 years), or None to leave the time to the retry policy"
        )
    return float(after)


def check_reset_tries(reset_tries: object) -> bool:
    """Return `reset_tries`, whether a `Retry` counts the tries from zero again. Raises InvalidDelay
    unless it is a bool."""
    if not isinstance(reset_tries, bool):
        raise InvalidDelay(f"Retry(reset_tries={brief(reset_tries)}): use True or False")
    return reset_tries


def check_until(until: object) -> datetime:
    """Return the end of a `Snooze`. Raises InvalidDelay unless it is an aware datetime before
    LATEST_SNOOZE."""
    try:
        if isinstance(until, datetime) and until.utcoffset() is not None and until < LATEST_SNOOZE:
            return until
    except Exception as error:  # a time zone of the user may raise anything
        raise InvalidDelay(_bad_until(until)) from error
    raise InvalidDelay(_bad_until(until))


def _bad_until(until: object) -> str:
    is_naive = isinstance(until, datetime) and until.tzinfo is None
    return (
        f"Snooze(until={brief(until)}): {'the datetime is naive; ' if is_naive else ''}use an"
        f" aware datetime before {LATEST_SNOOZE.year}, as in datetime.now(timezone.utc) +"
        " timedelta(minutes=5)"
    )


def brief(value: object) -> str:
    """Return a value as an error shows it: its beginning only, and never an error of its own."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"(a whole number of {value.bit_length():,} bits)"
    try:
        shown = repr(value)
    except Exception:
        return f"(a {type(value).__name__})"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


class TaskTimeout(FairleadError):
    """Error of an attempt that ran longer than its timeout; its outcome is `timed_out`."""


class NodeLost(FairleadError):
    """Error of an attempt whose node died or stalled; its outcome is `lost`."""
