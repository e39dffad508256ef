"""A process that relays attempts to Kafka and kills itself when a step was done a number of times.

Arguments: URL KAFKA STEP TIMES. With the step `never` the process relays until others kill it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from fairlead.backends.sql.history import SqlHistory
from fairlead.connect import task_store
from fairlead.pipeline.stream.relay import Relay
from fairlead.pipeline.stream.topic import AttemptsTopic, Sender
from tests.pipeline.topics import relay

KILLED = 9

STEPS: dict[str, tuple[type, str]] = {
    "topic made": (AttemptsTopic, AttemptsTopic.ensure.__name__),
    "registered": (SqlHistory, SqlHistory.advance.__name__),
    "read": (SqlHistory, SqlHistory.attempts.__name__),
    "one sent": (Sender, Sender.send.__name__),
    "confirmed": (Sender, Sender.confirm.__name__),
    "position reported": (Relay, Relay._advance.__name__),
}
"""Function whose return ends a step, by step."""


def die_after(step: str, times: int) -> None:
    """Kill the process after the step has been done `times` times."""
    owner, name = STEPS[step]
    real: Callable[..., Any] = getattr(owner, name)
    taken = 0

    def then_dies(*args: Any, **kwargs: Any) -> Any:
        nonlocal taken
        result = real(*args, **kwargs)
        taken += 1
        if taken == times:
            os._exit(KILLED)
        return result

    setattr(owner, name, then_dies)


def main(url: str, kafka: str, step: str, times: str) -> None:
    one = relay(SqlHistory(task_store(url).database), kafka)
    if step == "never":
        print("relaying", flush=True)
        one.run(0.01)
    die_after(step, int(times))
    one.round()


if __name__ == "__main__":
    main(*sys.argv[1:])
