"""Definition of gold.cost."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

COST = Table(
    "gold.cost",
    "division of a day's bill among queues and keys; the amounts of the rows that"
    " share a bill add up to it exactly",
    key=("day", "queue", "fairness_key"),
    instant="day",
    by="date",
    columns=columns_in(
        """
        day               timestamp     start of the day (UTC)
        queue             string        queue that the row is about
        fairness_key      string        fairness key; '*': a bill for which no key ran anything
        busy_us           bigint        worker time that the key got
        wasted_us         bigint        part of busy_us spent on runs that did not succeed
        idle_allocated_us bigint        the key's part of the worker time that was paid for and not
                                        used
        price             double?       price of a paid worker-hour; null without a bill, or if the
                                        bill has no worker time
        amount            decimal(18,6) the key's part of the bill, in the bill's currency; 0
                                        without a bill
        method            string        rule by which idle time was divided: usage, peak or reserved
        """,
    ),
)
