"""A build on an object store in its own process: `python build_on_s3.py LAKE CATALOG MASTER`, with the
store in the variables of AWS. Prints the task ids of silver.tasks, and the state of a repeated build.

Spark has the client of object stores from its start, because no jar can be added later.
"""

from __future__ import annotations

import json
import sys

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.jobs.build import JobContext, build
from fairlead.pipeline.session import session
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables
from services import iceberg
from tests.pipeline.test_build import SETTINGS


def main(lake: str, catalog: str, master: str) -> None:
    location = Location.of(lake, catalog)
    jars = [iceberg.jar(), *iceberg.catalog_jars(), iceberg.aws_jar()]
    settings = {"spark.sql.shuffle.partitions": "2", **location.spark(jars)}
    spark = session(master, "fairlead tests", settings)
    warehouse = Warehouse(location)
    job = JobContext(spark, warehouse, SYSTEM_CLOCK)
    first = build(job, SETTINGS)
    again = build(job, SETTINGS)
    tasks = WarehouseTables(spark, warehouse, SYSTEM_CLOCK).read(TASKS)
    ids = sorted(row["task_id"] for row in tasks.collect())
    print(json.dumps({"first": first.state, "again": again.state, "tasks": ids}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
