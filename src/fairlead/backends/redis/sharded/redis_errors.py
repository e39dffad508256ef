"""Errors of redis-py as Fairlead's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions

from fairlead.backends.redis.sharded.errors import QueueDamaged
from fairlead.errors import ConfigurationError, StoreUnavailable

_UNAVAILABLE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.OutOfMemoryError,
)
_DAMAGED = "FAIRLEAD_DAMAGED "


@contextmanager
def translated_errors(queue: str) -> Iterator[None]:
    """Turn errors of redis-py into ConfigurationError, StoreUnavailable or QueueDamaged, with no
    password in their text."""
    try:
        yield
    except exceptions.AuthenticationError as error:
        raise ConfigurationError("Redis refused the login: check user and password") from error
    except exceptions.MaxConnectionsError as error:
        raise ConfigurationError(
            "every connection of the client is in use (a waiting reader holds one): give the client"
            " a greater max_connections"
        ) from error
    except _UNAVAILABLE as error:
        raise StoreUnavailable(
            f"Redis does not respond ({type(error).__name__}); trying again may work"
        ) from error
    except exceptions.ResponseError as error:
        text = str(error)
        if _DAMAGED in text:
            raise QueueDamaged(f"queue {queue}: {text.partition(_DAMAGED)[2]}") from error
        if "WRONGTYPE" in text:
            raise QueueDamaged(
                f"queue {queue}: one of its keys holds a foreign value ({text})"
            ) from error
        raise
