"""Checks of attempts: rows that make no sense go to quarantine with a reason, so that every row is
counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlead.clock import MICROS
from fairlead.model import Outcome
from fairlead.pipeline.bronze import ATTEMPTS, QUARANTINE
from fairlead.pipeline.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EARLIEST_US = 946_684_800 * MICROS
"""The year 2000, in microseconds since the epoch."""

MOST_WEIGHT = 1e6
LONGEST_RUN_DAYS = 366
"""Longest plausible run, in days. A longer one means that a clock was changed, and it would fill
more than half a million windows of a minute."""

_DAY_US = 86_400 * MICROS

_NEEDED = (
    *(
        column.name
        for column in ATTEMPTS.columns
        if column.type == "string" and not column.nullable
    ),
    *("version", "attempt", "weight", "submitted_at", "finished_at", "exported_at"),
)
"""Columns that must have a value, because every query reads them."""


class _Rule(NamedTuple):
    column: str
    is_broken: str
    """Condition of SQL for Spark and DuckDB."""
    reason: str


_RULES = (
    # Rules for null come first, because a comparison with null breaks no rule.
    *(_Rule(name, f"{name} IS NULL", f"{name} is missing") for name in _NEEDED),
    _Rule(
        "finished_at",
        "finished_at < started_at",
        "the clock jumped: finished before started",
    ),
    _Rule(
        "finished_at",
        f"unix_micros(finished_at) < {EARLIEST_US}",
        "the clock was wrong: finished before 2000",
    ),
    # Take the difference in microseconds: Spark would add days by the calendar, for every row.
    _Rule(
        "finished_at",
        f"unix_micros(finished_at) - unix_micros(exported_at) > {_DAY_US}",
        "the clock was wrong: finished more than a day after it was exported",
    ),
    _Rule(
        "started_at",
        f"unix_micros(finished_at) - unix_micros(started_at) > {LONGEST_RUN_DAYS * _DAY_US}",
        f"the clock jumped: a run of more than {LONGEST_RUN_DAYS} days",
    ),
    # Both engines order NaN above all numbers, so this rule refuses NaN too.
    _Rule(
        "weight",
        f"weight <= 0 OR weight > {MOST_WEIGHT:.0f}",
        f"the weight is not above 0 and at most {MOST_WEIGHT:g}",
    ),
    _Rule("attempt", "attempt < 0", "the attempt is negative"),
    _Rule(
        "outcome",
        f"outcome NOT IN ({', '.join(map(repr, map(str, Outcome)))})",
        "the outcome is unknown",
    ),
)
"""Rules in order; a row goes to quarantine for the first one that it breaks."""


def _first_broken(field: str) -> str:
    """Return the `reason` or `column` of the first rule that a row breaks, as an expression of SQL;
    null if it breaks none."""
    cases = (f"WHEN {rule.is_broken} THEN '{getattr(rule, field)}'" for rule in _RULES)
    return f"CASE {' '.join(cases)} END"


IS_SOUND = f"{_first_broken('reason')} IS NULL"
"""Condition that a row of bronze.attempts makes sense, in the SQL of Spark and DuckDB."""


def sound(attempts: DataFrame) -> DataFrame:
    """Return the rows of bronze.attempts that make sense, unchanged."""
    return attempts.where(IS_SOUND)


def quarantined(attempts: DataFrame) -> DataFrame:
    """Return the rows that make no sense as rows of bronze.quarantine, each with the first rule it
    breaks."""
    from pyspark.sql import functions as F

    # A row without end and export instants still needs a partition.
    seen_at = F.coalesce(F.col("finished_at"), F.col("exported_at"), F.timestamp_micros(F.lit(0)))
    return attempts.where(f"NOT ({IS_SOUND})").select(
        F.concat(F.lit("bronze.attempts/"), _text("store_id")).alias("source"),
        F.concat_ws("/", _text("task_id"), _text("version")).alias("ordinal"),
        F.expr(_first_broken("reason")).alias("reason"),
        F.expr(_first_broken("column")).alias("column"),
        F.to_json(F.struct(*[F.col(name) for name in ATTEMPTS.column_names])).alias("raw"),
        seen_at.alias("seen_at"),
        F.lit(SCHEMA_VERSION).cast("smallint").alias(QUARANTINE.column_names[-1]),
    )


def _text(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(column).cast("string"), F.lit("?"))
