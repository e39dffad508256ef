"""Erasing a key from an Iceberg catalog: delete rows, expire the snapshots that had them, remove
orphan files.

Deleting rows writes new files, while older snapshots still refer to the old ones. So time travel
ends: each table that had the key keeps only its present state. Needs a classic Spark session (no
Connect).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import QUARANTINE
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.windows import ALL
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.erase.rows import TOGETHER, columns_of, owner_of
from fairlead.pipeline.erase.trace import Trace
from fairlead.pipeline.erase.wanted import ERASED, KEY_COLUMNS, TEXT_COLUMNS, Wanted
from fairlead.pipeline.iceberg import IcebergTables
from fairlead.pipeline.runs import OnRows
from fairlead.pipeline.schema import Table

_PROBE_CHARACTERS = 16
"""Characters of a text that Iceberg's manifests keep as the bound of a file."""


class CatalogErasure:
    """Erasure of one key from the tables of one catalog."""

    def __init__(self, spark: SparkSession, tables: IcebergTables, wanted: Wanted) -> None:
        """Raise ConfigurationError for a session of Spark Connect."""
        if not hasattr(spark, "_jsparkSession"):
            raise ConfigurationError(
                "erase --catalog needs a classic Spark session: use --master, not Spark Connect"
            )
        self._spark = spark
        self._tables = tables
        self._wanted = wanted
        self._names = sorted(wanted.names)

    def erase(self, trace: Trace, on_rows: OnRows) -> dict[str, int]:
        """Erase the key from every table, and expire every snapshot that had it; return the deleted
        rows by table."""
        deleted = {}
        for table in TABLES:
            name = self._tables.name_of(table)
            if not self._spark.catalog.tableExists(name):
                continue
            self._drop_branches(name)
            rows = self._count(table, name)
            if rows:
                statement = f"DELETE FROM {name} WHERE {self._is_of(table)}"  # noqa: S608 - our names; keys are parameters
                self._spark.sql(statement, args=self._args)
                deleted[table.name] = rows
            self._redact(table, name, trace)
            # An older snapshot may contain an error text of the key that does not mention the key.
            if self.held_by(table) or (table.name == FAILURES.name and trace.errors):
                self._expire(name)
            on_rows(table.name, rows)
        return deleted

    def held(self) -> dict[str, int]:
        """Return the number of rows of the key in the files of each table, whether or not a
        snapshot lists the file; omit tables without such rows."""
        tables = [
            table
            for table in TABLES
            if self._spark.catalog.tableExists(self._tables.name_of(table))
        ]
        return {table.name: rows for table in tables if (rows := self.held_by(table))}

    def held_by(self, table: Table) -> int:
        """Return the number of rows of the key in the files of one table. A removed file counts as
        one row if its metadata has the key as a bound."""
        name = self._tables.name_of(table)
        texts = columns_of(table, [c.name for c in table.columns if c.type == "string"])
        here = self._loaded(name)
        files = (
            self._spark.read.schema(", ".join(f"`{text}` string" for text in texts))
            .option("recursiveFileLookup", True)
            .option("pathGlobFilter", "*.parquet")
        )
        try:
            rows = files.parquet(
                here.properties().get("write.data.path") or f"{here.location()}/data"
            )
        except AnalysisException as error:
            # A table without files has no folder.
            if (
                error.getCondition() != "PATH_NOT_FOUND"
                or not self._spark.table(f"{name}.all_data_files").isEmpty()
            ):
                raise
            return self._bounds(name)
        return rows.where(self._mentions_key(table)).count() + self._bounds(name)

    @property
    def _args(self) -> dict[str, Any]:
        return {f"name_{n}": name for n, name in enumerate(self._names)}

    def _is_of(self, table: Table) -> str:
        """Return a condition with parameters for the rows of the key."""
        markers = [
            f":{marker}"
            for marker, name in self._args.items()
            if name != ALL or table.name not in TOGETHER
        ]
        if table.name == QUARANTINE.name:
            return f"get_json_object(raw, '$.fairness_key') IN ({', '.join(markers)})"
        owner = owner_of(table)
        return f"{owner} IN ({', '.join(markers)})" if markers and owner is not None else "false"

    def _count(self, table: Table, name: str) -> int:
        return self._spark.table(name).where(self._is_own(table)).count()

    def _is_own(self, table: Table) -> Column:
        """Return the condition of `_is_of` as a column."""
        names = [name for name in self._names if name != ALL or table.name not in TOGETHER]
        if table.name == QUARANTINE.name:
            return F.get_json_object("raw", "$.fairness_key").isin(names)
        owner = owner_of(table)
        return F.lit(False) if owner is None else F.col(owner).isin(names)

    def _redact(self, table: Table, name: str, trace: Trace) -> None:
        """Redact rows of other keys that mention the key, or may contain the text of one of its
        errors."""
        for column in columns_of(table, KEY_COLUMNS):
            held = F.col(column).isin(self._names)
            if column != owner_of(table) and not self._spark.table(name).where(held).isEmpty():
                markers = ", ".join(f":{marker}" for marker in self._args)
                statement = f"UPDATE {name} SET {column} = :erased WHERE {column} IN ({markers})"  # noqa: S608 - as above
                self._spark.sql(statement, args={**self._args, "erased": ERASED})
        for column in columns_of(table, TEXT_COLUMNS):
            if not self._spark.table(name).where(F.col(column).rlike(self._pattern)).isEmpty():
                change = f"{column} = regexp_replace({column}, :pattern, :erased)"
                statement = f"UPDATE {name} SET {change} WHERE {column} RLIKE :pattern"  # noqa: S608 - as above
                self._spark.sql(statement, args={"pattern": self._pattern, "erased": ERASED})
        if table.name == FAILURES.name and trace.errors:
            self._clear_error_texts(name, trace)

    def _clear_error_texts(self, name: str, trace: Trace) -> None:
        schema = "hour_us bigint, queue string, name string, error_fp bigint"
        errors = self._spark.createDataFrame(sorted(trace.errors), schema).alias("errors")
        same = F.unix_micros(F.col(f"{name}.hour")) == F.col("errors.hour_us")
        for column in ("queue", "name", "error_fp"):
            same = same & (F.col(f"{name}.{column}") == F.col(f"errors.{column}"))
        matched = same & F.col(f"{name}.error_text").isNotNull()
        errors.mergeInto(name, matched).whenMatched().update(
            {"error_text": F.lit(None).cast("string")}
        ).merge()

    @property
    def _pattern(self) -> str:
        r"""Return `Wanted.mention` in the syntax of Java, where `\w` is ASCII by default."""
        return f"(?U)(?<!\\w)(?:{'|'.join(map(re.escape, self._wanted.forms))})(?!\\w)"

    def _mentions_key(self, table: Table) -> Column:
        keys = [F.col(column).isin(self._names) for column in columns_of(table, KEY_COLUMNS)]
        if table.name in TOGETHER:
            keys = [self._is_own(table)]
        texts = [F.col(column).rlike(self._pattern) for column in columns_of(table, TEXT_COLUMNS)]
        mentioned = F.lit(False)
        for each in (*keys, *texts):
            mentioned = mentioned | F.coalesce(each, F.lit(False))
        return mentioned

    def _drop_branches(self, name: str) -> None:
        """Drop the branches of unpublished builds. No build is running now."""
        for row in self._spark.table(f"{name}.refs").where("name != 'main'").collect():
            kind = "TAG" if row["type"] == "TAG" else "BRANCH"
            self._spark.sql(f"ALTER TABLE {name} DROP {kind} `{row['name']}`")

    def _expire(self, name: str) -> None:
        """Expire all snapshots but the present one, with their files and orphan files."""
        self._expire_snapshots(name)
        if self._bounds(name):
            # `rewrite_manifests` skips a table with a single manifest, which then still lists the
            # removed files.
            self._call("rewrite_data_files", name, options={"rewrite-all": "true"})
            self._expire_snapshots(name)
        actions = self._spark._jvm.org.apache.iceberg.spark.actions.SparkActions  # type: ignore[union-attr]
        session = self._spark._jsparkSession
        # Iceberg's procedure keeps files of the last day for concurrent writers; there are none
        # here.
        until = int(time.time() * 1000) + 1
        actions.get(session).deleteOrphanFiles(self._loaded(name)).olderThan(until).execute()

    def _expire_snapshots(self, name: str) -> None:
        self._call("rewrite_manifests", name)
        catalog, _, rest = name.partition(".")
        self._spark.sql(
            f"CALL {catalog}.system.expire_snapshots(table => :name, older_than => TIMESTAMP"
            " '2999-01-01 00:00:00', retain_last => 1)",
            args={"name": rest},
        ).collect()

    def _call(self, procedure: str, name: str, options: Mapping[str, str] | None = None) -> None:
        catalog, _, rest = name.partition(".")
        given = ", ".join(f"'{key}', '{value}'" for key, value in (options or {}).items())
        extra = f", options => map({given})" if options else ""
        self._spark.sql(
            f"CALL {catalog}.system.{procedure}(table => :name{extra})", args={"name": rest}
        ).collect()

    def _bounds(self, name: str) -> int:
        """Return the number of manifest entries of removed files that have the key as a bound."""
        prefixes = [each[:_PROBE_CHARACTERS] for each in self._names]
        bounds = F.concat(
            F.map_values("data_file.lower_bounds"), F.map_values("data_file.upper_bounds")
        )
        has = F.exists(bounds, lambda bound: bound.cast("string").isin(prefixes))
        self._spark.catalog.refreshTable(name)
        return self._spark.table(f"{name}.all_entries").where("status = 2").where(has).count()

    def _loaded(self, name: str) -> Any:
        spark3 = self._spark._jvm.org.apache.iceberg.spark.Spark3Util  # type: ignore[union-attr]
        return spark3.loadIcebergTable(self._spark._jsparkSession, name)
