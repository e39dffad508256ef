"""Settings of one worker process."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from fairlead.core import values
from fairlead.engine.liveness import LEASE_SECONDS, LOST_SECONDS, PERMIT_SECONDS
from fairlead.errors import ConfigurationError

STUCK_SECONDS = 3600.0
"""Seconds after which a run is reported as stuck, for a task without a `max_stuck` of its own."""

LOOK_AHEAD = 10_000
"""Maximum number of triggers in memory for each priority of a fifo queue; a fair queue has four
times as many."""

LOOK_AHEAD_BYTES = 64_000_000
"""Memory for the triggers of all lanes together."""


@dataclass(frozen=True)
class Intervals:
    """Seconds between two rounds of each poller, and the age up to which history is kept."""

    due: float = 5.0
    lost: float = LOST_SECONDS
    stuck: float = 60.0
    clean: float = 60.0
    incidents: float = 15.0
    """Longest interval of the rounds that deliver incidents; a report pokes the round at once."""
    gauges: float = 60.0
    """Interval of the rounds that observe numbers of the whole cluster, and drop incidents that are
    over."""
    keep_history: float = 30 * 86_400.0
    actions: float = 10.0
    """Interval of the rounds that go on with bulk actions without a performer."""
    watch: float = 10.0
    """Interval of the rounds that watch the queues for stalls, floods, bursts of errors and lost
    nodes."""
    bulk: float = 3600.0
    """Interval of the rounds that remove what interrupted bulk submits left behind."""
    export: float = 60.0
    """Interval of the rounds that export history into a lake."""
    reconcile: float = 6 * 3600.0
    """Interval of the rounds that compare a lake with the store, which may then clean its
    history."""

    def __post_init__(self) -> None:
        """Raise ConfigurationError for bad values."""
        for each in fields(self):
            values.number(each.name, getattr(self, each.name), 0, values.MOST_SECONDS)


@dataclass(frozen=True)
class NodeSettings:
    """Settings of one worker process. Times are in seconds."""

    name: str
    """Name of this start of the process. Each start has another name, so that no start owns
    tasks of an earlier one."""
    concurrency: int = 500
    """Maximum number of runs at once, of all executors together."""
    threads: int = 16
    processes: int = 2
    drain: float = 20.0
    """Seconds for running tasks to end after a stop; the node hands back the rest."""
    restart_seconds: float = 0.0
    """Seconds for which other nodes leave this node its share of the partitions after a stop; see
    `fairlead.engine.membership.name_of`."""
    application: str | None = None
    """MODULE:APP, for the children of the process executor."""
    intervals: Intervals = field(default_factory=Intervals)
    lease_seconds: float = LEASE_SECONDS
    look_ahead: int = LOOK_AHEAD
    """Maximum number of triggers of one queue in memory, however much of `look_ahead_bytes` is
    free."""
    look_ahead_bytes: int = LOOK_AHEAD_BYTES
    """Memory for waiting triggers. All lanes share it by need; each may hold one trigger at
    least."""
    stuck_seconds: float = STUCK_SECONDS
    log_runs: bool = False
    """Whether each run is a log line at INFO. Else runs that do not fail are lines at DEBUG."""
    permit_seconds: float = PERMIT_SECONDS
    """Seconds for which permits of cluster-wide limits may be used without a renewal, and for which
    no other node gets them after a crash."""

    def __post_init__(self) -> None:
        """Raise ConfigurationError for bad values."""
        values.name("name of a node", self.name)
        for what in ("concurrency", "threads", "processes", "look_ahead", "look_ahead_bytes"):
            values.whole(what, getattr(self, what), 0, values.MOST_BYTES)
        for what in (
            "drain",
            "restart_seconds",
            "lease_seconds",
            "stuck_seconds",
            "permit_seconds",
        ):
            values.number(f"{what} (seconds)", getattr(self, what), 0, values.MOST_SECONDS)
        if not isinstance(self.log_runs, bool):
            raise ConfigurationError(f"log_runs {values.brief(self.log_runs)}: use True or False")
        if self.application is not None:
            values.text("application", self.application)
        if not isinstance(self.intervals, Intervals):
            raise ConfigurationError(f"intervals {values.brief(self.intervals)}: use Intervals")
