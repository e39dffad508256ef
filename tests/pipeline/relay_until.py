"""A process that relays and kills itself after one step: URL KAFKA STEP TIMES.

The step `never` relays until the process is killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from fairlead.backends.sql.history import SqlHistory
from fairlead.connect import task_store
from fairlead.pipeline.stream.relay import Relay
from fairlead.pipeline.stream.sender import Sender
from fairlead.pipeline.stream.topic import AttemptsTopic
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
"""Function after whose call the process dies, by step."""


def die_after(step: str, times: int) -> None:
    """Kill the process after the step has been done `times` times."""
    owner, name = STEPS[step]
    real: Callable[..., Any] = getattr(owner, name)
    taken = 0

    def then_dies(*of: Any, **more: Any) -> Any:
        nonlocal taken
        answer = real(*of, **more)
        taken += 1
        if taken == times:
            os._exit(KILLED)
        return answer

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
