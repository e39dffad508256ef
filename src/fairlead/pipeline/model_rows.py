"""Rows of a model, computed by Spark from frames that stand for the tables its query names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from fairlead.pipeline.models import MEASURED_ATTEMPTS
from fairlead.pipeline.schema import Table

_NAME = re.compile(r"\b(?:FROM|JOIN) ([a-z]+_\w+)(?P<alias> AS \w+)?")
_SHUFFLE = re.compile(r"/\*\+ REPARTITION\([^)]*\) \*/|, REPARTITION\([^)]*\)")


def rows_of(
    table: Table, frames: Mapping[str, DataFrame], is_small: bool = False, **given: Any
) -> DataFrame:
    """Return the rows of a model from frames by the names in its query: tables (silver_service),
    sound rows of bronze (sound_attempts, sound_events) and small ones of the build.

    is_small: whether one task of Spark takes in all rows, in which it groups, sorts and joins them
    without a shuffle. given: values of the parameters of the query.
    """
    return _rows(table.query, frames, is_small, given).select(*table.column_names)


def names_in(query: str) -> set[str]:
    """Return the names of tables that a query reads."""
    return {found[1] for found in _NAME.finditer(query)}


def _rows(
    query: str, frames: Mapping[str, DataFrame], is_small: bool, given: Mapping[str, Any]
) -> DataFrame:
    read = {name: frames[name] for name in names_in(query) & frames.keys()}
    if "measured_attempts" in names_in(query):
        read["measured_attempts"] = _rows(MEASURED_ATTEMPTS, frames, is_small, {})
    elif is_small:
        read = {name: frame.coalesce(1) for name, frame in read.items()}
    if is_small:
        query = _SHUFFLE.sub("", query).replace("BROADCAST(", "SHUFFLE_HASH(")

    def placeholder(found: re.Match[str]) -> str:
        name = found[1]
        if name not in read:
            return found[0]
        verb = found[0].partition(" ")[0]
        return f"{verb} {{{name}}}{found['alias'] or f' AS {name}'}"

    spark = next(iter(frames.values())).sparkSession
    return spark.sql(_NAME.sub(placeholder, query), dict(given), **read)
