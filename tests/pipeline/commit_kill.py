"""A process that kills itself at one of its commits to a catalog."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog


def die_at_commit(number: int, moment: str) -> None:
    """Kill this process `before` or `after` its commit with this number, counted from 0."""
    commit, commits = SqlCatalog.commit_table, iter(range(sys.maxsize))

    def counted(*args: Any, **kwargs: Any) -> Any:
        dies = next(commits) == number
        if dies and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = commit(*args, **kwargs)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    SqlCatalog.commit_table = counted  # type: ignore[method-assign]
