"""Exports that kill their process when a step was done a number of times, or export until they are
stopped."""

from __future__ import annotations

import time
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestListWriter, ManifestWriter

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.errors import StoreUnavailable
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.export_runs import RunExporter
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


def export_forever(url: str, location: Location, begins: Event) -> None:
    """Export in a loop, and set the event when it begins."""
    exporter = _exporter(url, location)
    begins.set()
    while True:
        try:
            exporter.round()
        except StoreUnavailable as error:  # SQLite on a busy machine
            print(error, flush=True)
        time.sleep(0.002)  # an exporter of rounds without pause would leave SQLite to nobody


def export_runs_forever(url: str, folder: Path, rows: Connection[int, int]) -> None:
    """Export runs of ordered queues in a loop, and send the number of rows of each batch."""
    from fairlead.backends.cassandra.ordered_store import CassandraOrderedStore

    runs = CassandraOrderedStore(url).runs
    exporter = RunExporter(runs, Warehouse(Location.of(folder)), SYSTEM_CLOCK, ROWS)
    while True:
        with suppress(StoreUnavailable):  # a busy server; a worker tries again too
            exporter.round(on_rows=lambda count: count and rows.send(count), batches=1)
        time.sleep(0.01)


def _exporter(url: str, location: Location) -> Exporter:
    return Exporter(
        SqlHistory(task_store(url).database), Warehouse(location), SYSTEM_CLOCK, rows=ROWS
    )
