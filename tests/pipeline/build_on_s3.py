"""A build on an object store in its own process: `python build_on_s3.py LAKE CATALOG MASTER [kill]`, with
the store in the variables of AWS. Prints the keys of silver.tasks, the number of killed executors, and
the state of a repeated build.

Spark has the client of object stores from its start, because no jar can be added later. With `kill`,
an executor dies after the first table.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.jobs.build import JobContext, build
from fairlead.pipeline.jobs.checks import check
from fairlead.pipeline.models import TASKS
from fairlead.pipeline.session import session
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables
from services import iceberg
from tests.pipeline.test_build import SETTINGS


def executors(application: str) -> list[int]:
    """Return the process ids of the executors of an application on this machine."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if application in words and any("CoarseGrainedExecutor" in word for word in words):
                found.append(int(process.name))
    return sorted(found)


def main(lake: str, catalog: str, master: str, kill: str = "") -> None:
    jars = [iceberg.jar(), *iceberg.catalog_jars(), iceberg.aws_jar()]
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.jars": ",".join(map(str, jars)),
        "spark.executor.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    warehouse = Warehouse(Location.of(lake, catalog))
    spark = session(master, "fairlead tests", settings, warehouse)
    killed: list[int] = []

    replace = WarehouseTables.replace

    def replace_and_kill(*of: Any) -> int:
        rows = replace(*of)
        if kill and not killed:
            killed.append(executors(spark.sparkContext.applicationId)[0])
            os.kill(killed[0], signal.SIGKILL)
        return rows

    WarehouseTables.replace = replace_and_kill  # type: ignore[method-assign]

    job = JobContext(spark, warehouse, SYSTEM_CLOCK)
    first = build(job, SETTINGS)
    again = build(job, SETTINGS)
    tasks = WarehouseTables(spark, warehouse, SYSTEM_CLOCK).read(TASKS)
    found = {
        "first": first.state,
        "again": again.state,
        "checks": all(each.holds for each in check(warehouse, SYSTEM_CLOCK).checks),
        "killed": len(killed),
        "keys": sorted(row["fairness_key"] for row in tasks.collect()),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
