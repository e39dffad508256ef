"""A publication in its own process, killed before or after its n-th commit:
`python publish_until.py LAKE N before|after`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.test_builds import NOW, staged


def main(lake: str, number: int, moment: str) -> None:
    warehouse = Warehouse(Location.of(lake))
    builds = Builds(warehouse)
    before, seen = builds.newest()
    build = before.after(staged(warehouse, "b", "b"))
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
    builds.publish(build, seen, NOW)
    builds.finish(build)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
