"""Exports that kill their process when a step was done a number of times, or export until they are
stopped."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestListWriter, ManifestWriter

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.warehouse import data_files
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import WarehouseTable
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.forks import die_after

ROWS = 7
"""Rows in a batch."""

STEPS: dict[str, tuple[Any, str]] = {
    "namespace created": (SqlCatalog, "create_namespace"),
    "registered": (SqlHistory, SqlHistory.advance.__name__),
    "read": (SqlHistory, SqlHistory.attempts.__name__),
    "table created": (SqlCatalog, "create_table"),
    "file written": (data_files, data_files._write_one.__name__),
    "all files written": (WarehouseTable, WarehouseTable.write.__name__),
    "manifest written": (ManifestWriter, "__exit__"),
    "manifest list written": (ManifestListWriter, "__exit__"),
    "metadata written": (SqlCatalog, "_write_metadata"),
    "committed": (SqlCatalog, "commit_table"),
    "files count": (WarehouseTable, WarehouseTable.append.__name__),
    "position reported": (Exporter, Exporter._save_position.__name__),
    "events read": (SqlHistory, SqlHistory.events.__name__),
}
"""Function whose return ends a step, by step."""


def export_until(url: str, location: Location, step: str, times: int) -> None:
    """Export, and end the process after the step has been done `times` times."""
    die_after(*STEPS[step], times)
    _exporter(url, location).round()


def _exporter(url: str, location: Location) -> Exporter:
    return Exporter(
        SqlHistory(task_store(url).database), Warehouse(location), SYSTEM_CLOCK, rows=ROWS
    )
