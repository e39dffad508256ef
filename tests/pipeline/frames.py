"""Rows of bronze tables and Spark frames for tests. A test gives the few fields that it is about;
the functions fill in the other columns to match."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0 = datetime(2026, 3, 2, 10, tzinfo=UTC)
"""Instant from which tests count seconds: a Monday, on the hour."""

NEXT_STATE = {
    "done": "DONE",
    "retried": "WAITING",
    "snoozed": "WAITING",
    "timed_out": "WAITING",
    "lost": "SUBMITTED",
    "failed": "ERROR",
    "cancelled": "CANCELLED",
}

_numbers = itertools.count(1)


def at(seconds: float) -> datetime:
    """Return the instant `seconds` after T0, rounded to a microsecond."""
    return T0 + timedelta(microseconds=round(seconds * 1_000_000))


def attempt(**fields: Any) -> dict[str, Any]:
    """Return a row of bronze.attempts; by default a run of one second by a new task that is
    submitted at T0 and never waits.

    Give instants in seconds after T0 or as datetimes. An instant that is not given equals the one
    before it in the life of the task, except that the run ends a second after its start and the
    export is a minute later. `next_state` follows from the outcome, `version` from the attempt.
    Raise KeyError for an unknown column.
    """
    given = _instants(fields)
    row: dict[str, Any] = dict.fromkeys(ATTEMPTS.column_names)
    row |= {
        "store_id": "store",
        "task_id": f"task-{next(_numbers):06}",
        "attempt": 1,
        "xid": 0,
        "seq": next(_numbers),
        "queue": "q",
        "name": "work",
        "partition": 0,
        "priority": 5,
        "fairness_key": "a",
        "weight": 1.0,
        "submitted_at": T0,
        "outcome": "done",
        "node": "node-1",
        "payload_bytes": 2,
        "trigger_path": "hook",
        "tags": "",
    }
    row |= given
    for column, before in (
        ("run_at", "submitted_at"),
        ("ready_at", "run_at"),
        ("triggered_at", "ready_at"),
        ("claimed_at", "ready_at"),
        ("started_at", "claimed_at"),
    ):
        row[column] = given.get(column, row[before])
    if "finished_at" not in given:
        latest = row["started_at"] or row["claimed_at"] or row["ready_at"] or row["run_at"]
        row["finished_at"] = latest + timedelta(seconds=1)
    if "exported_at" not in given:
        row["exported_at"] = (row["finished_at"] or T0) + timedelta(minutes=1)
    for column, value in (
        ("tries", row["attempt"]),
        ("version", 2 * (row["attempt"] or 0)),
        ("next_state", NEXT_STATE.get(row["outcome"])),
    ):
        row[column] = given.get(column, value)
    return _known(ATTEMPTS, row)


def event(**fields: Any) -> dict[str, Any]:
    """Return a row of bronze.events; by default for a new task that is submitted at T0 and due at
    once. Give instants as for `attempt`."""
    given = _instants(fields)
    row: dict[str, Any] = {
        "store_id": "store",
        "task_id": f"task-{next(_numbers):06}",
        "version": 1,
        "kind": "submitted",
        "xid": 0,
        "seq": next(_numbers),
        "at": T0,
        "queue": "q",
        "name": "work",
        "fairness_key": "a",
        "weight": 1.0,
        "priority": 5,
        "actor": None,
        "details": None,
    }
    row |= given
    row["run_at"] = given.get("run_at", row["at"])
    row["exported_at"] = given.get("exported_at", row["at"] + timedelta(minutes=1))
    return _known(EVENTS, row)


def attempts_frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return rows made by `attempt` as a frame of bronze.attempts."""
    return frame(spark, ATTEMPTS, rows)


def events_frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return rows made by `event` as a frame of bronze.events."""
    return frame(spark, EVENTS, rows)


def frame(spark: SparkSession, table: Table, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return a frame of a table from rows by column name. A column that a row does not have is null,
    even if the table does not allow null."""
    schema = pa.schema([field.with_nullable(True) for field in table.arrow()])
    return spark.createDataFrame(
        pa.Table.from_pylist([dict(row) for row in rows], schema), table.spark()
    )


def records(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame in the form that `attempt` returns. Instants are aware datetimes
    and do not depend on the time zone of this machine."""
    return frame.toArrow().to_pylist()


def history(random: Random, count: int, hours: int = 3) -> list[dict[str, Any]]:
    """Return `count` valid random attempts of a few keys, within `hours` hours after T0.

    Rare cases are frequent: instants on a whole second, minute or hour, clocks that disagree, waits
    and runs that take no time or hours, and ends without a run.
    """

    def instant(after: float = 0) -> float:
        unit = random.choice((3600, 60, 60, 1, 1, 0.25, 0.000001))
        length = random.choice((0, 0.5, 2, 70, 600, 5000))
        return min((after + random.random() * length) // unit * unit, hours * 3600)

    rows = []
    for _ in range(count):
        submitted = instant(random.random() * hours * 3600)
        ready = random.choice((submitted, instant(submitted)))
        claimed = instant(ready - random.choice((0, 0, 0, 1)))
        started = instant(claimed - random.choice((0, 0, 0, 1)))
        outcome = random.choice(
            (
                "done",
                "done",
                "done",
                "retried",
                "failed",
                "timed_out",
                "snoozed",
                "lost",
                "cancelled",
            )
        )
        row = {
            "queue": random.choice("pq"),
            "fairness_key": random.choice("abc"),
            "name": random.choice(("mail", "report")),
            "weight": random.choice((1.0, 2.0, 0.5)),
            "submitted_at": submitted,
            "ready_at": ready,
            "claimed_at": claimed,
            "started_at": started,
            "finished_at": max(started, instant(started)),
            "outcome": outcome,
        }
        if outcome == "lost":
            row["started_at"] = None
        elif outcome in ("cancelled", "failed") and random.random() < 0.7:
            row["started_at"] = None
            row["claimed_at"] = random.choice((None, claimed, ready - 30))
            row["ready_at"] = random.choice((None, ready, ready))
            row["finished_at"] = instant(ready)
        rows.append(attempt(**row))
    return rows


def _instants(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: at(value)
        if (name == "at" or name.endswith("_at")) and isinstance(value, int | float)
        else value
        for name, value in fields.items()
    }


def _known(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    unknown = row.keys() - set(table.column_names)
    if unknown:
        raise KeyError(f"{table.name} has no column {', '.join(sorted(unknown))}")
    return row
