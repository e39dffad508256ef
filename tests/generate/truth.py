"""The truth about generated attempts: the parameters, and the values that follow from them.
Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from math import exp, sqrt


@dataclass(frozen=True)
class Work:
    """One task name: its run times, its failures, and its part of all tasks."""

    name: str
    queue: str
    part: float
    median_s: float
    sigma: float
    """Standard deviation of the logarithm of the run time, which is normal."""
    failing: float
    """Probability that a run fails, independent of previous runs."""
    error_type: str = "RuntimeError"

    @property
    def mean_s(self) -> float:
        """Expected run time in seconds."""
        return self.median_s * exp(self.sigma**2 / 2)

    @property
    def deviation_s(self) -> float:
        """Standard deviation of the run time in seconds."""
        return self.mean_s * sqrt(exp(self.sigma**2) - 1)


WORKS = (
    Work("thumbnail", "media", 0.28, 0.4, 1.0, 0.005, "OSError"),
    Work("transcode", "media", 0.04, 20.0, 1.5, 0.05, "MemoryError"),
    Work("send_mail", "mail", 0.30, 0.15, 1.2, 0.02, "ConnectionError"),
    Work("digest", "mail", 0.06, 2.0, 1.0, 0.01, "KeyError"),
    Work("webhook", "default", 0.20, 0.3, 1.6, 0.20, "TimeoutError"),
    Work("report", "default", 0.05, 5.0, 2.0, 0.03, "ValueError"),
    Work("sync", "default", 0.05, 3.0, 1.4, 0.10, "ConnectionError"),
    Work("cleanup", "default", 0.02, 1.0, 1.0, 0.0),
)


@dataclass(frozen=True)
class Truth:
    """Parameters of generated attempts. Rates and parts are probabilities, instants UTC.

    Tenants have parts of the tasks after Zipf. Each submits by a Poisson process whose rate follows
    a daily and a weekly wave and alternates between quiet spells and bursts of exponential length
    (MMPP-2); however its bursts fall, it submits its part on average. Waits are drawn, exponential,
    longer in a burst: no scheduler is simulated, and no task waits *behind* another.
    """

    rows: int = 100_000
    """Expected number of attempts; the actual number differs by about its square root."""
    seed: int = 1
    start: datetime = datetime(2026, 3, 2, tzinfo=UTC)
    days: float = 7.0
    tenants: int = 10_000
    zipf: float = 1.1
    weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 4.0)
    """Queues of the tenants, in rotation."""
    prefix: str = "tenant-"
    works: tuple[Work, ...] = WORKS
    most_runs: int = 4
    """Failures after which a task is given up."""
    first_delay_s: float = 10.0
    """Seconds from the end of a failed run to the next, doubled from run to run."""
    quiet_s: float = 6 * 3600
    burst_s: float = 1200
    burst_times: float = 20.0
    """Rate in a burst, in multiples of the quiet rate."""
    daily: float = 0.5
    weekly: float = 0.3
    """Heights of the waves, in parts of the mean rate; together below 1."""
    pickup_s: float = 0.4
    burst_pickup_s: float = 40.0
    cancelled: float = 0.002
    """Part of the tasks that are cancelled before any node takes them."""
    late: float = 0.01
    """Part of the attempts that are exported 1 to `late_hours` hours after the others of their
    hour."""
    late_hours: float = 24.0
    doubled: float = 0.001
    """Part of the attempts that exist twice, with the same key."""
    stepped: float = 0.0001
    """Part of the runs whose clock was set back, so that they finished before they started."""

    @property
    def end(self) -> datetime:
        """Time of the last submit."""
        return self.start + timedelta(days=self.days)

    @property
    def store_id(self) -> str:
        """Store id of all rows."""
        return f"generated-{self.seed}"

    @property
    def tasks(self) -> float:
        """Expected number of tasks."""
        runs = sum(work.part * self.runs(work) for work in self.works) / sum(
            work.part for work in self.works
        )
        return self.rows / (1 + self.doubled) / (self.cancelled + (1 - self.cancelled) * runs)

    def runs(self, work: Work) -> float:
        """Return the expected number of runs of a task that is not cancelled."""
        return sum(work.failing**before for before in range(self.most_runs))

    def given_up(self, work: Work) -> float:
        """Return the probability that a task which is not cancelled never succeeds."""
        return work.failing**self.most_runs

    @cached_property
    def _ranks(self) -> float:
        return float(sum(rank**-self.zipf for rank in range(1, self.tenants + 1)))

    def share(self, tenant: int) -> float:
        """Return the tenant's part of the tasks, and so of the expected worker time. Tenants are
        counted from 0, the largest first."""
        return float((tenant + 1) ** -self.zipf / self._ranks)

    def key(self, tenant: int) -> str:
        """Return the tenant's fairness key."""
        return f"{self.prefix}{tenant:06}"
