"""`fairlead pipeline sql`: one query over the tables of the lake, without Spark."""

from __future__ import annotations

import csv
import itertools
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, say_error
from fairlead.cli.parameters import with_options
from fairlead.pipeline.commands.access import existing_lake
from fairlead.pipeline.commands.options import LakeOptions
from fairlead.pipeline.commands.output import failures

SHOWN_ROWS = 1000
"""Maximum number of rows of a table for people."""

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Whole numbers that a JSON document may have; others are texts there."""


class OutputFormat(StrEnum):
    """Format of the result."""

    table = "table"
    csv = "csv"


class SqlOptions(LakeOptions, frozen=True, kw_only=True):
    """Options of `pipeline sql`."""

    format: Annotated[
        OutputFormat,
        typer.Option(help="A table for people (at most 1,000 rows), or CSV."),
    ] = OutputFormat.table
    json: Json = False
    memory: Annotated[str, typer.Option(help="Memory of the query.", metavar="SIZE")] = "1GB"


@with_options
def sql(
    query: Annotated[str, typer.Argument(help="One SELECT over the tables of the dictionary.")],
    options: SqlOptions,
) -> None:
    """Query the tables of the lake by their names, without Spark: DuckDB over the current build.

    `fairlead pipeline tables` lists the tables and columns. tenant_of(fairness_key) is the tenant
    of a key. Example: fairlead pipeline sql "select queue, sum(busy_us) from silver.service group
    by queue"
    """
    with failures():
        from fairlead.pipeline.models import TABLES
        from fairlead.pipeline.reading.query import open_views, select, tables_in

        warehouse = existing_lake(options.lake, options.catalog)
        # The list of a year of hourly files takes a second, so open no table in vain.
        tables = tables_in(query) or TABLES
        with open_views(warehouse, tables, memory=options.memory) as connection:
            found = select(connection, query, options.memory)
            if options.json:
                rows = (map(_plain, row) for row in found.rows)
                as_json([dict(zip(found.columns, row, strict=True)) for row in rows])
            elif options.format is OutputFormat.csv:
                writer = csv.writer(sys.stdout)
                writer.writerow(found.columns)
                writer.writerows(map(_text, row) for row in found.rows)
            else:
                shown = list(itertools.islice(found.rows, SHOWN_ROWS + 1))
                as_table(found.columns, [list(map(_text, row)) for row in shown[:SHOWN_ROWS]])
                if len(shown) > SHOWN_ROWS:
                    say_error(
                        f"these are the first {SHOWN_ROWS:,} rows: add a LIMIT, or use --format csv"
                    )


def _plain(value: Any) -> Any:
    """Return a value for msgspec, with texts for numbers and keys that JSON cannot have."""
    if isinstance(value, int):
        return value if _LEAST <= value <= _MOST else str(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def _text(value: Any) -> str:
    return "" if value is None else value.hex() if isinstance(value, bytes) else str(value)
