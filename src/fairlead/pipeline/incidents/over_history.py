"""The detector over a history: minutes of a queue, as the tables show them, become heartbeats of
the watch. Pure; minutes are counted from the epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from fairlead.pipeline.incidents.heartbeat import Heartbeat
from fairlead.pipeline.incidents.watch import (
    MINUTE,
    KeyMinutes,
    Rules,
    Watched,
    observe,
)

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


def incident_id(kind: str, queue: str, subject: str, start: int) -> str:
    """Return the id of an incident, also when it is found again or has become longer."""
    text = "\0".join((kind, queue, subject, str(start)))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def incidents_from(
    queue: str, minutes: Iterable[tuple[int, Minute]], first: int, last: int, rules: Rules
) -> Iterator[IncidentWindow]:
    """Return the incidents that begin in the minutes [first, last).

    minutes: every known minute from a day before `first` on, in order; as many are read as the
    incidents last. What came before counts for nothing, so that an incident is the same whatever
    days are searched.
    """
    watched: Watched | None = None
    keys: dict[str, KeyMinutes] = {}
    still_open: list[IncidentWindow] = []
    for minute, counts in minutes:
        watched = watched or Watched(since=minute * MINUTE, relay="")
        at = (minute + 1) * MINUTE - 1
        heartbeat = Heartbeat(
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
        for alert in observe(watched, [heartbeat], keys, rules):
            start = _start(alert.kind, alert.start)
            if alert.is_over and first <= start < last:
                end = alert.at // MINUTE + (alert.kind not in _ENDS_AT_ONCE)
                yield IncidentWindow(alert.kind, queue, alert.subject, start, max(end, start + 1))
        still_open = []
        for name, each in watched.open.items():
            kind, _, subject = name.partition("\t")
            start = _start(kind, each.start)
            if first <= start < last:
                end = each.last // MINUTE + 1
                still_open.append(IncidentWindow(kind, queue, subject, start, end, is_over=False))
        if minute + 1 >= last and not still_open:
            return
    yield from still_open


def _start(kind: str, instant: int) -> int:
    # A stall begins after the end of the last minute in which something moved.
    return (instant + (kind in _ENDS_AT_ONCE)) // MINUTE
