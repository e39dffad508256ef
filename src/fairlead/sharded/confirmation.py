"""The confirmation of writes by replicas, which a failover then does not lose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.errors import ConfigurationError

MOST_MILLIS = 4_000
"""Longest wait in milliseconds. The client gives up a response after 5 s."""

MOST_REPLICAS = 100


@dataclass(frozen=True)
class Confirmation:
    """How many replicas confirm a write, and how long the writer waits for them."""

    replicas: int
    millis: int = 1_000
    """Milliseconds after which the write is reported as unconfirmed."""

    @classmethod
    def of(cls, location: str, options: Mapping[str, str]) -> Confirmation | None:
        """Read the options `wait_replicas` and `wait_ms` of a URL; return None without them. Raise
        ConfigurationError, whose text begins with `location`."""
        if "wait_replicas" not in options:
            if "wait_ms" in options:
                raise ConfigurationError(
                    f"{location}: wait_ms needs wait_replicas, the number of replicas that confirm"
                )
            return None
        return cls(
            _number(location, options, "wait_replicas", MOST_REPLICAS),
            _number(location, options, "wait_ms", MOST_MILLIS) if "wait_ms" in options else 1_000,
        )


def _number(location: str, options: Mapping[str, str], name: str, most: int) -> int:
    value = options[name]
    if not value.isdecimal() or not 1 <= int(value) <= most:
        raise ConfigurationError(f"{location}: {name}={value!r}: use a number of 1 to {most}")
    return int(value)
