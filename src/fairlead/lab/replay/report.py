"""The results of a replay: measures from the history, and the verdict from the runs that handlers
noted themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fairlead.lab.history import PickupDelays, runs
from fairlead.lab.replay.positions import Positions, positions
from fairlead.lab.trace import TraceSurvey
from fairlead.model import Outcome
from fairlead.ports.sql_store import SqlStore


class Pickup(msgspec.Struct, frozen=True):
    """The pick-up delay of some tasks in milliseconds, from the time a run was due to its start."""

    tenant: str | None
    """None for all tenants."""
    tasks: int
    p50_ms: float | None
    p99_ms: float | None


class ReplayReport(msgspec.Struct, frozen=True):
    """The result of one replay."""

    trace: str
    store: str
    tenants: str
    order: str
    workers: int
    time_scale: float
    bad_lines: int
    submitted: int
    finished: int
    """Tasks that are done according to the history."""
    lost: int
    """Submitted jobs without a run noted by a handler."""
    ran_twice: int
    """Runs noted beyond the first of a job."""
    seconds: float
    """Seconds from the first submit to the last finish."""
    tasks_per_s: float
    pickup_delay: Pickup
    pickup_delay_heaviest: Pickup
    pickup_delay_median: Pickup
    positions: Positions | None
    worker_peak_rss_mb: float | None

    @property
    def is_sound(self) -> bool:
        """True if every job was submitted, ran once and finished."""
        return self.lost == 0 and self.ran_twice == 0 and self.finished == self.submitted


class Judgement(msgspec.Struct, frozen=True):
    """Differences between submitted jobs and noted runs."""

    lost: int
    ran_twice: int


def judge(submitted: Iterable[int], notes: Iterable[Path]) -> Judgement:
    """Compare the submitted job numbers with the lines of the files that the handlers wrote."""
    expected = Counter(submitted)
    noted: Counter[int] = Counter()
    for path in notes:
        with path.open("rb") as lines:
            noted.update(map(int, lines))
    return Judgement((expected - noted).total(), (noted - expected).total())


class ReplayMeasures:
    """Measures from the history, collected in one pass."""

    def __init__(self, store: SqlStore, survey: TraceSurvey) -> None:
        self.finished = 0
        self.last_finish = 0
        everyone, heaviest, median = PickupDelays(), PickupDelays(), PickupDelays()
        found = list(runs(store))
        self.positions = positions(found)
        for run in found:
            if run.outcome == Outcome.DONE:
                self.finished += 1
            self.last_finish = max(self.last_finish, run.finished_at)
            delay = run.pickup_delay
            if delay is None:
                continue
            everyone.add(delay)
            if run.fairness_key == survey.heaviest:
                heaviest.add(delay)
            if run.fairness_key == survey.median:
                median.add(delay)
        self.everyone = _pickup(None, survey.jobs, everyone)
        self.heaviest = _pickup(survey.heaviest, survey.tenants[survey.heaviest], heaviest)
        self.median = _pickup(survey.median, survey.tenants[survey.median], median)


def _pickup(tenant: str | None, tasks: int, delays: PickupDelays) -> Pickup:
    p50, p99 = delays.percentiles_ms(0.5, 0.99)
    return Pickup(tenant, tasks, p50, p99)
