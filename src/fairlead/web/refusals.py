"""Errors as viewers see them: a status, a title, and what to do. Never a traceback."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass

from fairlead.core.visible import visible
from fairlead.errors import (
    ConfigurationError,
    FairleadError,
    InvalidTask,
    NotAllowed,
    NotSupported,
    SchemaMismatch,
    StaleVersion,
    StoreUnavailable,
)
from fairlead.operate.caller import NoRight

_log = logging.getLogger("fairlead.web")


@dataclass(frozen=True)
class Refusal(Exception):
    """A request that is not served, and why. A handler raises it for a page of an error."""

    status: int
    title: str
    text: str
    """One or two sentences: the cause and the cure."""


_KNOWN: tuple[tuple[type[Exception], int, str], ...] = (
    (InvalidTask, 400, "This request cannot be used"),
    (LookupError, 404, "Not found"),
    (NoRight, 403, "Not allowed"),
    (StaleVersion, 409, "The task has changed meanwhile"),
    (NotAllowed, 409, "Not possible in this state"),
    (NotSupported, 501, "This store does not have that"),
    (ConfigurationError, 500, "A setting is wrong"),
    (SchemaMismatch, 503, "The tables have another version"),
    (StoreUnavailable, 503, "The store does not respond"),
)


_TRY_AGAIN = "Tasks stay in the store. Try again when its server responds."


def refusal_of(error: Exception, *, is_operator: bool) -> Refusal | None:
    """Return what a viewer sees of an error that is expected; None for a defect. Only an operator
    sees the text of an error that may name servers."""
    if isinstance(error, Refusal):
        return error
    if not isinstance(error, FairleadError):
        return None
    status, title = next(
        ((status, title) for kind, status, title in _KNOWN if isinstance(error, kind)),
        (400, "This request cannot be used"),
    )
    text = str(error)
    if status >= 500 and not is_operator:
        text = "Whoever runs this console can see the reason."
    if isinstance(error, StoreUnavailable):
        text = f"{text.rstrip('.')}. {_TRY_AGAIN}"
    return Refusal(status, title, text)


def defect(error: Exception, path: str) -> Refusal:
    """Log a defect once, and return what a viewer sees of it: an id that the log has too."""
    id = secrets.token_hex(6)
    _log.error("the console failed (%s) at %s", id, visible(path), exc_info=error)
    return Refusal(
        500,
        "The console failed",
        f"This is a defect. The log of the console's process has the reason under {id}.",
    )
