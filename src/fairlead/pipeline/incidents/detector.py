"""The detector of anomalies in one queue. Pure.

The watcher of a worker gives it an observation every ten seconds, `fairlead pipeline incidents` one
for each minute of the tables.

- stall: tasks wait, and no run has begun or ended for `stall_seconds`, or for `standstill_seconds`
  if a task runs. Over when a run begins or ends, no task waits, or the queue is paused.
- flood: within a minute, one key submits more than half of the queue's tasks, at least
  `flood_tasks`, and at least `flood_times` its mean per minute. Over after `quiet_seconds` in which
  the key submits less than half of these numbers, or at most half of the queue's tasks.
- error burst: within a minute, at least `burst_runs` runs failed, and more than succeeded. Over
  after `quiet_seconds` without one.
- node loss: the heartbeat of a node is overdue, or runs of it were lost. Over after `quiet_seconds`
  without either. After a gap, in which the store may have been away from all nodes, an overdue
  heartbeat shows nothing until the next observation.
- starved: tasks of a key waited while others were claimed (the tables say so). Over after
  `quiet_seconds`.

Floods are found only after the first `warm_up_seconds`, in which the means of keys are measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec

from fairlead.clock import MICROS

MINUTE = 60 * MICROS
MEAN_MINUTES = 60
"""Maximum number of minutes that count in the mean of a key."""
ALL = "*"
"""Subject of an anomaly of a whole queue."""
INTERVAL = 10 * MICROS
"""Length of the intervals by which the last minute is counted, in microseconds."""
GAP = MINUTE
"""Longest time between two observations, in microseconds, that is known by default."""
PAUSE = 2 * MICROS
"""Time that counts for a longer one, in microseconds. The arrivals in it are no flood."""

_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules of the detector."""

    stall_seconds: _Seconds = 10.0
    standstill_seconds: _Seconds = 300.0
    flood_tasks: _Count = 100
    flood_times: Annotated[float, msgspec.Meta(ge=1)] = 10.0
    burst_runs: _Count = 20
    quiet_seconds: _Seconds = 300.0
    warm_up_seconds: Annotated[float, msgspec.Meta(ge=0)] = 180.0
    delayed_tasks: _Count = 5
    """Least tasks that a stall or a starved key delays, for `fairlead pipeline incidents`."""
    forget_seconds: _Seconds = 7200.0
    """Seconds without tasks after which a key is dropped from memory."""
    queues: dict[str, dict[str, int | float]] = {}
    """Values that replace these rules for a queue: {"payouts": {"stall_seconds": 300}}."""

    def __post_init__(self) -> None:
        for queue in self.queues:
            self.of(queue)

    def of(self, queue: str) -> Rules:
        """Return the rules of a queue. Raise ValueError for an unknown or wrong rule."""
        given = self.queues.get(queue)
        if given is None:
            return self
        known = [name for name in self.__struct_fields__ if name != "queues"]
        if strange := sorted(given.keys() - {*known}):
            raise ValueError(
                f"queue {queue!r} cannot have {', '.join(strange)} of its own; it can have"
                f" {', '.join(known)}"
            )
        try:
            return msgspec.convert({**msgspec.structs.asdict(self), "queues": {}, **given}, Rules)
        except msgspec.ValidationError as error:
            raise ValueError(f"queue {queue!r}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """State of a queue at an instant, and its changes since the previous observation. Instants are
    microseconds since the epoch, by the clock of the store."""

    queue: str
    at: int
    time: int
    """Microseconds by a clock that is never set, which measures the time between observations."""
    waits_since: int | None = None
    """Instant at which the oldest unclaimed task became ready; None if no task waits."""
    running: int = 0
    """Number of tasks held by living nodes."""
    claimed_at: int = 0
    """Instant of the latest claim among the running tasks."""
    is_paused: bool = False
    done: int = 0
    failed: int = 0
    """Number of failed runs, without lost ones."""
    arrived: int = 0
    keys: dict[str, int] = field(default_factory=dict)
    """Arrived tasks by fairness key; of very many keys, only those with most tasks."""
    lost: dict[str, int] = field(default_factory=dict)
    """Lost runs by node."""
    silent: list[str] = field(default_factory=list)
    """Nodes of the queue whose own heartbeat is overdue."""
    starved: list[str] = field(default_factory=list)
    """Fairness keys that got less than their share."""


@dataclass
class Anomaly:
    """A problem of a queue, a key or a node."""

    kind: str
    subject: str
    """Key or node; ALL for the whole queue."""
    start: int
    """Instant of its begin."""
    last: int
    """Watched time of the last observation that showed it, see `Detector`."""


@dataclass
class KeyMinutes:
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
        minute, into = divmod(at, MINUTE)
        if minute == self.minute:
            return self.tasks + self.before * (1 - into / MINUTE)
        return self.tasks * (1 - into / MINUTE) if minute == self.minute + 1 else 0.0


@dataclass
class _Interval:
    """Counts of a queue in ten seconds."""

    begin: int
    done: int = 0
    failed: int = 0
    arrived: int = 0


class Detector:
    """Detector of one queue. Its times are microseconds of watched time, which is the instant of
    the first observation at first, and hardly passes in a gap."""

    def __init__(self, rules: Rules, since: int, gap: int = GAP) -> None:
        """since: instant from which on the first observation knows the queue. `gap`: longest time
        between two observations, in microseconds, that is known."""
        self._gap = gap
        self.open: dict[tuple[str, str], Anomaly] = {}
        """Open anomalies by kind and subject."""
        self._rules = rules
        self._seen: int | None = None
        """`time` of the last observation."""
        self._since = self._before = self._now = since
        """Times of the begin, of the previous and of the present observation."""
        self._moved_at = 0
        """Time of the last start or end of a run."""
        self._claimed_at = 0
        """Instant of the latest claim so far."""
        self._oldest: int | None = None
        """Instant at which the oldest waiting task became ready."""
        self._waits_from = 0
        """Time from which on this task is known to wait."""
        self._minute: list[_Interval] = []
        """Intervals of the last minute."""
        self._keys: dict[str, KeyMinutes] = {}

    def observe(self, found: Observation) -> list[Anomaly]:
        """Update `open` by the next observation, and return the anomalies that ended."""
        if self._seen is None:
            self._now, found = found.at, replace(found, silent=[])
        else:
            passed = found.time - self._seen
            if passed > self._gap:
                passed, found = PAUSE, replace(found, arrived=0, keys={}, silent=[])
            self._before, self._now = self._now, self._now + passed
        self._seen = found.time
        self._count(found)
        present = {
            **self._stall(found),
            **dict.fromkeys((("flood", key) for key in self._floods(found)), self._now),
            **self._burst(),
            **dict.fromkeys((("node loss", n) for n in {*found.lost, *found.silent}), self._now),
            **dict.fromkeys((("starved", key) for key in found.starved), self._now),
        }
        for name, since in present.items():
            if name not in self.open:
                self.open[name] = Anomaly(*name, since - self._now + found.at, self._now)
            self.open[name].last = self._now
        ended = [
            each
            for name, each in self.open.items()
            if name not in present
            and (
                each.kind == "stall" or self._now - each.last >= _micros(self._rules.quiet_seconds)
            )
        ]
        for each in ended:
            del self.open[each.kind, each.subject]
        return ended

    @property
    def present(self) -> list[Anomaly]:
        """Open anomalies that the last observation showed."""
        return [each for each in self.open.values() if each.last == self._now]

    def _count(self, found: Observation) -> None:
        begin = self._now - self._now % INTERVAL
        self._minute = [each for each in self._minute if each.begin > self._now - MINUTE]
        if not self._minute or self._minute[-1].begin != begin:
            self._minute.append(_Interval(begin))
        self._minute[-1].done += found.done
        self._minute[-1].failed += found.failed
        self._minute[-1].arrived += found.arrived

    def _time(self, found: Observation, instant: int) -> int:
        """Return the time of something new that this observation reports: since the previous
        one."""
        return min(max(instant - found.at + self._now, self._before), self._now)

    def _stall(self, found: Observation) -> dict[tuple[str, str], int]:
        if found.done or found.failed or found.lost:
            self._moved_at = self._now
        elif found.claimed_at > self._claimed_at:
            self._moved_at = self._time(found, found.claimed_at)
        self._claimed_at = found.claimed_at
        oldest = None if found.is_paused else found.waits_since
        if oldest is not None and (self._oldest is None or oldest > self._oldest):
            self._waits_from = self._time(found, oldest)
        self._oldest = oldest
        if oldest is None:
            return {}
        since = max(self._moved_at, self._since, self._waits_from)
        rules = self._rules
        patience = rules.standstill_seconds if found.running else rules.stall_seconds
        return {("stall", ALL): since} if self._now - since >= _micros(patience) else {}

    def _floods(self, found: Observation) -> Iterator[str]:
        minute, rules = self._now // MINUTE, self._rules
        total = sum(each.arrived for each in self._minute)
        # The rest of the minute in which the watch began is no whole minute.
        whole = (self._since // MINUTE + 1) * MINUTE - 1
        is_known = self._now - whole >= _micros(rules.warm_up_seconds)
        for key, tasks in found.keys.items():
            known = self._keys.setdefault(key, KeyMinutes(minute))
            known.arrive(tasks, minute)
            arrived = known.last_minute(self._now)
            least = max(rules.flood_tasks, rules.flood_times * known.mean)
            if ("flood", key) in self.open:
                least /= 2  # an open flood lasts until the arrivals have clearly fallen
            if is_known and arrived >= least and 2 * arrived > total:
                yield key
        oldest = minute - round(rules.forget_seconds / 60)
        for key in [key for key, known in self._keys.items() if known.minute < oldest]:
            del self._keys[key]

    def _burst(self) -> dict[tuple[str, str], int]:
        last_two = [each for each in self._minute if each.begin > self._now - 2 * INTERVAL]
        # Also check the last two intervals alone: after successful runs, it may take half a minute
        # until most runs of the whole minute have failed.
        for intervals in (last_two, self._minute):
            failed = sum(each.failed for each in intervals)
            if failed >= self._rules.burst_runs and failed > sum(each.done for each in intervals):
                first = next(each.begin for each in intervals if each.failed)
                return {("error burst", ALL): min(first, self._now)}
        return {}


def _micros(seconds: float) -> int:
    return round(seconds * MICROS)
