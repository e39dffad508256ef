"""The errors of a sharded queue, beside ConfigurationError and StoreUnavailable."""

from __future__ import annotations

from fairlead.errors import FairleadError, StoreUnavailable


class Empty(FairleadError):
    """No message came within the time that the reader wanted to wait."""


class InvalidMessage(FairleadError, ValueError):
    """A write or an id was refused before anything was done; the text says what is wrong."""


class UnknownMessage(FairleadError, LookupError):
    """No message with the id is in the queue: it was acknowledged, deleted, removed, or never
    written."""


class QueueDamaged(FairleadError):
    """A key of the queue holds foreign data; the text names the key, and nothing was changed."""


class NotReplicated(StoreUnavailable):
    """Redis has written, but too few replicas have confirmed the write in time, so that a failover
    may lose it."""
