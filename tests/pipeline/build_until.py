"""A build in its own process, killed at a point: `python build_until.py LAKE POINT`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.jobs import checks, layers
from fairlead.pipeline.jobs.build import JobContext, build
from fairlead.pipeline.session import session
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables
from tests.pipeline.test_build import SETTINGS
from tests.pipeline.warehouses import jars


def die(*_args: Any, **_kwargs: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def after_first(function: Any) -> Any:
    """Return a function that calls `function` once and kills the process at the second call."""
    calls: list[int] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        if calls:
            die()
        calls.append(1)
        return function(*args, **kwargs)

    return called


def main(lake: Path, point: int) -> None:
    if point == 0:
        WarehouseTables.replace = after_first(WarehouseTables.replace)  # type: ignore[method-assign]
    elif point == 1:
        layers.Build._shares = die  # type: ignore[method-assign]
    elif point == 2:
        checks.bronze_checks = die
    elif point == 3:
        Builds.publish = die  # type: ignore[method-assign]
    elif point == 4:
        Builds.finish = after_first(Builds.finish)  # type: ignore[method-assign]
    elif point == 5:
        publish = Builds.publish

        def published(*args: Any) -> bool:
            Builds._finish = after_first(Builds._finish)  # type: ignore[method-assign]
            return publish(*args)

        Builds.publish = published  # type: ignore[method-assign]
    warehouse = Warehouse(Location.of(lake))
    settings = {"spark.jars": ",".join(map(str, jars())), "spark.sql.shuffle.partitions": "2"}
    spark = session("local[2]", settings=settings, warehouse=warehouse)
    build(JobContext(spark, warehouse, SYSTEM_CLOCK), SETTINGS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
