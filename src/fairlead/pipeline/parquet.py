"""Tables of a lake's folder as Spark reads and replaces them: Parquet files under our manifests."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.clock import Clock
from fairlead.pipeline import durable
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.manifest import Manifest, TablePart
from fairlead.pipeline.lake.table import LakeTable, Written, part_from
from fairlead.pipeline.schema import Table

_DATE, _HOUR, _GENERATION = "date", "hour", "g"


class ParquetTables:
    """Tables of a lake. `replace` writes a new generation of files beside the old ones, and
    `publish` lists it in the manifest."""

    def __init__(self, spark: SparkSession, lake: Lake, clock: Clock) -> None:
        self._spark = spark
        self._lake = lake
        self._clock = clock
        self._seen: dict[str, Manifest] = {}
        self._staged: dict[str, dict[str, TablePart | None]] = {}
        self._tables: dict[str, LakeTable] = {}

    def manifest(self, table: Table) -> Manifest:
        """Return the manifest as this job sees it: first as it was read, later with its own
        changes."""
        seen = self._seen.get(table.name)
        if seen is None:
            self._tables[table.name] = self._lake.table(table)
            seen = self._seen[table.name] = self._tables[table.name].manifests.newest()
        return seen

    def _now(self, table: Table) -> dict[str, TablePart]:
        merged: dict[str, TablePart | None] = {
            **self.manifest(table).parts,
            **self._staged.get(table.name, {}),
        }
        return {name: part for name, part in merged.items() if part is not None}

    def parts(self, table: Table) -> list[str]:
        return sorted(self._now(table))

    def read(self, table: Table, parts: Collection[str] | None = None) -> DataFrame:
        now = self._now(table)
        wanted = now if parts is None else {name: now[name] for name in parts if name in now}
        as_seen = Manifest(self.manifest(table).number, parts=wanted)
        here = self._tables[table.name]
        here.check(as_seen)
        paths = here.paths(as_seen)
        if not paths:
            return self._spark.createDataFrame([], table.spark())
        return self._spark.read.schema(table.spark()).parquet(*paths)

    def replace(self, table: Table, rows: DataFrame, parts: Collection[str] | None = None) -> int:
        """Replace partitions. Raise BrokenLake for a row outside of them."""
        now_there = self._now(table)
        replaced = now_there.keys() if parts is None else set(parts)
        here = self._tables[table.name]
        generation = f"{self.manifest(table).number + 1}-{uuid.uuid4().hex[:8]}"
        placed = rows.select(*table.column_names).withColumn(_DATE, F.to_date(table.instant))
        keys = [_DATE]
        if table.by == "hour":
            placed = placed.withColumn(_HOUR, F.lpad(F.hour(table.instant).cast("string"), 2, "0"))
            keys.append(_HOUR)
        if not table.together:
            placed = placed.repartition(*keys)
        (
            placed.withColumn(_GENERATION, F.lit(generation))
            .write.partitionBy(*keys, _GENERATION)
            .mode("append")
            .parquet(str(here.folder))
        )
        written = _written(here, generation)
        stray = written.keys() - replaced if parts is not None else set()
        if stray:
            raise BrokenLake(
                f"{table.name}: rows lie outside the partitions to be replaced:"
                f" {', '.join(sorted(stray))}"
            )
        now = self._clock.now()
        staged = self._staged.setdefault(table.name, {})
        for name in {*replaced, *written}:
            staged[name] = part_from(written.get(name, []), now)
        return sum(file.rows for files in written.values() for file in files)

    def publish(self) -> None:
        for name, staged in self._staged.items():
            if not staged:
                continue
            before = self._seen[name].parts
            expected = {part: before.get(part) for part in staged}
            after = self._tables[name].replace(staged, expected, self._clock.now())
            if after is None:
                raise BrokenLake(f"{name} was changed by another process; run the command again")
            self._seen[name] = after
        self._staged.clear()

    def land(self, table: Table, parts: Collection[str] | None = None) -> None:
        """Do nothing: the exporter writes into the lake itself."""


def _written(table: LakeTable, generation: str) -> dict[str, list[Written]]:
    """Return the files that Spark wrote for this generation, by partition, flushed to disk."""
    import pyarrow.parquet as pq

    found: dict[str, list[Written]] = {}
    for folder in sorted(table.folder.glob(f"date=*/**/g={generation}")):
        part = _part_of(folder.relative_to(table.folder).parts)
        for path in sorted(folder.glob("*.parquet")):
            durable.sync(path)
            rows = pq.read_metadata(path).num_rows
            name = str(path.relative_to(table.folder))
            found.setdefault(part, []).append(Written(part, name, rows, path.stat().st_size, {}))
        durable.sync(folder)
    return found


def _part_of(folders: Iterable[str]) -> str:
    return "/".join(folder.partition("=")[2] for folder in folders if not folder.startswith("g="))
