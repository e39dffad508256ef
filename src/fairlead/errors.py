"""Errors that Fairlead raises: one base; each message names the cause and the cure."""

from __future__ import annotations

from datetime import datetime


class FairleadError(Exception):
    """Base of all errors raised by Fairlead."""


class ConfigurationError(FairleadError):
    """Raised for a wrong setting of the application: a URL, a queue, a handler, a policy."""


class InvalidTask(FairleadError, ValueError):
    """Raised for a submit that was refused before anything was written: arguments, options, payload
    size."""


class UnknownTask(FairleadError, LookupError):
    """Raised if no handler has the name, or no task the id."""


class UnknownQueue(FairleadError, LookupError):
    """Raised for a queue that the application does not define."""


class UnknownPolicy(FairleadError, LookupError):
    """Raised for a version of computed weights that does not exist or is no longer kept."""


class NotSupported(FairleadError):
    """Raised if the chosen store or channel cannot do that; the message names those that can."""


class StoreUnavailable(FairleadError):
    """Raised while the database, or a part of it, cannot be reached; trying again may work."""


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
    task's error text."""


class ResultNotKept(FairleadError):
    """Raised for a task that keeps no result: declare it with keep_result=True."""


class ResultTimeout(FairleadError, TimeoutError):
    """Raised by `handle.result(timeout=)` after the timeout; the task goes on."""


class Retry(FairleadError):
    """Raised by a handler to fail this attempt and try again after `after` seconds (None: when the
    retry policy says)."""

    def __init__(self, after: float | None = None, *, reset_tries: bool = False) -> None:
        super().__init__(f"retry after {after} s" if after is not None else "retry")
        self.after = after
        self.reset_tries = reset_tries


class Snooze(FairleadError):
    """Raised by a handler to be run again at `until` (an aware datetime) instead of now. Spends no
    attempt."""

    def __init__(self, until: datetime) -> None:
        if until.tzinfo is None:
            raise ValueError(
                f"naive datetime {until!r}: give a timezone, as in datetime.now(timezone.utc)"
            )
        super().__init__(f"snoozed until {until.isoformat()}")
        self.until = until


class TaskTimeout(FairleadError):
    """Error of an attempt that ran longer than its timeout; its outcome is `timed_out`."""


class NodeLost(FairleadError):
    """Error of an attempt whose node died or stalled; its outcome is `lost`."""
