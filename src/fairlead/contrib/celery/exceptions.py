"""Exceptions that projects of Celery catch and raise."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from fairlead.contrib.celery.missing import CeleryError as CeleryError
from fairlead.contrib.celery.missing import ImproperlyConfigured as ImproperlyConfigured
from fairlead.contrib.celery.missing import lookup

__getattr__ = lookup(__name__)


class Retry(CeleryError):
    """Raised by `self.retry()`: run again at `when`, a number of seconds or a datetime."""

    def __init__(self, exc: BaseException | None = None, when: Any = 0) -> None:
        super().__init__(f"Retry at {when}" + (f": {exc!r}" if exc else ""))
        self.exc = exc
        self.when = when

    def seconds(self) -> float:
        """Return the seconds from now until the next run."""
        if not isinstance(self.when, datetime):
            return max(0.0, float(self.when))
        zone = self.when.tzinfo or UTC
        return max(0.0, self.when.replace(tzinfo=zone).timestamp() - time.time())


class NotRegistered(KeyError, CeleryError):
    """Raised for a task that is not registered."""


class MaxRetriesExceededError(CeleryError):
    """Raised by `self.retry()` if the tries of the task are used up."""


class TaskRevokedError(CeleryError):
    """Raised by `result.get()` for a task that was revoked."""


class ChordError(CeleryError):
    """Raised in place of a run because a task before it failed."""


class TimeoutError(CeleryError):
    """Raised by `result.get()` after its timeout."""
