"""Definitions of gold.replays and gold.replay_waits."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

_RUN = columns_in(
    """
    replay_id     string    digest of grid, arrivals and options; a repeated replay replaces its
                            rows
    recorded_from timestamp time of the first recorded arrival; 1970 for a trace
    policy_id     int       position of the policy in the grid, from 0; -1 for a baseline outside
                            the grid
    part          string    train: arrivals on which the policy was chosen; report: later arrivals
                            (all arrivals if the record was not split)
    sample        string    recorded: arrivals as they were; perturbed: arrivals moved by seconds;
                            resampled: keys drawn at random with replacement, each with its tasks
    seed          int       seed of the sample; 0 for recorded
    """,
)

REPLAYS = Table(
    "gold.replays",
    "results of one policy on one sample of recorded arrivals; a wait lasts from"
    " arrival to start, and percentiles are by nearest rank",
    key=("replay_id", "policy_id", "part", "sample", "seed"),
    instant="recorded_from",
    by="date",
    columns=columns_in(
        *_RUN,
        """
        policy             string  policy as JSON: order, weights, slots, nodes, partitions, limits
        is_best            boolean whether this policy had the best objective on the part train
        is_baseline        boolean whether this policy is the baseline that the others are compared
                                   with
        objective          string  objective of the study, by which policies are chosen
        tasks              bigint  number of tasks in the sample
        keys               bigint  number of fairness keys with a task in the sample
        slots              bigint  number of slots of all nodes
        wait_mean_us       double  mean wait over tasks
        wait_p50_us        bigint  median wait over tasks
        wait_p90_us        bigint  p90 wait over tasks
        wait_p99_us        bigint  p99 wait over tasks
        wait_max_us        bigint  longest wait over tasks
        key_wait_p50_us    double  median over keys of the mean wait of their tasks
        key_wait_p99_us    double  p99 over keys of the mean wait of their tasks
        key_p99_p50_us     double  median over keys of the p99 wait of their tasks
        slowdown_mean      double  mean bounded slowdown, max(1, (wait + run) / max(run, 10 s)),
                                   over tasks
        slowdown_p50       double  median bounded slowdown over tasks
        slowdown_p99       double  p99 of the bounded slowdown over tasks
        jain_mean          double? mean over windows of Jain's index of worker-seconds / weight;
                                   null if no window has the index
        jain_least         double? Jain's index of the least fair window; null if no window has the
                                   index
        jain_windows       bigint  number of windows with the index: at least two keys had work
                                   throughout
        makespan_us        bigint  time from the first arrival to the last end
        utilisation        double  fraction of the slots that were busy over the makespan
        starved_keys       bigint  number of keys that waited longer than a window without a start
        longest_starved_us bigint  longest time that a key waited without a start
        seconds            double  processor time of this replay in seconds
        """,
    ),
)

REPLAY_WAITS = Table(
    "gold.replay_waits",
    "waits of one key under a finalist (one of the best policies) or the baseline, on the part"
    " report of the recorded sample",
    key=("replay_id", "policy_id", "part", "sample", "seed", "fairness_key"),
    instant="recorded_from",
    by="date",
    columns=columns_in(
        *_RUN,
        """
        fairness_key string fairness key of the tasks
        tasks        bigint number of replayed tasks of the key
        busy_us      bigint worker time of these tasks
        wait_mean_us double mean wait of the key's tasks
        wait_p50_us  bigint median wait of the key's tasks
        wait_p90_us  bigint p90 wait of the key's tasks
        wait_p99_us  bigint p99 wait of the key's tasks
        wait_max_us  bigint longest wait of the key's tasks
        """,
    ),
)
