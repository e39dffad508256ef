"""Definition of gold.incidents."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

INCIDENTS = Table(
    "gold.incidents",
    "periods, to the minute, in which a queue, a key or a node had a problem",
    key=("incident_id",),
    instant="start_at",
    by="date",
    columns=columns_in(
        """
        incident_id   string    id made from kind, queue, subject and start; the same incident
                                always has the same id
        kind          string    kind of the incident: stall, flood, error burst, starved, node loss
        queue         string    queue of the incident; a lost node has one for each of its queues
        subject       string    key that flooded or starved, or node that was lost; '*': the whole
                                queue
        start_at      timestamp first instant of the first minute
        end_at        timestamp first instant after the last minute
        is_over       boolean   whether the incident has ended in the history so far
        keys_hit      int       number of keys with waiting tasks or failed runs during the incident
        tasks_delayed bigint    number of tasks that waited at the start or became ready during the
                                incident; for error bursts and node losses, number of runs
        extra_wait_us bigint    waiting time of tasks during the incident, beyond that in the
                                queue's median minute
        """,
    ),
)
