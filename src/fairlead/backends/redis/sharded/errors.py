"""What a sharded queue raises beside ConfigurationError and StoreUnavailable."""

from __future__ import annotations

from fairlead.errors import FairleadError


class Empty(FairleadError):
    """No message came within the time that the reader wanted to wait."""


class InvalidMessage(FairleadError, ValueError):
    """A write, or an id, was refused before anything was done: says what is wrong with it."""


class UnknownMessage(FairleadError, LookupError):
    """No message of that id is in the queue: it was acknowledged, deleted, set aside, or never
    written."""


class QueueDamaged(FairleadError):
    """A key of the queue holds something else than the queue put there; says which, and nothing was
    moved."""
