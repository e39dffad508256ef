"""Lakes in Iceberg for tests of Spark: rows as the exporter appends them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fairlead.clock import to_micros
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import WarehouseTable
from fairlead.pipeline.warehouse.warehouse import Warehouse
from services import MissingProgram, iceberg
from tests.pipeline.frames import T0


def jars(on_s3: bool = False) -> list[Any]:
    """Return the jars of Spark. Skip the test if they cannot be fetched."""
    try:
        return [iceberg.jar(), *iceberg.catalog_jars(), *([iceberg.aws_jar()] if on_s3 else [])]
    except (MissingProgram, RuntimeError) as missing:
        pytest.skip(str(missing).splitlines()[0])


def lake_in(folder: Path | str) -> Warehouse:
    """Return the lake in this folder, with its catalog there."""
    return Warehouse(Location.of(folder))


class MadeOnce:
    """A lake that is filled once. Each test gets it as it was then, in the same folder, because the
    tables hold absolute paths."""

    def __init__(self, folder: Path, fill: Callable[[Warehouse], object]) -> None:
        self._folder, self._copy = folder / "lake", folder / "copy"
        fill(lake_in(self._folder))
        shutil.copytree(self._folder, self._copy)

    def again(self) -> Warehouse:
        """Return the lake as it was filled. No lake that was returned before may be used any more."""
        shutil.rmtree(self._folder)
        shutil.copytree(self._copy, self._folder)
        return lake_in(self._folder)


def root_of(lake: Warehouse) -> Path:
    """Return the folder of a lake."""
    folder = lake.location.folder
    assert folder is not None
    return folder


def moved(row: Mapping[str, Any], by: timedelta) -> dict[str, Any]:
    """Return a row with all its instants moved."""
    return {
        name: value + by if isinstance(value, datetime) else value for name, value in row.items()
    }


def overtake(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[WarehouseTable, int], object]
) -> list[tuple[str, Any]]:
    """Call `step` with the table and the number of the write, from 1 on, between the files and the
    commit of each write. Return the list to which each write appends its table and its files."""
    write, wrote = WarehouseTable.write, list[tuple[str, Any]]()

    def overtaken(table: WarehouseTable, *args: Any) -> Any:
        written = write(table, *args)
        wrote.append((table.table.name, written))
        step(table, len(wrote))
        return written

    monkeypatch.setattr(WarehouseTable, "write", overtaken)
    return wrote


def export(
    warehouse: Warehouse,
    table: Table,
    rows: Iterable[Mapping[str, Any]],
    cursor: str = "1",
    by: timedelta = timedelta(0),
    hours: float | None = None,
) -> None:
    """Append rows and move the cursor `store` in one commit, as the exporter does. `hours`: hours
    after T0 up to which the history is known then; default: up to now."""
    here = warehouse.table(table)
    data = pa.Table.from_pylist([moved(row, by) for row in rows], table.arrow())
    known = None if hours is None else to_micros(T0 + timedelta(hours=hours))
    while True:
        seen = here.state()
        written = here.write(data, "export", seen)
        if here.append(written, {"store": cursor}, seen, known):
            return
        here.take_away(written)
