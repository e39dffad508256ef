"""A process that moves an old lake and kills itself before or after its n-th commit:
`python migrate_until.py OLD NEW N before|after`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from fairlead.pipeline.jobs.migrate_lake import migrate_lake
from fairlead.pipeline.old_lake import OldLake
from tests.pipeline.warehouses import lake_in


def main(old: str, new: str, number: int, moment: str) -> None:
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
    migrate_lake(OldLake(Path(old)), lake_in(new), rows=1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
