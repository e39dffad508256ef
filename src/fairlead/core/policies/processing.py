"""Processing policies: how long a run may take, and what happens to a stuck task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from fairlead.core import values
from fairlead.errors import ConfigurationError

WhenStuck = Literal["resume", "error", "ignore"]


class ProcessingPolicy(Protocol):
    """A rule for runs and stuck tasks; times in seconds."""

    @property
    def timeout(self) -> float | None:
        """Longest time of one run; None for no limit."""

    @property
    def max_stuck(self) -> float | None:
        """Longest time of a task in PROCESSING while its node lives, or None for no limit. The
        tasks of a dead node are resumed in any case."""

    @property
    def when_stuck(self) -> WhenStuck:
        """Action past `max_stuck`: run the task again, move it to ERROR, or leave it."""


@dataclass(frozen=True)
class Processing:
    """The processing policy for most tasks. `max_stuck` defaults to twice the `timeout` plus a
    minute. Raises ConfigurationError for bad values."""

    timeout: float | None = None
    max_stuck: float | None = None
    when_stuck: WhenStuck = "resume"

    def __post_init__(self) -> None:
        for name in ("timeout", "max_stuck"):
            seconds = getattr(self, name)
            if seconds is not None:
                values.seconds(f"Processing {name}", seconds)
        values.one_of("Processing when_stuck", self.when_stuck, *get_args(WhenStuck))
        if (
            self.timeout is not None
            and self.max_stuck is not None
            and self.max_stuck <= self.timeout
        ):
            raise ConfigurationError(
                f"Processing max_stuck={self.max_stuck!r} is not above timeout={self.timeout!r}: "
                "another node would get the task while it may still run"
            )
        if self.max_stuck is None and self.timeout is not None:
            object.__setattr__(self, "max_stuck", 2 * self.timeout + 60)
