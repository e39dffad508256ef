"""A process that exports attempts into Iceberg tables, and kills itself when a step was done a
number of times.

Arguments: URL LAKE CATALOG STEP TIMES. With the step `never` the process exports until it gets a
signal.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestListWriter, ManifestWriter

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.errors import StoreUnavailable
from fairlead.pipeline import export
from fairlead.pipeline.warehouse import data_files
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import WarehouseTable
from fairlead.pipeline.warehouse.warehouse import Warehouse

ROWS = 7
"""Rows in a batch."""

KILLED = 9


def _always(*_: Any) -> bool:
    return True


STEPS: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "namespace created": (SqlCatalog, "create_namespace", _always),
    "registered": (SqlHistory, SqlHistory.advance.__name__, _always),
    "read": (SqlHistory, SqlHistory.attempts.__name__, _always),
    "table created": (SqlCatalog, "create_table", _always),
    "file written": (data_files, data_files._write_one.__name__, _always),
    "all files written": (WarehouseTable, WarehouseTable.write.__name__, _always),
    "manifest written": (ManifestWriter, "__exit__", _always),
    "manifest list written": (ManifestListWriter, "__exit__", _always),
    "metadata written": (SqlCatalog, "_write_metadata", _always),
    "committed": (SqlCatalog, "commit_table", _always),
    "files count": (WarehouseTable, WarehouseTable.append.__name__, _always),
    "position reported": (
        export.Exporter,
        export.Exporter._save_position.__name__,
        _always,
    ),
    "events read": (SqlHistory, SqlHistory.events.__name__, _always),
}
"""Function whose return ends a step, and a condition on its arguments, by step."""


def die_after(step: str, times: int) -> None:
    """Kill the process after the step has been done `times` times."""
    owner, name, is_meant = STEPS[step]
    real, taken = getattr(owner, name), 0

    def then_dies(*args: Any, **kwargs: Any) -> Any:
        nonlocal taken
        result = real(*args, **kwargs)
        taken += is_meant(*args)
        if taken == times and is_meant(*args):
            os._exit(KILLED)
        return result

    setattr(owner, name, staticmethod(then_dies) if name == "_write_metadata" else then_dies)


def export_until_killed(exporter: export.Exporter) -> None:
    """Export in a loop; a line says when it begins."""
    print("exporting", flush=True)
    while True:
        try:
            exporter.round()
        except StoreUnavailable as error:  # SQLite on a busy machine
            print(error, flush=True)
        time.sleep(0.002)  # an exporter of rounds without pause would leave SQLite to nobody


def main(url: str, lake: str, catalog: str, step: str, times: str) -> None:
    if step != "never":
        die_after(step, int(times))
    exporter = export.Exporter(
        SqlHistory(task_store(url).database),
        Warehouse(Location.of(lake, catalog)),
        SYSTEM_CLOCK,
        rows=ROWS,
    )
    if step != "never":
        exporter.round()
        return
    export_until_killed(exporter)


if __name__ == "__main__":
    main(*sys.argv[1:])
