"""Quarantine of invalid rows: each has a reason, and every row is either sound or in quarantine."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline.models import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.quality import quarantined, sound
from tests.pipeline.frames import (
    at,
    attempt,
    attempts_frame,
    event,
    events_frame,
    history,
    records,
)

EXPORTED = at(3600)

BROKEN: list[tuple[str, str, dict[str, Any]]] = [
    ("finished_at", "finished_at is missing", {"finished_at": None}),
    (
        "finished_at",
        "the clock jumped: finished before started",
        {"started_at": 5, "finished_at": 4.999999},
    ),
    (
        "finished_at",
        "the clock was wrong: finished before 2000",
        {
            "started_at": None,
            "finished_at": datetime(1999, 12, 31, 23, 59, 59, 999999, UTC),
            "exported_at": EXPORTED,
        },
    ),
    (
        "finished_at",
        "the clock was wrong: finished more than a day after it was exported",
        {"finished_at": EXPORTED + timedelta(days=1, microseconds=1), "exported_at": EXPORTED},
    ),
    (
        "started_at",
        "the clock jumped: a run of more than 366 days",
        {"started_at": EXPORTED - timedelta(days=366, microseconds=1), "finished_at": EXPORTED},
    ),
    (
        "ready_at",
        "the clock jumped: ready for more than 366 days",
        {"ready_at": at(1) - timedelta(days=366, microseconds=1), "started_at": 0},
    ),
    ("weight", "the weight is not above 0 and at most 1e+06", {"weight": 0.0}),
    ("weight", "the weight is not above 0 and at most 1e+06", {"weight": -1.0}),
    ("weight", "the weight is not above 0 and at most 1e+06", {"weight": 1_000_000.1}),
    ("weight", "the weight is not above 0 and at most 1e+06", {"weight": float("nan")}),
    ("weight", "the weight is not above 0 and at most 1e+06", {"weight": float("inf")}),
    ("attempt", "the attempt is negative", {"attempt": -1}),
    ("outcome", "the outcome is unknown", {"outcome": "exploded", "next_state": "DONE"}),
    # A row with several faults is quarantined for the first.
    ("queue", "queue is missing", {"queue": None, "started_at": 5, "finished_at": 4}),
    (
        "finished_at",
        "the clock jumped: finished before started",
        {"started_at": 5, "finished_at": 4, "weight": -1.0},
    ),
    *(
        (
            name,
            f"{name} is missing",
            {name: None, "exported_at": EXPORTED, "finished_at": at(1)} | {name: None},
        )
        for name in (
            "queue",
            "name",
            "fairness_key",
            "weight",
            "outcome",
            "next_state",
            "submitted_at",
            "exported_at",
        )
    ),
]

SOUND: list[dict[str, Any]] = [
    {},
    {"started_at": 5, "finished_at": 5},
    {"started_at": None, "claimed_at": None, "outcome": "cancelled"},
    {
        "started_at": None,
        "ready_at": None,
        "finished_at": datetime(2000, 1, 1, tzinfo=UTC),
        "exported_at": EXPORTED,
    },
    {"finished_at": EXPORTED + timedelta(days=1), "exported_at": EXPORTED},
    {"started_at": EXPORTED - timedelta(days=366), "finished_at": EXPORTED},
    {"ready_at": EXPORTED - timedelta(days=366), "started_at": 5, "finished_at": EXPORTED},
    {"weight": 1_000_000.0},
    {"weight": 0.000001},
    {"attempt": 0},
    *(
        {"outcome": outcome}
        for outcome in ("done", "failed", "retried", "timed_out", "snoozed", "cancelled", "lost")
    ),
]


def test_each_broken_row_is_quarantined_with_its_faulty_column(spark: SparkSession) -> None:
    rows = [attempt(**fields) for *_, fields in BROKEN]
    reasons = {
        row["ordinal"]: (row["column"], row["reason"])
        for row in records(quarantined(attempts_frame(spark, rows)))
    }
    expected = {
        f"{row['task_id']}/{row['version']}": case[:2]
        for row, case in zip(rows, BROKEN, strict=True)
    }
    assert reasons == expected
    assert sound(attempts_frame(spark, rows)).count() == 0


def test_rows_at_the_limits_are_sound_and_pass_unchanged(spark: SparkSession) -> None:
    rows = [attempt(**fields) for fields in SOUND]
    frame = attempts_frame(spark, rows)
    assert records(sound(frame)) == rows
    assert sound(frame).columns == ATTEMPTS.column_names
    assert quarantined(frame).count() == 0


def test_a_quarantined_row_keeps_its_values_and_its_file(spark: SparkSession) -> None:
    row = attempt(
        store_id="berlin",
        task_id="t-1",
        version=7,
        started_at=2,
        finished_at=1.5,
        error_text='say "no"',
    )
    frame = quarantined(attempts_frame(spark, [row]))
    assert frame.columns == QUARANTINE.column_names
    assert [field.dataType for field in frame.schema] == [
        field.dataType for field in QUARANTINE.spark()
    ]
    (kept,) = records(frame)
    assert (kept["source"], kept["ordinal"], kept["seen_at"]) == (
        "bronze.attempts/berlin",
        "t-1/7",
        at(1.5),
    )
    raw = json.loads(kept["raw"])
    assert raw["error_text"] == 'say "no"' and raw["fairness_key"] == "a" and raw["weight"] == 1.0
    assert datetime.fromisoformat(raw["finished_at"]) == at(1.5)


EVENTS_BROKEN: list[tuple[str, str, dict[str, Any]]] = [
    *((name, f"{name} is missing", {name: None}) for name in ("at", "queue", "fairness_key")),
    ("at", "the clock was wrong: before 2000", {"at": datetime(1999, 12, 31, tzinfo=UTC)}),
    (
        "at",
        "the clock jumped: due more than 366 days before the export",
        {"at": 0, "exported_at": at(1) + timedelta(days=366)},
    ),
    ("weight", "the weight is not above 0 and at most 1e+06", {"weight": float("nan")}),
]


def test_each_broken_event_is_quarantined_with_its_faulty_column(spark: SparkSession) -> None:
    rows = [
        event(**{name: value for name, value in fields.items() if value is not None})
        | {name: value for name, value in fields.items() if value is None}
        for *_, fields in EVENTS_BROKEN
    ]
    late = event(at=0, run_at=9, exported_at=at(9) + timedelta(days=366))
    frame = events_frame(spark, [*rows, event(), late])
    found = {
        row["ordinal"]: (row["column"], row["reason"], row["source"])
        for row in records(quarantined(frame, EVENTS))
    }
    assert found == {
        f"{row['task_id']}/1/submitted": (*case[:2], "bronze.events/store")
        for row, case in zip(rows, EVENTS_BROKEN, strict=True)
    }


def test_a_row_without_its_end_or_key_is_counted_too(spark: SparkSession) -> None:
    row = attempt(exported_at=at(9)) | dict.fromkeys(("store_id", "task_id", "version"))
    (kept,) = records(quarantined(attempts_frame(spark, [row | {"finished_at": None}])))
    assert (kept["source"], kept["ordinal"]) == ("bronze.attempts/?", "?/?")
    assert kept["seen_at"] == datetime(1970, 1, 1, tzinfo=UTC), "it stays in its partition"


@pytest.mark.parametrize("seed", range(2))
def test_every_row_is_either_sound_or_quarantined(spark: SparkSession, seed: int) -> None:
    random = Random(seed)
    rows = history(random, 300)
    for row in random.sample(rows, 100):
        # Two columns are missing, and instants are arbitrary.
        for name in random.sample(ATTEMPTS.column_names, 2):
            row[name] = None
        row["finished_at"] = random.choice(
            (row["finished_at"], None, at(random.uniform(-1e9, 1e9)))
        )
        row["weight"] = random.choice((row["weight"], 0.0, float("nan"), 1e7))
    frame = attempts_frame(spark, rows)
    kept = Counter(row["seq"] for row in records(sound(frame)))
    broken = Counter(json.loads(row["raw"]).get("seq") for row in records(quarantined(frame)))
    assert kept + broken == Counter(row["seq"] for row in rows)
    assert 200 <= kept.total() < 300
