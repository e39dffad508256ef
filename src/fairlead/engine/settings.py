"""How one worker process runs."""

from __future__ import annotations

from dataclasses import dataclass, field

LEASE_SECONDS = 10.0
"""Seconds for which a node owns its partitions without a renewal."""

PERMIT_SECONDS = 15.0
"""Seconds for which permits of cluster-wide limits may be used without a renewal."""

LOOK_AHEAD = 10_000
"""Triggers in memory for one fifo queue and priority, or for one fair lane."""


@dataclass(frozen=True)
class Intervals:
    """Seconds between two rounds of each poller, and how long history is kept."""

    due: float = 5.0
    lost: float = 2.0
    stuck: float = 60.0
    clean: float = 60.0
    incidents: float = 60.0
    keep_history: float = 30 * 86_400.0
    bulk: float = 3600.0
    """Rounds that remove leftovers of bulk submits that died."""
    export: float = 60.0
    """Rounds that move history into a lake."""
    reconcile: float = 6 * 3600.0
    """Rounds that compare a lake with the store, which lets the store clean."""


@dataclass(frozen=True)
class NodeSettings:
    """How one worker process runs. Times in seconds."""

    name: str
    """Unique for each start of a process: what an earlier start holds is never this one's."""
    concurrency: int = 500
    """Runs at once, of all kinds together."""
    threads: int = 16
    processes: int = 2
    drain: float = 20.0
    """How long running tasks may take to end after a stop; what is left then is handed back."""
    restart_seconds: float = 0.0
    """How long its share of the partitions waits for it after a stop; see
    `fairlead.engine.membership.name_of`."""
    application: str | None = None
    """MODULE:APP, for the children of the process executor."""
    intervals: Intervals = field(default_factory=Intervals)
    lease_seconds: float = LEASE_SECONDS
    look_ahead: int = LOOK_AHEAD
    permit_seconds: float = PERMIT_SECONDS
    """How long permits of cluster-wide limits may be used without a renewal: for so long they are
    nobody's after a death."""
