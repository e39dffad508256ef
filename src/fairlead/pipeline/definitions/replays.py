"""Definitions of gold.replays and gold.replay_waits."""

from __future__ import annotations

from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table

_RUN = (
    Column(
        "replay_id",
        "string",
        "digest of grid, arrivals and options; a repeated replay replaces its rows",
    ),
    Column("recorded_from", "timestamp", "time of the first recorded arrival; 1970 for a trace"),
    Column(
        "policy_id",
        "int",
        "position of the policy in the grid, from 0; -1 for a baseline outside the grid",
    ),
    Column(
        "part",
        "string",
        "train: arrivals on which the policy was chosen; report: later arrivals (all"
        " arrivals if the record was not split)",
    ),
    Column(
        "sample",
        "string",
        "recorded: arrivals as they were; perturbed: arrivals moved by seconds;"
        " resampled: keys drawn at random with replacement, each with its tasks",
    ),
    Column("seed", "int", "seed of the sample; 0 for recorded"),
)

REPLAYS = Table(
    "gold.replays",
    "results of one policy on one sample of recorded arrivals; a wait lasts from"
    " arrival to start, and percentiles are by nearest rank",
    key=("replay_id", "policy_id", "part", "sample", "seed"),
    instant="recorded_from",
    by="date",
    columns=(
        *_RUN,
        Column(
            "policy", "string", "policy as JSON: order, weights, slots, nodes, partitions, limits"
        ),
        Column(
            "is_best",
            "boolean",
            "whether this policy had the best objective on the part train",
        ),
        Column(
            "is_baseline",
            "boolean",
            "whether this policy is the baseline that the others are compared with",
        ),
        Column("objective", "string", "objective of the study, by which policies are chosen"),
        Column("tasks", "bigint", "number of tasks in the sample"),
        Column("keys", "bigint", "number of fairness keys with a task in the sample"),
        Column("slots", "bigint", "number of slots of all nodes"),
        Column("wait_mean_us", "double", "mean wait over tasks"),
        Column("wait_p50_us", "bigint", "median wait over tasks"),
        Column("wait_p90_us", "bigint", "p90 wait over tasks"),
        Column("wait_p99_us", "bigint", "p99 wait over tasks"),
        Column("wait_max_us", "bigint", "longest wait over tasks"),
        Column("key_wait_p50_us", "double", "median over keys of the mean wait of their tasks"),
        Column("key_wait_p99_us", "double", "p99 over keys of the mean wait of their tasks"),
        Column("key_p99_p50_us", "double", "median over keys of the p99 wait of their tasks"),
        Column(
            "slowdown_mean",
            "double",
            "mean bounded slowdown, max(1, (wait + run) / max(run, 10 s)), over tasks",
        ),
        Column("slowdown_p50", "double", "median bounded slowdown over tasks"),
        Column("slowdown_p99", "double", "p99 of the bounded slowdown over tasks"),
        Column(
            "jain_mean",
            "double",
            "mean over windows of Jain's index of worker-seconds / weight; null if no window"
            " has the index",
            nullable=True,
        ),
        Column(
            "jain_least",
            "double",
            "Jain's index of the least fair window; null if no window has the index",
            nullable=True,
        ),
        Column(
            "jain_windows",
            "bigint",
            "number of windows with the index: at least two keys had work throughout",
        ),
        Column("makespan_us", "bigint", "time from the first arrival to the last end"),
        Column("utilisation", "double", "fraction of the slots that were busy over the makespan"),
        Column(
            "starved_keys",
            "bigint",
            "number of keys that waited longer than a window without a start",
        ),
        Column("longest_starved_us", "bigint", "longest time that a key waited without a start"),
        Column("seconds", "double", "processor time of this replay in seconds"),
        WRITTEN_UNDER,
    ),
)

REPLAY_WAITS = Table(
    "gold.replay_waits",
    "waits of one key under a finalist (one of the best policies) or the baseline, on the part"
    " report of the recorded sample",
    key=("replay_id", "policy_id", "part", "sample", "seed", "fairness_key"),
    instant="recorded_from",
    by="date",
    columns=(
        *_RUN,
        Column("fairness_key", "string", "fairness key of the tasks"),
        Column("tasks", "bigint", "number of replayed tasks of the key"),
        Column("busy_us", "bigint", "worker time of these tasks"),
        Column("wait_mean_us", "double", "mean wait of the key's tasks"),
        Column("wait_p50_us", "bigint", "median wait of the key's tasks"),
        Column("wait_p90_us", "bigint", "p90 wait of the key's tasks"),
        Column("wait_p99_us", "bigint", "p99 wait of the key's tasks"),
        Column("wait_max_us", "bigint", "longest wait of the key's tasks"),
        WRITTEN_UNDER,
    ),
)
