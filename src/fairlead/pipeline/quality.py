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

EARLIEST = "2000-01-01 00:00:00"
MOST_WEIGHT = 1e6
LONGEST_RUN_DAYS = 366
"""Longest plausible run, in days. A longer one means that a clock was changed, and it would fill
more than half a million windows of a minute."""


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
    is_broken: Column
    reason: str


def sound(attempts: DataFrame) -> DataFrame:
    """Return the rows of bronze.attempts that make sense, unchanged."""
    return attempts.where(is_sound())


def is_sound() -> Column:
    """Return the condition that a row of bronze.attempts makes sense."""
    return _first_broken("reason").isNull()


def quarantined(attempts: DataFrame) -> DataFrame:
    """Return the rows that make no sense as rows of bronze.quarantine, each with the first rule it
    breaks."""
    from pyspark.sql import functions as F

    # A row without end and export instants still needs a partition.
    seen_at = F.coalesce(F.col("finished_at"), F.col("exported_at"), F.timestamp_micros(F.lit(0)))
    return attempts.where(_first_broken("reason").isNotNull()).select(
        F.concat(F.lit("bronze.attempts/"), _text("store_id")).alias("source"),
        F.concat_ws("/", _text("task_id"), _text("version")).alias("ordinal"),
        _first_broken("reason").alias("reason"),
        _first_broken("column").alias("column"),
        F.to_json(F.struct(*[F.col(name) for name in ATTEMPTS.column_names])).alias("raw"),
        seen_at.alias("seen_at"),
        F.lit(SCHEMA_VERSION).cast("smallint").alias(QUARANTINE.column_names[-1]),
    )


def _rules() -> list[_Rule]:
    """Return the rules in order. Rules for null come first, because a comparison with null breaks
    no rule."""
    from pyspark.sql import functions as F

    earliest = F.lit(EARLIEST).cast("timestamp")
    day_us = 86_400 * MICROS
    finished, started = F.col("finished_at"), F.col("started_at")
    missing = [_Rule(name, F.col(name).isNull(), f"{name} is missing") for name in _NEEDED]
    return [
        *missing,
        _Rule("finished_at", finished < started, "the clock jumped: finished before started"),
        _Rule("finished_at", finished < earliest, "the clock was wrong: finished before 2000"),
        _Rule(
            "finished_at",
            _micros_between("exported_at", "finished_at") > day_us,
            "the clock was wrong: finished more than a day after it was exported",
        ),
        _Rule(
            "started_at",
            _micros_between("started_at", "finished_at") > LONGEST_RUN_DAYS * day_us,
            f"the clock jumped: a run of more than {LONGEST_RUN_DAYS} days",
        ),
        # Spark orders NaN above all numbers, so this rule refuses NaN too.
        _Rule(
            "weight",
            ~F.col("weight").between(F.lit(0.0), F.lit(MOST_WEIGHT)) | (F.col("weight") == 0),
            f"the weight is not above 0 and at most {MOST_WEIGHT:g}",
        ),
        _Rule("attempt", F.col("attempt") < 0, "the attempt is negative"),
        _Rule(
            "outcome",
            ~F.col("outcome").isin([str(outcome) for outcome in Outcome]),
            "the outcome is unknown",
        ),
    ]


def _micros_between(start: str, end: str) -> Column:
    """Return the difference in whole microseconds; Spark would add days by the calendar, for every
    row of every query."""
    from pyspark.sql import functions as F

    return F.unix_micros(end) - F.unix_micros(start)


def _first_broken(field: str) -> Column:
    """Return the `reason` or `column` of the first rule that a row breaks; null if it breaks
    none."""
    from pyspark.sql import functions as F

    return F.coalesce(*[F.when(rule.is_broken, F.lit(getattr(rule, field))) for rule in _rules()])


def _text(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(column).cast("string"), F.lit("?"))
