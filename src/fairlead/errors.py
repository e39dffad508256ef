"""Every error Fairlead raises: one base, each naming the cause and the cure."""

from __future__ import annotations

from datetime import datetime


class FairleadError(Exception):
    """Base of all errors raised by Fairlead."""


class ConfigurationError(FairleadError):
    """The application is set up wrongly: a URL, a queue, a handler, a policy."""


class InvalidTask(FairleadError, ValueError):
    """A submit was refused before anything was written: arguments, options, payload size."""


class UnknownTask(FairleadError, LookupError):
    """No handler of that name, or no task of that id."""


class UnknownQueue(FairleadError, LookupError):
    """A queue that the application does not define."""


class UnknownPolicy(FairleadError, LookupError):
    """No version of computed weights has that number, or it is kept no longer."""


class NotSupported(FairleadError):
    """The store, or the channel, that was chosen cannot do that; says which can."""


class StoreUnavailable(FairleadError):
    """The database, or a part of it, cannot be reached right now; trying again may work."""


class SchemaMismatch(FairleadError):
    """The tables in the store are older or newer than this code; says which, and what to run."""


class StaleVersion(FairleadError):
    """The task changed since it was read (its version moved on); read it again and decide anew."""


class NotAllowed(FairleadError):
    """The task's state does not allow that; says which state, and whether `force` would."""


class TaskFailed(FairleadError):
    """Raised by `handle.result()` when the task ended in ERROR, FAILED or CANCELLED; carries its
    error text."""


class ResultNotKept(FairleadError):
    """The task does not keep its result: declare it with keep_result=True."""


class ResultTimeout(FairleadError, TimeoutError):
    """`handle.result(timeout=)` ran out of time; the task goes on."""


class Retry(FairleadError):
    """Raised by a handler: this attempt failed, try again after `after` seconds (None: as the retry
    policy says)."""

    def __init__(self, after: float | None = None, *, reset_tries: bool = False) -> None:
        super().__init__(f"retry after {after} s" if after is not None else "retry")
        self.after = after
        self.reset_tries = reset_tries


class Snooze(FairleadError):
    """Raised by a handler: not now, run me again at `until` (an aware datetime). Spends no
    attempt."""

    def __init__(self, until: datetime) -> None:
        if until.tzinfo is None:
            raise ValueError(
                f"naive datetime {until!r}: give a timezone, as in datetime.now(timezone.utc)"
            )
        super().__init__(f"snoozed until {until.isoformat()}")
        self.until = until


class TaskTimeout(FairleadError):
    """The attempt ran longer than its timeout; its outcome is `timed_out`."""


class NodeLost(FairleadError):
    """The node that had claimed the task died or stalled; its outcome is `lost`."""
