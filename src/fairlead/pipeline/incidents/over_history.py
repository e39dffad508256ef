"""The detector over a history: minutes of a queue, as the tables show them, become observations.
Pure; minutes are counted from the epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from fairlead.pipeline.incidents.detector import MINUTE, Anomaly, Detector, Observation, Rules

DAY_MINUTES = 1440


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

    def observation(self, queue: str, minute: int) -> Observation:
        """Return what an observer sees at the end of this minute."""
        at = (minute + 1) * MINUTE - 1
        return Observation(
            queue=queue,
            at=at,
            time=at,
            waits_since=self.waits_since if self.depth_end else None,
            running=int(self.is_busy),
            claimed_at=at if self.claimed else 0,
            done=self.done,
            failed=self.failed,
            arrived=self.arrived,
            keys=self.keys,
            lost=self.lost,
            # While no key is served, the queue stalls, and no key starves.
            starved=self.starved if self.claimed else [],
        )


class IncidentWindow(NamedTuple):
    """A kind of problem, of a queue and a subject, in the minutes [start, end)."""

    kind: str
    queue: str
    subject: str
    start: int
    end: int
    is_over: bool = True

    @property
    def id(self) -> str:
        """Id of the incident, also when it is found again or has become longer."""
        text = "\0".join((self.kind, self.queue, self.subject, str(self.start)))
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def incidents_from(
    queue: str, minutes: Iterable[tuple[int, Minute]], first: int, last: int, rules: Rules
) -> Iterator[IncidentWindow]:
    """Return the incidents that begin in the minutes [first, last).

    minutes: every known minute from a day before `first` on, in order; as many are read as the
    incidents last. What came before counts for nothing, so that an incident is the same whatever
    days are searched.
    """

    def windows(found: Iterable[Anomaly], is_over: bool) -> list[IncidentWindow]:
        every = (_window(queue, each, is_over) for each in found)
        return [each for each in every if first <= each.start < last]

    detector: Detector | None = None
    still_open: list[IncidentWindow] = []
    for minute, counts in minutes:
        detector = detector or Detector(rules, minute * MINUTE)
        yield from windows(detector.observe(counts.observation(queue, minute)), is_over=True)
        still_open = windows(detector.open.values(), is_over=False)
        if minute + 1 >= last and not still_open:
            return
    yield from still_open


def _window(queue: str, found: Anomaly, is_over: bool) -> IncidentWindow:
    # A stall begins after the end of the last minute in which something moved.
    start = (found.start + (found.kind == "stall")) // MINUTE
    end = max(found.last // MINUTE, start) + 1
    return IncidentWindow(found.kind, queue, found.subject, start, end, is_over)
