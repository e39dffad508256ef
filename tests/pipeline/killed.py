"""Jobs that kill their process when a step was done a number of times."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestListWriter, ManifestWriter

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.pipeline import ledger
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.jobs import erase as job
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.warehouse import data_files, sweeping
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.compaction import compact
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import WarehouseTable
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.forks import die_after

Steps = dict[str, tuple[Any, str]]
"""Function whose return ends a step, by step."""

ROWS = 7
"""Rows in a batch of an export."""

_WRITES: Steps = {
    "file written": (data_files, data_files._write_one.__name__),
    "committed": (SqlCatalog, "commit_table"),
}
EXPORT: Steps = _WRITES | {
    "namespace created": (SqlCatalog, "create_namespace"),
    "registered": (SqlHistory, SqlHistory.advance.__name__),
    "read": (SqlHistory, SqlHistory.attempts.__name__),
    "table created": (SqlCatalog, "create_table"),
    "all files written": (WarehouseTable, WarehouseTable.write.__name__),
    "manifest written": (ManifestWriter, "__exit__"),
    "manifest list written": (ManifestListWriter, "__exit__"),
    "metadata written": (SqlCatalog, "_write_metadata"),
    "files count": (WarehouseTable, WarehouseTable.append.__name__),
    "position reported": (Exporter, Exporter._save_position.__name__),
    "events read": (SqlHistory, SqlHistory.events.__name__),
}
ERASE: Steps = _WRITES | {
    "tombstone": (job, "bury"),
    "days noted": (job, job._days.__name__),
    "builds refused": (job, job._publish.__name__),
    "ledger written": (ledger, "add"),
    "partition replaced": (WarehouseTable, "replace"),
    "table done": (job, job._delete.__name__),
    "published": (Builds, "publish"),
    "build finished": (Builds, "finish"),
    "snapshots forgotten": (WarehouseTable, "expire"),
    "file removed": (sweeping, "remove"),
    "swept": (WarehouseTable, "sweep"),
    "verified": (job, "rows_with"),
}


def export_until(url: str, location: Location, step: str, times: int) -> None:
    """Export, and end the process after the step has been done `times` times."""
    die_after(*EXPORT[step], times)
    history = SqlHistory(task_store(url).database)
    Exporter(history, Warehouse(location), SYSTEM_CLOCK, rows=ROWS).round()


def erase_until(location: Location, key: str, step: str, times: int) -> None:
    """Erase a key, and end the process after the step has been done `times` times."""
    die_after(*ERASE[step], times)
    job.erase(Warehouse(location), key, SYSTEM_CLOCK)


def compact_until(location: Location, now: int, step: str) -> None:
    """Compact, and end the process after this method of a table."""
    die_after(WarehouseTable, step, 1)
    compact(Warehouse(location).table(ATTEMPTS), now)
