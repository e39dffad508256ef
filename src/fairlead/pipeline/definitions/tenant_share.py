"""Definition of gold.tenant_share."""

from __future__ import annotations

from fairlead.pipeline.definitions.windows import OF_WINDOW
from fairlead.pipeline.schema import Table, columns_in

TENANT_SHARE = Table(
    "gold.tenant_share",
    "worker time that each key of a queue got in a window, and its entitlement",
    key=("window_start", "window_s", "queue", "fairness_key"),
    instant="window_start",
    by="date",
    columns=columns_in(
        *OF_WINDOW,
        """
        fairness_key        string  fairness key of the tasks
        busy_us             bigint  worker time that the key got
        share               double  fraction of the queue's worker time in the window, 0 to 1; 0 if
                                    no key got any
        weight              double  weight that the claimed tasks were submitted with: their
                                    harmonic mean, which is one weight for all of them with the same
                                    effect on the order; without a claim, that of the worker time;
                                    without both, the greatest weight of a waiting task
        weighted_us         double  busy_us, the time of each run divided by the weight of its task
        demand_us           bigint  worker time that the key could have used: work that remained at
                                    the start of the window, and work that arrived during it
        entitled_us         bigint  worker time due to the key if time is divided by weight and no
                                    key gets more than its demand
        deficit_us          bigint  entitled_us - busy_us; below 0 if the key got more than it was
                                    entitled to
        lag_us              bigint  sum of deficit_us since midnight or since the last window
                                    without backlog; 0 in a window without backlog
        backlogged_fraction double  fraction of the window in which tasks of the key waited, 0 to 1
        throughout          boolean whether tasks of the key waited throughout every minute of the
                                    window
        claimed             bigint  number of tasks of the key that nodes claimed in the window
        longest_run_us      bigint  length of the key's longest run of the day
        starved             boolean whether, in some minute of the window, tasks had waited without
                                    any claim for at least a minute and at least 10 x the queue's
                                    median pickup (time from ready to started) of that day
        """,
    ),
)
