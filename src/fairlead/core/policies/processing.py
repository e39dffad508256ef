"""How long a run may take, and what happens to a task that is stuck: the processing policy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from fairlead.errors import ConfigurationError

WhenStuck = Literal["resume", "error", "ignore"]


class ProcessingPolicy(Protocol):
    """What a processing policy must answer; seconds throughout."""

    @property
    def timeout(self) -> float | None:
        """How long one run may take; None: as long as it likes."""

    @property
    def max_stuck(self) -> float | None:
        """How long a task may be in PROCESSING, whatever its node says; None: until its node
        dies."""

    @property
    def when_stuck(self) -> WhenStuck:
        """Past `max_stuck`: run it again, put it into ERROR, or leave it."""


@dataclass(frozen=True)
class Processing:
    """The processing policy most tasks need. `max_stuck` None with a `timeout`: twice the timeout
    and a minute more."""

    timeout: float | None = None
    max_stuck: float | None = None
    when_stuck: WhenStuck = "resume"

    def __post_init__(self) -> None:
        for name in ("timeout", "max_stuck"):
            seconds = getattr(self, name)
            if seconds is not None and not (
                isinstance(seconds, int | float) and 0 < seconds < math.inf
            ):
                raise ConfigurationError(
                    f"Processing {name}={seconds!r}: use a number of seconds above 0, or None"
                )
        if self.when_stuck not in ("resume", "error", "ignore"):
            raise ConfigurationError(
                f"Processing when_stuck={self.when_stuck!r}: use 'resume', 'error' or 'ignore'"
            )
        if (
            self.timeout is not None
            and self.max_stuck is not None
            and self.max_stuck <= self.timeout
        ):
            raise ConfigurationError(
                f"Processing max_stuck={self.max_stuck!r} is not above timeout={self.timeout!r}: "
                "a task would be given to another while it may still run"
            )
        if self.max_stuck is None and self.timeout is not None:
            object.__setattr__(self, "max_stuck", 2 * self.timeout + 60)
