"""Checks of bronze: rows that make no sense go to quarantine with a reason, so that every row is
counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fairlead.clock import MICROS
from fairlead.model import Outcome
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EARLIEST_US = 946_684_800 * MICROS
"""The year 2000, in microseconds since the epoch."""

MOST_WEIGHT = 1e6
LONGEST_DAYS = 366
"""Longest plausible run, and longest plausible wait of a task that is ready, in days. A longer one
means that a clock was changed, and it would fill more than half a million windows of a minute."""

_DAY_US = 86_400 * MICROS

_AT = "event.at"
"""Column of events, as rules name it, because DuckDB knows no column with the bare name `at`."""


def _values(table: Table, *more: str) -> list[tuple[str, str, str]]:
    """Return the rules that the texts and these columns, which every query reads, have values. They
    come first, because a comparison with null breaks no rule."""
    texts = [c.name for c in table.columns if c.type == "string" and not c.nullable]
    return [
        (name, f"{_AT if name == 'at' else name} IS NULL", f"{name} is missing")
        for name in (*texts, *more)
    ]


# Both engines order NaN above all numbers, so this rule refuses NaN too.
_WEIGHT = (
    "weight",
    f"weight <= 0 OR weight > {MOST_WEIGHT:.0f}",
    f"the weight is not above 0 and at most {MOST_WEIGHT:g}",
)

# Take differences in microseconds: Spark would add days by the calendar, for every row.
_RULES = {
    ATTEMPTS: (
        *_values(
            ATTEMPTS, "version", "attempt", "weight", "submitted_at", "finished_at", "exported_at"
        ),
        ("finished_at", "finished_at < started_at", "the clock jumped: finished before started"),
        (
            "finished_at",
            f"unix_micros(finished_at) < {EARLIEST_US}",
            "the clock was wrong: finished before 2000",
        ),
        (
            "finished_at",
            f"unix_micros(finished_at) - unix_micros(exported_at) > {_DAY_US}",
            "the clock was wrong: finished more than a day after it was exported",
        ),
        (
            "started_at",
            f"unix_micros(finished_at) - unix_micros(started_at) > {LONGEST_DAYS * _DAY_US}",
            f"the clock jumped: a run of more than {LONGEST_DAYS} days",
        ),
        (
            "ready_at",
            f"unix_micros(finished_at) - unix_micros(ready_at) > {LONGEST_DAYS * _DAY_US}",
            f"the clock jumped: ready for more than {LONGEST_DAYS} days",
        ),
        _WEIGHT,
        ("attempt", "attempt < 0", "the attempt is negative"),
        ("outcome", f"outcome NOT IN {tuple(map(str, Outcome))}", "the outcome is unknown"),
    ),
    EVENTS: (
        *_values(EVENTS, "version", "weight", "at", "exported_at"),
        ("at", f"unix_micros({_AT}) < {EARLIEST_US}", "the clock was wrong: before 2000"),
        (
            "at",
            f"unix_micros(exported_at) - unix_micros(greatest({_AT}, run_at)) >"
            f" {LONGEST_DAYS * _DAY_US}",
            f"the clock jumped: due more than {LONGEST_DAYS} days before the export",
        ),
        _WEIGHT,
    ),
}
"""Rules in order, each with its column, the condition of SQL (for Spark and DuckDB) that breaks it,
and the reason. A row goes to quarantine for the first rule that it breaks."""


def _first_broken(table: Table, what: Literal["column", "reason"]) -> str:
    """Return the column or the reason of the first rule that a row breaks, as an expression of SQL;
    null if it breaks none."""
    cases = [
        f"WHEN {is_broken} THEN '{column if what == 'column' else reason}'"
        for column, is_broken, reason in _RULES[table]
    ]
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
