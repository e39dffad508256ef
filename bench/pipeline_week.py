"""A lake with a year of hourly partitions, then a week of commits of one minute each.

    python bench/pipeline_week.py [--hours 8760] [--commits 10080] [--folder FOLDER]

The clock of the commits is simulated: snapshots are a minute apart. Once an hour of that clock
the exporter's housekeeping forgets old snapshots, and once a day it removes files that no snapshot
has listed for a day. Times are those of the processor, in this process, because other work on the
machine changes them little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import pyarrow as pa  # noqa: E402
from pyiceberg.table import snapshots  # noqa: E402

from fairlead.pipeline.bronze import ATTEMPTS  # noqa: E402
from fairlead.pipeline.reading.query import open_views, select  # noqa: E402
from fairlead.pipeline.reading.snapshots import Snapshots  # noqa: E402
from fairlead.pipeline.warehouse.location import Location  # noqa: E402
from fairlead.pipeline.warehouse.table import WarehouseTable  # noqa: E402
from fairlead.pipeline.warehouse.warehouse import Warehouse  # noqa: E402

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
HOURS_A_COMMIT = 168
ROWS = 20
"""Attempts of a commit, and of an hour of the year."""

_PLAIN: dict[str, Any] = {
    "string": "x",
    "bigint": 1,
    "int": 1,
    "smallint": 1,
    "tinyint": 1,
    "double": 1.0,
    "boolean": False,
}


def attempts(at: datetime, count: int) -> list[dict[str, Any]]:
    """Return attempts that finish at this instant."""
    plain = {column.name: _PLAIN.get(column.type, at) for column in ATTEMPTS.columns}
    return [plain | {"task_id": f"{at:%Y%m%d%H%M}-{n}"} for n in range(count)]


def commit(table: WarehouseTable, rows: list[dict[str, Any]], cursor: str) -> float:
    """Append the rows and move the cursor; return the processor's seconds of the commit and its
    files."""
    data = pa.Table.from_pylist(rows, ATTEMPTS.arrow())
    begun = time.process_time()
    seen = table.state()
    assert table.append(table.write(data, "export", seen), {"store": cursor}, seen)
    return time.process_time() - begun


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and its seconds of the processor."""
    begun = time.process_time()
    result = call()
    return result, round(time.process_time() - begun, 3)


def sizes(table: WarehouseTable) -> dict[str, float]:
    """Return the sizes of the metadata."""
    stored = table.state().stored
    assert stored is not None
    path = Path(stored.metadata_location.removeprefix("file://"))
    files = [file.stat().st_size for file in path.parent.iterdir()]
    snapshot = stored.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(stored.io)
    return {
        "metadata.json, kB": round(path.stat().st_size / 1000, 1),
        "manifests": len(manifests),
        "manifests, kB": round(sum(each.manifest_length for each in manifests) / 1000, 1),
        "metadata folder, files": len(files),
        "metadata folder, kB": round(sum(files) / 1000, 1),
        "snapshots": len(stored.metadata.snapshots),
    }


def reading(warehouse: Warehouse, hour: datetime) -> dict[str, float]:
    """Return the times of reading the table."""
    seen, listing = timed(lambda: Snapshots(warehouse).look([ATTEMPTS]))
    files = seen.tables[ATTEMPTS].files
    connection, opening = timed(lambda: open_views(warehouse, [ATTEMPTS]))
    query = (
        "SELECT count(*) FROM bronze.attempts WHERE finished_at >="
        f" TIMESTAMPTZ '{hour:%Y-%m-%d %H}:00:00Z' AND finished_at <"
        f" TIMESTAMPTZ '{hour + timedelta(hours=1):%Y-%m-%d %H}:00:00Z'"
    )
    with connection:
        _, counting = timed(lambda: list(select(connection, query).rows))
    scan = warehouse.catalog.load_table("fairlead.bronze_attempts").scan(
        row_filter=f"finished_at >= '{hour:%Y-%m-%dT%H}:00:00+00:00' and finished_at <"
        f" '{hour + timedelta(hours=1):%Y-%m-%dT%H}:00:00+00:00'"
    )
    planned, planning = timed(lambda: len(list(scan.plan_files())))
    return {
        "files": len(files),
        "list of files, s": listing,
        "open of the view, s": opening,
        "DuckDB counts one hour, s": counting,
        "PyIceberg plans one hour, s": planning,
        "files of the plan": planned,
    }


def main() -> None:
    """Fill the lake, commit for a week, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=8760)
    parser.add_argument("--commits", type=int, default=10_080)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="week-"))
    warehouse = Warehouse(Location.of(folder / "lake"))
    table = warehouse.table(ATTEMPTS)
    # The simulated clock ends before the real one, so that no file seems to be of the future.
    week = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - 9 * DAY
    clock = week - options.hours * timedelta(hours=1)
    snapshots.time = SimpleNamespace(time=lambda: clock.timestamp())  # type: ignore[attr-defined]
    for first in range(0, options.hours, HOURS_A_COMMIT):
        hours = range(first, min(first + HOURS_A_COMMIT, options.hours))
        start = week - options.hours * timedelta(hours=1)
        rows = [row for n in hours for row in attempts(start + n * timedelta(hours=1), ROWS)]
        clock = start + hours[-1] * timedelta(hours=1)
        commit(table, rows, str(first))
    hour = week - options.hours // 2 * timedelta(hours=1)
    found: dict[str, Any] = {"after the year": sizes(table) | reading(warehouse, hour)}
    print(json.dumps(found), flush=True)
    seconds, tending, real = [], [], []
    for minute in range(options.commits):
        clock = week + minute * MINUTE
        seconds.append(commit(table, attempts(clock, ROWS), str(minute)))
        if minute % 60 == 59:
            real.append(time.time_ns() // 1000)
            now = round(clock.timestamp() * 1_000_000)
            begun = time.process_time()
            table.tend(now)
            if len(real) > 24 and len(real) % 24 == 0:
                table.sweep(real[-25])  # files have the real time at which they were written
            tending.append(time.process_time() - begun)
            if len(real) % 24 == 0:
                mean = round(statistics.mean(seconds[-100:]) * 1000, 1)
                day = {"day": len(real) // 24, "commits, ms": mean, "housekeeping, s": tending[-1]}
                print(json.dumps(day | sizes(table)), flush=True)
    tenth = max(1, min(100, options.commits // 10))
    found |= {
        "first commits, ms": round(statistics.mean(seconds[:tenth]) * 1000, 1),
        "last commits, ms": round(statistics.mean(seconds[-tenth:]) * 1000, 1),
        "housekeeping of an hour, s, median and most": [
            round(each, 2) for each in (statistics.median(tending), max(tending))
        ],
        "after the week": sizes(table) | reading(warehouse, hour),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
