"""Checks of bronze: rows that make no sense go to quarantine with a reason, so that every row is
counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def _first_broken(table: Table, what: Literal["column", "reason"]) -> str:
    """Return the column or the reason of the first rule that a row breaks, as an expression of SQL;
    null if it breaks none."""
    cases = [f"WHEN {rule.condition} THEN '{getattr(rule, what)}'" for rule in table.refusals]
    return f"CASE {' '.join(cases)} END"


IS_SOUND = f"{_first_broken(ATTEMPTS, 'reason')} IS NULL"
"""Condition that a row of bronze.attempts makes sense, in the SQL of Spark and DuckDB."""

IS_SOUND_EVENT = f"{_first_broken(EVENTS, 'reason')} IS NULL"
"""Condition that a row of bronze.events, named `event`, makes sense, in the SQL of both."""


def sound(attempts: DataFrame) -> DataFrame:
    """Return the rows of bronze.attempts that make sense, unchanged."""
    return attempts.where(IS_SOUND)


def sound_events(events: DataFrame) -> DataFrame:
    """Return the rows of bronze.events that make sense, unchanged."""
    return events.alias("event").where(IS_SOUND_EVENT)


def quarantined(rows: DataFrame, table: Table = ATTEMPTS) -> DataFrame:
    """Return the rows of bronze.attempts or bronze.events that make no sense as rows of
    bronze.quarantine, each with the first rule it breaks."""
    from pyspark.sql import functions as F

    def text(column: str) -> Column:
        return F.coalesce(F.col(column).cast("string"), F.lit("?"))

    # The row stays in its partition, also without its instant, because builds replace both.
    seen_at = F.coalesce(F.col(table.instant), F.timestamp_micros(F.lit(0)))
    _, *ordinal = table.key
    broken = rows.alias("event").where(f"NOT ({_first_broken(table, 'reason')} IS NULL)")
    return broken.select(
        F.concat(F.lit(f"{table.name}/"), text("store_id")).alias("source"),
        F.concat_ws("/", *map(text, ordinal)).alias("ordinal"),
        F.expr(_first_broken(table, "reason")).alias("reason"),
        F.expr(_first_broken(table, "column")).alias("column"),
        F.to_json(F.struct(*map(F.col, table.column_names))).alias("raw"),
        seen_at.alias("seen_at"),
    )
