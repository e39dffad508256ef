"""Find the minutes that show a problem, and join them to incidents. Pure; minutes are counted from
the epoch.

| kind | a minute shows it if | an incident needs |
|---|---|---|
| stall | tasks waited throughout the minute and no node claimed any | 5 such minutes in a row |
| flood | a key submitted 100 tasks or more, 10 times its mean, over half of all | one such minute |
| error burst | at least 10 runs failed, and more than succeeded | 20 failed runs in all |
| starved | gold.tenant_share marks a key as starved | one such minute |
| node loss | runs of a node were lost | one such minute |

Floods, error bursts and node losses with gaps of at most 5 minutes are one incident.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from statistics import median
from typing import NamedTuple

ALL = "*"
STALL_MINUTES, QUIET_MINUTES = 5, 5
FLOOD_TASKS, FLOOD_TIMES = 100, 10
BURST_RUNS, BURST_TOTAL = 10, 20
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
    minutes: dict[int, Minute],
    heavy: Iterable[tuple[int, str, int]],
    mean: dict[str, float],
) -> Iterator[IncidentWindow]:
    """Return floods: one key submitted most tasks of a minute, and many more than usual.

    heavy: (minute, key, tasks) with at least FLOOD_TASKS tasks. mean: mean tasks per minute of each
    key over the whole period.
    """
    by_key: dict[str, list[int]] = {}
    for minute, key, tasks in heavy:
        is_most = 2 * tasks > minutes.get(minute, Minute()).arrived
        if tasks >= FLOOD_TASKS and tasks >= FLOOD_TIMES * mean.get(key, 0.0) and is_most:
            by_key.setdefault(key, []).append(minute)
    for key, found in sorted(by_key.items()):
        for start, end in windows(found, QUIET_MINUTES):
            yield IncidentWindow("flood", queue, key, start, end)


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


def usual_depth(minutes: dict[int, Minute], count: int) -> float:
    """Return the median of waiting tasks over `count` minutes; a missing minute had none."""
    depths = [counts.depth_end for counts in minutes.values()]
    return median([*depths, *([0] * max(0, count - len(depths)))] or [0])
