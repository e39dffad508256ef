"""Retry policies: when a failed attempt is tried again.

Source of the jitter: Brooker 2015, "Exponential backoff and jitter", AWS Architecture Blog.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fairlead.core import values
from fairlead.errors import ConfigurationError

ONE_DAY = 86_400.0
MOST_FACTOR = 1000.0
_random = random.Random()

Errors = tuple[type[BaseException], ...]


class RetryPolicy(Protocol):
    """A rule for retries; write your own with this method. A policy that raises fails the attempt
    for good and affects nothing else."""

    def delay(self, tries: int, error: BaseException) -> float | None:
        """Return the seconds until the next try, after `tries` tries (from 1) have failed, the last
        with `error`; None for no further try."""


@dataclass(frozen=True)
class _Selective:
    """A policy that retries on some errors only. Raises ConfigurationError for bad values."""

    on: Errors = field(default=(Exception,), kw_only=True)
    """Errors to retry on, with their subclasses."""
    never_on: Errors = field(default=(), kw_only=True)
    """Errors not to retry on, although `on` includes them."""

    def __post_init__(self) -> None:
        for kinds in (self.on, self.never_on):
            if not isinstance(kinds, tuple) or not all(map(_is_error, kinds)):
                raise ConfigurationError(
                    f"retry on {values.brief(kinds)}: use a tuple of exception classes"
                )

    def delay(self, tries: int, error: BaseException) -> float | None:
        if isinstance(error, self.never_on) or not isinstance(error, self.on):
            return None
        return self._delay(tries)

    def _delay(self, tries: int) -> float | None:
        raise NotImplementedError


@dataclass(frozen=True)
class NoRetry(_Selective):
    """One attempt, no retry."""

    def _delay(self, tries: int) -> float | None:
        return None


@dataclass(frozen=True)
class Fixed(_Selective):
    """At most `max_attempts` attempts, `seconds` apart. Raises ConfigurationError for bad
    values."""

    seconds: float = 1.0
    max_attempts: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.max_attempts, self.seconds)

    def _delay(self, tries: int) -> float | None:
        return self.seconds if tries < self.max_attempts else None


@dataclass(frozen=True)
class Exponential(_Selective):
    """At most `max_attempts` attempts, with waits of `first`, `first * factor`,
    `first * factor**2` ... seconds, up to `max_delay`.

    With `jitter` j each wait is drawn from [wait * (1 - j), wait], so that tasks that failed
    together do not all come back together (0: exact waits). Raises ConfigurationError for bad
    values.
    """

    max_attempts: int = 5
    first: float = 1.0
    factor: float = 2.0
    max_delay: float = ONE_DAY
    jitter: float = 0.5
    random: random.Random = field(default=_random, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.max_attempts, self.first, self.max_delay)
        values.number("Exponential factor", self.factor, 1, MOST_FACTOR)
        values.number("Exponential jitter, a share", self.jitter, 0, 1)

    def _delay(self, tries: int) -> float | None:
        if tries >= self.max_attempts:
            return None
        try:
            wait = min(self.max_delay, self.first * self.factor ** (tries - 1))
        except OverflowError:
            wait = self.max_delay if self.first else 0.0
        return wait * (1 - self.jitter * self.random.random())


@dataclass(frozen=True)
class Delays(_Selective):
    """One more attempt after each of these delays (seconds). Raises ConfigurationError for bad
    values."""

    delays: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.delays, Sequence) or isinstance(self.delays, str | bytes):
            raise ConfigurationError(
                f"delays {values.brief(self.delays)}: use a list of numbers of seconds"
            )
        object.__setattr__(self, "delays", tuple(self.delays))
        _check(1, *self.delays)

    def _delay(self, tries: int) -> float | None:
        return self.delays[tries - 1] if tries <= len(self.delays) else None


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _check(max_attempts: int, *seconds: float) -> None:
    values.whole("max_attempts (the first run is an attempt)", max_attempts, 1)
    for wait in seconds:
        values.number("a delay in seconds", wait, 0, values.MOST_SECONDS)


DEFAULT_RETRY = Exponential(max_attempts=5)
"""Default policy of all queues but ordered ones."""

UNTIL_DONE = Exponential(max_attempts=2**31 - 1, first=20.0, max_delay=120.0, on=(BaseException,))
"""Default policy of ordered queues: retry for ever on whatever a handler raises, 10 to 20 s after
the first failure, 60 to 120 s after later ones."""
