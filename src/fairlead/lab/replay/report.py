"""What a replay found: the measures from the history, and the judgement from what the handlers
noted themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fairlead.lab.history import Delays, runs
from fairlead.lab.replay.positions import Positions, positions
from fairlead.lab.trace import Survey
from fairlead.model import Outcome
from fairlead.ports.sql_store import SqlStore


class Pickup(msgspec.Struct, frozen=True):
    """The pick-up delay (from when a task might run to its start) of some tasks, in
    milliseconds."""

    tenant: str | None
    """None: of all tenants."""
    tasks: int
    p50_ms: float | None
    p99_ms: float | None


class Report(msgspec.Struct, frozen=True):
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
    """Tasks that the history says are done."""
    lost: int
    """Submitted jobs of which no handler noted a run."""
    ran_twice: int
    """Runs noted beyond the first of a job."""
    seconds: float
    """From the first submit to the last finish."""
    tasks_per_s: float
    pickup_delay: Pickup
    pickup_delay_heaviest: Pickup
    pickup_delay_median: Pickup
    positions: Positions | None
    worker_peak_rss_mb: float | None

    @property
    def is_sound(self) -> bool:
        """True when every job was submitted, ran once and finished."""
        return self.lost == 0 and self.ran_twice == 0 and self.finished == self.submitted


class Judgement(msgspec.Struct, frozen=True):
    """Jobs submitted against runs noted."""

    lost: int
    ran_twice: int


def judge(submitted: Iterable[int], notes: Iterable[Path]) -> Judgement:
    """Compare the job numbers submitted with the lines of the files that the handlers wrote."""
    expected = Counter(submitted)
    noted: Counter[int] = Counter()
    for path in notes:
        with path.open("rb") as lines:
            noted.update(map(int, lines))
    return Judgement((expected - noted).total(), (noted - expected).total())


class Measures:
    """What the history says, gathered in one pass."""

    def __init__(self, store: SqlStore, survey: Survey) -> None:
        self.finished = 0
        self.last_finish = 0
        everyone, heaviest, median = Delays(), Delays(), Delays()
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


def _pickup(tenant: str | None, tasks: int, delays: Delays) -> Pickup:
    p50, p99 = delays.percentiles_ms(0.5, 0.99)
    return Pickup(tenant, tasks, p50, p99)
