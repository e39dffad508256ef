"""The judge of ordered queues: whether they kept their promises, from the records that handlers
write when a run begins and when it ends.

The judge is pure: submitted jobs, records, killed processes with their times, and outages of
servers go in; a verdict comes out.

The next task of an ordering key begins only after the end of the previous one is durable. So only
the last task of a key that a process began can have been in flight at its kill; a task that runs
again after another task of its key has begun was not.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SETTLED = 5_000_000
"""Microseconds after which the end of a run is in the store: a later kill of the process does not
affect it."""

SHOWN = 20
"""Violations kept as text; further ones are only counted."""


class Job(NamedTuple):
    """A submitted task. `due`: microseconds since 1970."""

    ordering_key: str
    unique_key: str
    due: int

    @property
    def position(self) -> tuple[int, str]:
        """The position among the jobs of its ordering key."""
        return self.due, self.unique_key


class Record(NamedTuple):
    """A line of a handler. `at`: microseconds since 1970."""

    what: str
    """"start", "end", or "cut" for a cancelled run."""
    at: int
    pid: int
    attempt: int
    ordering_key: str
    unique_key: str

    @property
    def line(self) -> str:
        return " ".join(map(str, self)) + "\n"

    @classmethod
    def of(cls, line: str) -> "Record":
        """Parse a line. Raise ValueError if it is malformed."""
        what, at, pid, attempt, ordering_key, unique_key = line.split()
        return cls(what, int(at), int(pid), int(attempt), ordering_key, unique_key)


class Away(NamedTuple):
    """An outage of a server, with the time in which the tasks of the outage settle, in microseconds
    since 1970."""

    begin: int
    end: int


@dataclass
class Verdict:
    """The findings. Times are microseconds."""

    tasks: int = 0
    runs: int = 0
    ran_twice: int = 0
    """Runs that legitimately ended more than once: in flight at a kill, or during an outage."""
    cut: int = 0
    """Runs that legitimately have no end."""
    began_at: array = field(default_factory=lambda: array("q"))
    """Starts of the first run of each task; the next two lists are of the same runs."""
    late: array = field(default_factory=lambda: array("q"))
    """Time of the start after the time that the task was due."""
    waited: array = field(default_factory=lambda: array("q"))
    """Time of the start after the task was due and its predecessor of the ordering key had
    ended."""
    violations: Counter = field(default_factory=Counter)
    """Counts by kind: lost, double, order, overlap, early, stray, unknown."""
    shown: list[str] = field(default_factory=list)

    def broken(self, kind: str, record: Record | Job, why: str) -> None:
        """Count a broken promise, and keep its text."""
        self.violations[kind] += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{kind}: {record.ordering_key} {record.unique_key}: {why}")


@dataclass
class _Key:
    """The history of the tasks of one ordering key."""

    jobs: Sequence[Job]
    """Jobs in the order in which they must run."""
    begun: int = 0
    """Number of jobs that were begun or skipped."""
    running: list[Record] = field(default_factory=list)
    last: Record | None = None
    """The start of the last run."""
    last_end: Record | None = None
    """The end of that run, once it is known."""
    unended: set[int] = field(default_factory=set)
    """Positions of jobs that were begun or skipped, and never ended."""

    def find(self, record: Record) -> int | None:
        """Return the position of a job that is not the next one."""
        return next(
            (n for n, job in enumerate(self.jobs) if job.unique_key == record.unique_key), None
        )


class Judge:
    """A judge that takes the records one by one, in the order of the file."""

    def __init__(
        self, jobs: Iterable[Job], kills: Mapping[int, int], away: Sequence[Away] = ()
    ) -> None:
        """`kills`: time of the signal to each killed process, by process id."""
        by_key: dict[str, list[Job]] = {}
        for job in jobs:
            by_key.setdefault(job.ordering_key, []).append(job)
        self._keys = {
            key: _Key(sorted(of_key, key=lambda job: job.position))
            for key, of_key in by_key.items()
        }
        self._kills = kills
        self._away = away
        self._verdict = Verdict(tasks=sum(len(key.jobs) for key in self._keys.values()))

    def take(self, record: Record) -> None:
        """Take the next record."""
        key = self._keys.get(record.ordering_key)
        if key is None:
            self._verdict.broken("unknown", record, "no task has this ordering key")
        elif record.what == "start":
            self._started(key, record)
        else:
            self._ended(key, record)

    def verdict(self) -> Verdict:
        """Return the verdict after the last record."""
        for key in self._keys.values():
            for n in sorted({*key.unended, *range(key.begun, len(key.jobs))}):
                began = (
                    "begun and never ended" if n in key.unended and n < key.begun else "never begun"
                )
                self._verdict.broken("lost", key.jobs[n], began)
        return self._verdict

    def _started(self, key: _Key, record: Record) -> None:
        verdict = self._verdict
        verdict.runs += 1
        # A killed process ended its runs.
        key.running = [
            other for other in key.running if self._kills.get(other.pid, record.at + 1) > record.at
        ]
        for other in key.running:
            verdict.broken(
                "overlap",
                record,
                f"began in {record.pid} while {other.unique_key} ran in {other.pid}",
            )
        key.running.append(record)
        n: int | None = key.begun
        if key.begun == len(key.jobs) or key.jobs[key.begun].unique_key != record.unique_key:
            is_last = key.begun > 0 and key.jobs[key.begun - 1].unique_key == record.unique_key
            n = key.begun - 1 if is_last else key.find(record)
        if n is None:
            verdict.broken("unknown", record, "no such task was submitted")
            return
        if n == key.begun - 1:
            self._again(key, record)
        elif n < key.begun:
            again = n not in key.unended
            why = f"began after {key.jobs[key.begun - 1].unique_key}, which comes later"
            verdict.broken("double" if again else "order", record, why)
        else:
            self._first(key, n, record)
        key.last, key.last_end = record, None

    def _first(self, key: _Key, n: int, record: Record) -> None:
        verdict, job = self._verdict, key.jobs[n]
        if n > key.begun:
            verdict.broken("order", record, f"began before {key.jobs[key.begun].unique_key}")
        elif n - 1 in key.unended and len(key.running) == 1:
            verdict.broken(
                "order",
                record,
                f"began though {key.jobs[n - 1].unique_key} was cut and did not run again",
            )
        if record.at < job.due:
            verdict.broken(
                "early", record, f"began {job.due - record.at} microseconds before its time"
            )
        ended = job.due if key.last_end is None else key.last_end.at
        verdict.began_at.append(record.at)
        verdict.late.append(record.at - job.due)
        verdict.waited.append(record.at - max(job.due, ended))
        key.unended.update(range(key.begun, n + 1))
        key.begun = n + 1

    def _again(self, key: _Key, record: Record) -> None:
        """Judge a second start of the last job that was begun."""
        assert key.last is not None
        before, end = key.last, key.last_end
        if not self._was_in_flight(before, end):
            how = "had not ended" if end is None else f"had its {end.what} at {end.at}"
            self._verdict.broken(
                "double", record, f"ran again in {record.pid}; its run in {before.pid} {how}"
            )
        elif end is None or end.what == "cut":
            self._verdict.cut += 1
        else:
            self._verdict.ran_twice += 1

    def _was_in_flight(self, start: Record, end: Record | None) -> bool:
        """Return whether the run was in flight at a kill of its process, or during an outage."""
        over = start.at if end is None else end.at
        killed_at = self._kills.get(start.pid)
        if (
            killed_at is not None
            and start.at <= killed_at
            and (end is None or over + SETTLED >= killed_at)
        ):
            return True
        return any(away.begin <= over + SETTLED and start.at <= away.end for away in self._away)

    def _ended(self, key: _Key, record: Record) -> None:
        for start in key.running:
            if (start.pid, start.attempt, start.unique_key) == (
                record.pid,
                record.attempt,
                record.unique_key,
            ):
                key.running.remove(start)
                break
        else:
            self._verdict.broken(
                "stray",
                record,
                f"{record.what} in {record.pid} of a run that was not begun or is over",
            )
            return
        if start is key.last:
            key.last_end = record
        if record.what == "end":
            n = (
                key.begun - 1
                if key.jobs[key.begun - 1].unique_key == record.unique_key
                else key.find(record)
            )
            key.unended.discard(-1 if n is None else n)


def judge(
    jobs: Iterable[Job],
    records: Iterable[Record],
    kills: Mapping[int, int] | None = None,
    away: Sequence[Away] = (),
) -> Verdict:
    """Return the verdict about these jobs."""
    found = Judge(jobs, kills or {}, away)
    for record in records:
        found.take(record)
    return found.verdict()


def percentile(values: Sequence[int], share: float) -> float:
    """Return a percentile in seconds of ascending microseconds; 0 without values."""
    return values[min(len(values) - 1, int(len(values) * share))] / 1e6 if values else 0.0


def rate(began_at: Sequence[int]) -> float:
    """Return the starts per second between the first and the last."""
    span = (max(began_at) - min(began_at)) / 1e6 if began_at else 0.0
    return (len(began_at) - 1) / span if span else 0.0


def between(ordered: Sequence[int], begin: int, end: int) -> int:
    """Return the number of values in begin <= value < end."""
    return bisect_left(ordered, end) - bisect_left(ordered, begin)
