"""The detector over a history: minutes of a queue, as the tables show them, become heartbeats of
the watch. Pure; minutes are counted from the epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import NamedTuple

import msgspec

from fairlead.pipeline.incidents.heartbeat import Heartbeat
from fairlead.pipeline.incidents.key_minutes import MINUTE, KeysInMemory
from fairlead.pipeline.incidents.watch import Rules, Watched, observe

DAY_MINUTES = 1440
_ENDS_AT_ONCE = ("stall",)


class Minute(msgspec.Struct):
    """Measures of a queue in a minute."""

    depth_min: int = 0
    depth_end: int = 0
    waits_since: int | None = None
    """Instant at which the oldest task that waited at the end became ready, in microseconds."""
    arrived: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0
    is_busy: bool = False
    """Whether a worker ran a task of the queue."""
    keys: dict[str, int] = {}
    """Arrived tasks by key, at least of keys that may flood."""
    lost: dict[str, int] = {}
    """Lost runs by node."""
    starved: list[str] = []
    """Keys that starved."""


class IncidentWindow(NamedTuple):
    """A kind of problem, of a queue and a subject, in the minutes [start, end)."""

    kind: str
    queue: str
    subject: str
    start: int
    end: int
    is_over: bool = True

    @property
    def incident_id(self) -> str:
        """Id of the incident, also when the incident is found again or has become longer."""
        text = "\0".join((self.kind, self.queue, self.subject, str(self.start)))
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def heartbeat_of(queue: str, minute: int, counts: Minute) -> Heartbeat:
    """Return the heartbeat at the end of a minute."""
    at = (minute + 1) * MINUTE - 1
    return Heartbeat(
        store_id="",
        queue=queue,
        relay="",
        at=at,
        waits_since=counts.waits_since if counts.depth_end else None,
        running=int(counts.is_busy),
        claimed_at=at if counts.claimed else 0,
        done=counts.done,
        failed=counts.failed,
        arrived=counts.arrived,
        keys=counts.keys,
        lost=counts.lost,
        starved=counts.starved,
        up=at,
    )


def incidents_from(
    queue: str, minutes: Iterable[tuple[int, Minute]], first: int, last: int, rules: Rules
) -> Iterator[IncidentWindow]:
    """Return the incidents that begin in the minutes [first, last).

    minutes: every known minute from a day before `first` on, in order; as many are read as the
    incidents last. What came before counts for nothing, so that an incident is the same whatever
    days are searched.
    """
    watched: Watched | None = None
    keys = KeysInMemory()
    minute = first
    for minute, counts in minutes:
        watched = watched or Watched(since=minute * MINUTE, relay="")
        for alert in observe(watched, [heartbeat_of(queue, minute, counts)], keys, rules):
            start = _start(alert.kind, alert.start)
            if alert.is_over and first <= start < last:
                end = alert.at // MINUTE + (alert.kind not in _ENDS_AT_ONCE)
                yield IncidentWindow(alert.kind, queue, alert.subject, start, max(end, start + 1))
        if minute + 1 >= last and not _open(queue, watched, first, last):
            return
    if watched is not None:
        yield from _open(queue, watched, first, last)


def _open(queue: str, watched: Watched, first: int, last: int) -> list[IncidentWindow]:
    """Return the incidents that began in [first, last) and are not over."""
    found = []
    for name, each in watched.open.items():
        kind, _, subject = name.partition("\t")
        start = _start(kind, each.start)
        if first <= start < last:
            end = each.last // MINUTE + 1
            found.append(IncidentWindow(kind, queue, subject, start, end, is_over=False))
    return found


def _start(kind: str, instant: int) -> int:
    # A stall begins after the end of the last minute in which something moved.
    return (instant + (kind in _ENDS_AT_ONCE)) // MINUTE


def extra_wait_us(window: IncidentWindow, minutes: Mapping[int, Minute], usual: float) -> int:
    """Return the waiting time of tasks in the incident, in microseconds, beyond the usual.

    usual: number of tasks that wait in a usual minute.
    """
    inside = (minutes[n] for n in range(window.start, window.end) if n in minutes)
    # A minute without an entry had no waiting tasks.
    return round(sum(max(0.0, each.depth_end - usual) for each in inside) * MINUTE)


def usual_depth(minutes: Mapping[int, Minute], known_from: int, start: int) -> float:
    """Return the median of the waiting tasks over the known minutes of the day before `start`; a
    minute without an entry had none."""
    before = range(max(known_from, start - DAY_MINUTES), start)
    depths = [minutes[n].depth_end if n in minutes else 0 for n in before]
    return median(depths or [0])
