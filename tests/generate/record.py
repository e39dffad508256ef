"""Generated runs as the store would have recorded them: rows of bronze.attempts."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.history_rows import fingerprint
from fairlead.pipeline.models import ATTEMPTS
from tests.generate.chance import Chance
from tests.generate.runs import TASK, of_work
from tests.generate.truth import Truth

NODES = 4
PARTITIONS = 8
_ERROR = "{} gave up after "
_UNKNOWN = (
    "ordering_key",
    "unique_key_hash",
    "received_at",
    "acquired_at",
    "worker",
    "policy_version",
)
"""Columns that this version does not record, or that these tasks do not use."""


def recorded(runs: DataFrame, truth: Truth, *beside: str) -> DataFrame:
    """Return rows of `runs.timed` as rows of bronze.attempts, in the given order, with the columns
    `beside` kept."""
    values = (
        _constant(truth)
        | _of_task(truth)
        | _of_run(truth)
        | _clocks()
        | dict.fromkeys(_UNKNOWN, F.lit(None))
    )
    return runs.select(
        *(values[column.name].cast(column.type).alias(column.name) for column in ATTEMPTS.columns),
        *beside,
    )


def _constant(truth: Truth) -> dict[str, Column]:
    return {
        "store_id": F.lit(truth.store_id),
        "xid": F.lit(0),
        "priority": F.lit(5),
        "tags": F.lit(""),
    }


def _of_task(truth: Truth) -> dict[str, Column]:
    chance = Chance(truth.seed)
    weights = F.array(*map(F.lit, truth.weights))
    return {
        "task_id": _task_id(chance),
        "queue": of_work([work.queue for work in truth.works]),
        "name": of_work([work.name for work in truth.works]),
        "partition": chance.below(PARTITIONS, "partition", *TASK),
        "fairness_key": F.concat(
            F.lit(truth.prefix), F.lpad(F.col("tenant").cast("string"), 6, "0")
        ),
        "weight": F.get(weights, F.col("tenant") % len(truth.weights)),
        "payload_bytes": 100 + chance.below(1900, "payload", *TASK),
    }


def _of_run(truth: Truth) -> dict[str, Column]:
    chance, run, cancelled = Chance(truth.seed), F.col("run"), F.col("cancelled")
    failed = ~cancelled & (run <= F.col("failures"))
    again = failed & (run < truth.most_runs)
    number = F.when(cancelled, 0).otherwise(run)
    fingerprints = [
        fingerprint(work.error_type, f"{_ERROR.format(work.name)}0 ms") for work in truth.works
    ]
    text = F.concat(
        of_work([_ERROR.format(work.name) for work in truth.works]),
        chance.below(10_000, "error", *TASK, run).cast("string"),
        F.lit(" ms"),
    )
    return {
        "attempt": number,
        "tries": number,
        "version": 2 * number + 1,
        "outcome": F.when(cancelled, "cancelled")
        .when(again, "retried")
        .when(failed, "failed")
        .otherwise("done"),
        "next_state": F.when(cancelled, "CANCELLED")
        .when(again, "WAITING")
        .when(failed, "ERROR")
        .otherwise("DONE"),
        "error_type": F.when(failed, of_work([work.error_type for work in truth.works])),
        "error_fp": F.when(failed, of_work(fingerprints)),
        "error_text": F.when(failed, text),
        "node": F.when(
            ~cancelled,
            F.concat(F.lit("node-"), chance.below(NODES, "node", *TASK, run).cast("string")),
        ),
        "trigger_path": F.when(run == 1, "hook").otherwise("poller"),
        "seq": F.col("exported"),
    }


def _clocks() -> dict[str, Column]:
    instants = {
        "submitted_at": "submitted",
        "run_at": "ready",
        "ready_at": "ready",
        "triggered_at": "ready",
        "claimed_at": "claimed",
        "started_at": "started",
        "finished_at": "finished",
        "exported_at": "exported",
    }
    return {name: F.timestamp_micros(column) for name, column in instants.items()}


def _task_id(chance: Chance) -> Column:
    """Return a UUIDv7: the millisecond of the submit, version, variant, and a part that
    distinguishes tasks of one millisecond."""
    ms = F.lpad(F.hex(F.floor(F.col("submitted") / 1000).cast("bigint")), 12, "0")
    any = F.lpad(F.hex(chance.hash("id", *TASK)), 16, "0")
    parts = (
        ms.substr(1, 8),
        ms.substr(9, 4),
        F.concat(F.lit("7"), any.substr(1, 3)),
        F.concat(F.lit("8"), any.substr(4, 3)),
        F.concat(any.substr(7, 10), F.lpad(F.hex(F.col("task") % 256), 2, "0")),
    )
    return F.lower(F.concat_ws("-", *parts))
