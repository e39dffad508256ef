"""A publication in its own process, killed before or after its n-th commit:
`python publish_until.py LAKE N before|after`."""

from __future__ import annotations

import sys

from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import BRANCH
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.commit_kill import die_at_commit
from tests.pipeline.test_builds import NOW, staged


def main(lake: str, number: int, moment: str) -> None:
    warehouse = Warehouse(Location.of(lake))
    builds = Builds(warehouse)
    before, seen = builds.newest()
    build = before.after(staged(warehouse, "b", "b"), f"{BRANCH}b")
    die_at_commit(number, moment)
    builds.publish(build, seen, NOW)
    builds.finish(build)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
