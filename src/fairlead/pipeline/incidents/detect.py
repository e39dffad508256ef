"""Find the minutes that show a problem, and join them to incidents. Pure; minutes are counted from
the epoch.

| kind | a minute shows it if | an incident needs |
|---|---|---|
| stall | tasks waited throughout the minute and no node claimed any | 5 such minutes in a row |
| flood | a key submitted 100 tasks or more, 10 times its mean, over half of all | one such minute |
| error burst | at least 10 runs failed, and more than succeeded | 20 failed runs in all |
| starved | gold.tenant_share marks a key as starved | one such minute |
| node loss | runs of a node were lost | one such minute |

Floods, error bursts and node losses with gaps of at most 5 minutes are one incident. The mean of a
key is that of its last hour (`KeyMinutes`), as for alerts; minutes before the history are unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import NamedTuple

import msgspec

ALL = "*"
STALL_MINUTES, QUIET_MINUTES = 5, 5
FLOOD_TASKS, FLOOD_TIMES = 100, 10
BURST_RUNS, BURST_TOTAL = 10, 20
WARM_UP_MINUTES = 3
"""First minutes of all that is known, in which no key has a mean yet."""
MEAN_MINUTES = 60
"""Maximum number of minutes that count in the mean of a key."""
DAY_MINUTES = 1440
MINUTE_US = 60_000_000


class Minute(NamedTuple):
    """Counts of a queue in a minute."""

    depth_min: int = 0
    depth_end: int = 0
    arrived: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0


class IncidentWindow(NamedTuple):
    """A kind of problem, of a queue and a subject, in the minutes [start, end)."""

    kind: str
    queue: str
    subject: str
    start: int
    end: int

    @property
    def incident_id(self) -> str:
        """Id of the incident, also when the incident is found again or has become longer."""
        text = "\0".join((self.kind, self.queue, self.subject, str(self.start)))
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def stalls(queue: str, minutes: dict[int, Minute]) -> Iterator[IncidentWindow]:
    """Return stalls: tasks waited in the queue and no node claimed any."""
    unserved = (
        minute for minute, counts in minutes.items() if counts.depth_min > 0 and counts.claimed == 0
    )
    for start, end in windows(unserved, 0):
        if end - start >= STALL_MINUTES:
            yield IncidentWindow("stall", queue, ALL, start, end)


def bursts(queue: str, minutes: dict[int, Minute]) -> Iterator[IncidentWindow]:
    """Return error bursts: more runs failed than succeeded."""
    failing = [
        minute
        for minute, counts in minutes.items()
        if counts.failed >= BURST_RUNS and counts.failed > counts.done
    ]
    for start, end in windows(failing, QUIET_MINUTES):
        if (
            sum(minutes[minute].failed for minute in failing if start <= minute < end)
            >= BURST_TOTAL
        ):
            yield IncidentWindow("error burst", queue, ALL, start, end)


def floods(
    queue: str,
    minutes: Mapping[int, Minute],
    arrived: Mapping[str, Mapping[int, int]],
    known_from: int,
    days: Iterable[int],
) -> Iterator[IncidentWindow]:
    """Return floods: one key submitted most tasks of a minute, and many more than in the hour
    before it.

    arrived: tasks by key and minute, of the keys that may flood. known_from: first minute of the
    history; what came before is not known. days: first minutes of the days that are judged. Each is
    judged by itself and the day before, so that its result is the same whatever other days are.
    """
    days = sorted(days)
    for key, by_minute in sorted(arrived.items()):
        found = [minute for day in days for minute in _flooded(by_minute, minutes, known_from, day)]
        for start, end in windows(found, QUIET_MINUTES):
            yield IncidentWindow("flood", queue, key, start, end)


def _flooded(
    by_minute: Mapping[int, int], minutes: Mapping[int, Minute], known_from: int, day: int
) -> Iterator[int]:
    known: KeyMinutes | None = None
    for minute in sorted(by_minute):
        if not day - DAY_MINUTES <= minute < day + DAY_MINUTES:
            continue
        known = known or KeyMinutes(minute)
        known.arrive(by_minute[minute], minute)
        is_much = known.tasks >= max(FLOOD_TASKS, FLOOD_TIMES * known.mean)
        is_most = 2 * known.tasks > minutes.get(minute, Minute()).arrived
        if minute >= max(day, known_from + WARM_UP_MINUTES) and is_much and is_most:
            yield minute


class KeyMinutes(msgspec.Struct):
    """Arrivals of a key by minute."""

    minute: int
    """Last minute with arrivals, counted from the epoch."""
    tasks: int = 0
    """Arrivals in that minute."""
    before: int = 0
    """Arrivals in the minute before."""
    mean: float = 0.0
    """Mean arrivals per minute in the known minutes before these two."""
    known: int = -2
    """Number of minutes in the mean; below 0 while the first minute, of which only the end may be
    known, is one of these two. The first minute is not in the mean."""

    def arrive(self, tasks: int, minute: int) -> None:
        """Add arrivals in `minute`: the last minute with arrivals, or a later one."""
        while self.minute < minute:
            self.known = min(self.known + 1, MEAN_MINUTES)
            if self.known > 0:
                self.mean += (self.before - self.mean) / self.known
            self.before, self.tasks = self.tasks, 0
            self.minute += 1
            if self.minute < minute - MEAN_MINUTES:  # skip a long gap, and start a new mean
                self.minute, self.before, self.mean = minute, 0, 0.0
        self.tasks += tasks

    def last_minute(self, at: int) -> float:
        """Return the approximate arrivals in the sixty seconds before `at` (microseconds)."""
        minute, into = divmod(at, MINUTE_US)
        if minute == self.minute:
            return self.tasks + self.before * (1 - into / MINUTE_US)
        return self.tasks * (1 - into / MINUTE_US) if minute == self.minute + 1 else 0.0


def of_subjects(
    kind: str, triples: Iterable[tuple[str, str, int]], quiet: int
) -> Iterator[IncidentWindow]:
    """Return the incidents of (queue, subject, minute) triples."""
    minutes: dict[tuple[str, str], set[int]] = {}
    for queue, subject, minute in triples:
        minutes.setdefault((queue, subject), set()).add(minute)
    for (queue, subject), found in sorted(minutes.items()):
        for start, end in windows(found, quiet):
            yield IncidentWindow(kind, queue, subject, start, end)


def windows(minutes: Iterable[int], quiet: int) -> Iterator[tuple[int, int]]:
    """Return minutes as intervals [start, end), merged over gaps of at most `quiet` minutes."""
    start = end = None
    for minute in sorted(set(minutes)):
        if start is not None and end is not None and minute - end > quiet:
            yield start, end
            start = None
        start, end = minute if start is None else start, minute + 1
    if start is not None and end is not None:
        yield start, end


def extra_wait_us(window: IncidentWindow, minutes: dict[int, Minute], usual: float) -> int:
    """Return the waiting time of tasks in the incident, in microseconds, beyond the usual.

    usual: number of tasks that wait in a usual minute.
    """
    depths = (minutes.get(minute, Minute()).depth_end for minute in range(window.start, window.end))
    return round(sum(max(0.0, depth - usual) for depth in depths) * MINUTE_US)


def usual_depth(minutes: Mapping[int, Minute], known_from: int, start: int) -> float:
    """Return the median of the waiting tasks over the known minutes of the day before `start`; a
    minute without an entry had none."""
    before = range(max(known_from, start - DAY_MINUTES), start)
    return median([minutes.get(minute, Minute()).depth_end for minute in before] or [0])
