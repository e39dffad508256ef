"""An erasure that kills its process when a step was done a number of times."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline import ledger
from fairlead.pipeline.jobs import erase as job
from fairlead.pipeline.warehouse import data_files, sweeping
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import WarehouseTable
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.forks import die_after

STEPS: dict[str, tuple[Any, str]] = {
    "tombstone": (job, "bury"),
    "days noted": (job, job._days.__name__),
    "builds refused": (job, job._publish.__name__),
    "ledger written": (ledger, "add"),
    "file written": (data_files, data_files._write_one.__name__),
    "committed": (SqlCatalog, "commit_table"),
    "partition replaced": (WarehouseTable, "replace"),
    "table done": (job, job._delete.__name__),
    "published": (Builds, "publish"),
    "build finished": (Builds, "finish"),
    "snapshots forgotten": (WarehouseTable, "expire"),
    "file removed": (sweeping, "remove"),
    "swept": (WarehouseTable, "sweep"),
    "verified": (job, "rows_with"),
}
"""Function whose return ends a step, by step."""


def erase_until(location: Location, key: str, step: str, times: int) -> None:
    """Erase a key, and end the process after the step has been done `times` times."""
    die_after(*STEPS[step], times)
    job.erase(Warehouse(location), key, SYSTEM_CLOCK)
