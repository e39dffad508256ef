"""What a replay leaves in the lake: a row for each run, and the waits of each key under the
finalists."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from fairlead.lab.policies.candidate import Found
from fairlead.lab.policies.measures import KeyWaits, Measures
from fairlead.lab.policies.study import Study
from fairlead.pipeline.schema import SCHEMA_VERSION, WRITTEN_UNDER, Column, Table

_RUN = (
    Column(
        "replay_id",
        "string",
        "made of grid, arrivals and options: the same replay again replaces its rows",
    ),
    Column("recorded_from", "timestamp", "the first arrival of the record; 1970 for a trace"),
    Column(
        "policy_id",
        "int",
        "place in the grid from 0 on; -1: the baseline, when the grid does not have it",
    ),
    Column(
        "part",
        "string",
        "train: what the choice was made on; report: what came later (or the same, if not parted)",
    ),
    Column(
        "sample",
        "string",
        "recorded, perturbed (arrivals moved by seconds) or resampled (users drawn anew)",
    ),
    Column("seed", "int", "of the sample; 0: recorded"),
)

REPLAYS = Table(
    "gold.replays",
    "one policy on one sample of recorded arrivals; waits from arrival to start, percentiles by"
    " nearest rank",
    key=("replay_id", "policy_id", "part", "sample", "seed"),
    instant="recorded_from",
    by="date",
    columns=(
        *_RUN,
        Column("policy", "string", "JSON: order, weights, slots, nodes, partitions, limits"),
        Column("is_best", "boolean", "it was chosen: the best by the objective on the part train"),
        Column("is_baseline", "boolean", "the others are held against it"),
        Column("objective", "string", "what was asked for"),
        Column("tasks", "bigint", "of the sample"),
        Column("keys", "bigint", "with a task in it"),
        Column("slots", "bigint", "of all nodes"),
        Column("wait_mean_us", "double", "over tasks"),
        Column("wait_p50_us", "bigint", "over tasks"),
        Column("wait_p90_us", "bigint", "over tasks"),
        Column("wait_p99_us", "bigint", "over tasks"),
        Column("wait_max_us", "bigint", "over tasks"),
        Column("key_wait_p50_us", "double", "over keys, each with the mean wait of its tasks"),
        Column("key_wait_p99_us", "double", "over keys, each with the mean wait of its tasks"),
        Column("key_p99_p50_us", "double", "the median over keys of each one's 99th percentile"),
        Column(
            "slowdown_mean",
            "double",
            "bounded slowdown, max(1, (wait + run) / max(run, 10 s)), over tasks",
        ),
        Column("slowdown_p50", "double", "over tasks"),
        Column("slowdown_p99", "double", "over tasks"),
        Column(
            "jain_mean",
            "double",
            "Jain's index of worker-seconds / weight, over windows; null: none",
            nullable=True,
        ),
        Column("jain_least", "double", "in the least fair window", nullable=True),
        Column("jain_windows", "bigint", "windows in which two keys or more had work throughout"),
        Column("makespan_us", "bigint", "from the first arrival to the last end"),
        Column("utilisation", "double", "of the slots over the makespan"),
        Column(
            "starved_keys",
            "bigint",
            "keys that waited longer than a window with none of their tasks started",
        ),
        Column("longest_starved_us", "bigint", "the longest such wait"),
        Column("seconds", "double", "processor time that this replay took"),
        WRITTEN_UNDER,
    ),
)

REPLAY_WAITS = Table(
    "gold.replay_waits",
    "the waits of one key under a finalist or the baseline, on the part report as recorded",
    key=("replay_id", "policy_id", "part", "sample", "seed", "fairness_key"),
    instant="recorded_from",
    by="date",
    columns=(
        *_RUN,
        Column("fairness_key", "string", "whose tasks"),
        Column("tasks", "bigint", "of the key, that were replayed"),
        Column("busy_us", "bigint", "worker time that they took"),
        Column("wait_mean_us", "double", "over the tasks of the key"),
        Column("wait_p50_us", "bigint", "over the tasks of the key"),
        Column("wait_p90_us", "bigint", "over the tasks of the key"),
        Column("wait_p99_us", "bigint", "over the tasks of the key"),
        Column("wait_max_us", "bigint", "over the tasks of the key"),
        WRITTEN_UNDER,
    ),
)


def replay_rows(replay_id: str, origin: int, study: Study) -> Iterator[dict[str, Any]]:
    """REPLAYS of a study."""
    for found in study.found:
        number = found.candidate.policy_id
        yield {
            **_run_columns(replay_id, origin, found),
            "policy": msgspec.json.encode(found.candidate.policy).decode(),
            "is_best": number == study.best.policy_id,
            "is_baseline": number == study.baseline,
            "objective": study.objective,
            **{name: getattr(found.measures, name) for name in Measures.__struct_fields__},
            "seconds": found.seconds,
            "schema_version": SCHEMA_VERSION,
        }


def wait_rows(replay_id: str, origin: int, study: Study) -> Iterator[dict[str, Any]]:
    """REPLAY_WAITS of a study."""
    for found in study.found:
        for key in found.keys:
            yield {
                **_run_columns(replay_id, origin, found),
                "fairness_key": key.key,
                **{
                    name: getattr(key, name) for name in KeyWaits.__struct_fields__ if name != "key"
                },
                "schema_version": SCHEMA_VERSION,
            }


def _run_columns(replay_id: str, origin: int, found: Found) -> dict[str, Any]:
    candidate = found.candidate
    return {
        "replay_id": replay_id,
        "recorded_from": datetime.fromtimestamp(origin / 1e6, UTC),
        "policy_id": candidate.policy_id,
        "part": candidate.part,
        "sample": candidate.sample,
        "seed": candidate.seed,
    }
