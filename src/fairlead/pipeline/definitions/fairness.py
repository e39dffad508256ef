"""Definition of gold.fairness."""

from __future__ import annotations

from fairlead.pipeline.definitions.windows import OF_WINDOW
from fairlead.pipeline.schema import Table, columns_in

FAIRNESS = Table(
    "gold.fairness",
    "evenness of a queue's service to its keys in a window; a 'backlogged key' has"
    " waiting tasks throughout the window",
    key=("window_start", "window_s", "queue"),
    instant="window_start",
    by="date",
    columns=columns_in(
        *OF_WINDOW,
        """
        jain          double?  Jain's index of busy_us / entitled_us over the backlogged keys with
                               an entitlement, from 1/n (one key has all) to 1 (even); null with
                               fewer than 2 keys
        n_keys        int      number of backlogged keys
        max_min_ratio double?  greatest / least busy_us / entitled_us of the backlogged keys with an
                               entitlement; null with fewer than 2 keys, or if one key got nothing
        max_lag_us    bigint   greatest lag_us of any key of the queue
        max_lag_key   string   key that has max_lag_us
        sfq_gap       double?  greatest minus least busy_us / weight of backlogged keys; null with
                               fewer than 2 keys
        sfq_bound     double?  bound on sfq_gap under start-time fair queueing by worker time: sum
                               of the two largest longest_run_us / weight, where longest_run_us is
                               that of the day
        bound_ok      boolean? whether sfq_gap <= sfq_bound
        claim_gap     double?  greatest minus least claims / weight of backlogged keys; null with
                               fewer than 2 keys
        claim_bound   double?  bound on claim_gap: sum of the two largest 1 / weight
        starved_keys  int      number of keys that were starved in some minute of the window; see
                               gold.tenant_share
        noisy_key     string?  key that has noisy_score; null if no key with an entitlement had at
                               least a tenth of the service
        noisy_score   double?  greatest ratio of a key's share of service to its share of
                               entitlement, over keys with at least a tenth of the service
        """,
    ),
)
