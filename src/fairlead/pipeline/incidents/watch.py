"""The detector of incidents: the state of one watched queue, and the alerts that its heartbeats
raise and end. Pure.

Workers and `fairlead pipeline alerts` feed it with heartbeats of seconds, while things happen;
`fairlead pipeline incidents` with heartbeats of whole minutes, from the tables (`over_history`).

- stall: tasks wait, and no run has begun or ended for `stall_seconds`, or for `standstill_seconds`
  if a task runs. Over when a run begins or ends, no task waits, or the queue is paused.
- flood: within a minute, one key submits more than half of the queue's tasks, at least
  `flood_tasks`, and at least `flood_times` its mean per minute. Over after `quiet_seconds` in which
  the key submits less than half of these numbers, or at most half of the queue's tasks.
- error burst: within a minute, at least `burst_runs` runs failed, and more than succeeded. Over
  after `quiet_seconds` without one.
- stuck: a task runs longer than its `max_stuck`. Over when no such task is left.
- node loss: the heartbeat of a node is overdue, or runs of it were lost. Over after `quiet_seconds`
  without either.
- starved: a key got less than its share (in heartbeats from tables). Over after `quiet_seconds`.

Floods are reported only after the first `warm_up_seconds`, in which the means of the keys are
measured.

The watch measures by the order in which heartbeats arrive and by the time that their relay's steady
clock says is between them; no clock that somebody may set decides anything. What happened while no
heartbeat arrived is not known: that time counts for nothing, and the arrivals in it are no flood.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from fairlead.clock import MICROS
from fairlead.pipeline.incidents.heartbeat import HEARTBEAT_SECONDS, Heartbeat

MINUTE = 60 * MICROS
MEAN_MINUTES = 60
"""Maximum number of minutes that count in the mean of a key."""
ALL = "*"
"""Subject of an alert about a whole queue."""
_STALL, _STUCK = f"stall\t{ALL}", f"stuck\t{ALL}"
"""Problems that end with the first heartbeat that does not show them."""
INTERVAL = 10 * MICROS
"""Length of the intervals by which the last minute is counted, in microseconds."""
OTHER_RELAY_HEARTBEATS = 5
"""Heartbeats of another relay, without one of the present relay among them, after which the other
one replaces it."""
GAP = MINUTE
"""Longest time between two heartbeats, in microseconds, that is known."""
PAUSE = round(HEARTBEAT_SECONDS * MICROS)
"""Microseconds of watched time that an unknown time counts."""
MOST_GAPS = 10
"""Unknown times that are kept, to show the instants of what happened before them."""

_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules for alerts."""

    stall_seconds: _Seconds = 10.0
    standstill_seconds: _Seconds = 300.0
    flood_tasks: _Count = 100
    flood_times: Annotated[float, msgspec.Meta(ge=1)] = 10.0
    burst_runs: _Count = 20
    quiet_seconds: _Seconds = 300.0
    warm_up_seconds: Annotated[float, msgspec.Meta(ge=0)] = 180.0
    silence_seconds: _Seconds = 60.0
    """Seconds without a heartbeat of a queue after which a silence alert is raised."""
    forget_seconds: _Seconds = 7200.0
    """Seconds without tasks after which a key is dropped from the state of every queue."""
    queues: dict[str, dict[str, int | float]] = {}
    """Values that replace these rules for a queue: {"payouts": {"stall_seconds": 300}}."""

    def __post_init__(self) -> None:
        for queue in self.queues:
            self.of(queue)

    def of(self, queue: str) -> Rules:
        """Return the rules of a queue. Raise ValueError for a rule that cannot differ by queue."""
        given = self.queues.get(queue)
        if given is None:
            return self
        if strange := sorted(given.keys() - _OF_A_QUEUE):
            known = ", ".join(_OF_A_QUEUE)
            raise ValueError(
                f"queue {queue!r} cannot have {', '.join(strange)} of its own; it can have {known}"
            )
        try:
            return msgspec.convert({**msgspec.structs.asdict(self), "queues": {}, **given}, Rules)
        except msgspec.ValidationError as error:
            raise ValueError(f"queue {queue!r}: {error}") from None


_OF_A_QUEUE = [name for name in Rules.__struct_fields__ if name not in ("forget_seconds", "queues")]


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
        minute, into = divmod(at, MINUTE)
        if minute == self.minute:
            return self.tasks + self.before * (1 - into / MINUTE)
        return self.tasks * (1 - into / MINUTE) if minute == self.minute + 1 else 0.0


class KeysInMemory(dict[str, KeyMinutes]):
    """Minutes of the keys of a queue."""

    def drop(self, before: int) -> None:
        """Drop the keys without arrivals from the minute `before` on."""
        for key in [key for key, minutes in self.items() if minutes.minute < before]:
            del self[key]


class Alert(msgspec.Struct, frozen=True):
    """A problem that began or ended. Instants are microseconds since the epoch."""

    kind: str
    queue: str
    subject: str
    """Key or node; "*" for the whole queue."""
    start: int
    at: int
    """Instant of the detection, or of the end."""
    is_over: bool = False
    tasks: int = 0
    """Tasks or runs counted for the problem so far."""


class Open(msgspec.Struct):
    """An open alert."""

    start: int
    """Instant of its begin, as reported."""
    last: int
    """Watched time of the last heartbeat that showed the problem."""
    tasks: int = 0
    at: int = 0
    """Instant of its detection, as reported."""


class IntervalCounts(msgspec.Struct):
    """Counts of a queue in ten seconds."""

    begin: int
    done: int = 0
    failed: int = 0
    arrived: int = 0


class Watched(msgspec.Struct):
    """State of one watched queue. Its times are microseconds of watched time, which begins with the
    instant of the first heartbeat and does not pass while no heartbeat arrives."""

    since: int
    relay: str
    last: int = 0
    """Time of the last heartbeat."""
    last_seen: int = 0
    """Instant of the last heartbeat by its own clock, for people."""
    up: int = 0
    """`up` of the last heartbeat, or its instant if it has none."""
    others: int = 0
    """Heartbeats of another relay since the last one of `relay`."""
    moved_at: int = 0
    """Time of the last start or end of a run."""
    claimed_at: int = 0
    """Latest claim that a heartbeat reported, by the clock of the store."""
    oldest: int | None = None
    """Instant at which the oldest unclaimed task became ready, by the clock of the store; None if
    no task waits."""
    waits_from: int = 0
    """Time from which on this task is known to wait."""
    intervals: list[IntervalCounts] = []
    """Intervals of the last minute."""
    open: dict[str, Open] = {}
    """Open alerts by kind and subject, separated by a tab."""
    gaps: list[tuple[int, int]] = []
    """Watched time and instant of the last heartbeat before each unknown time, ascending; only the
    last MOST_GAPS."""


def observe(
    watched: Watched, heartbeats: Iterable[Heartbeat], keys: dict[str, KeyMinutes], rules: Rules
) -> list[Alert]:
    """Return the alerts that these heartbeats, in the order of their arrival, raise and end, and
    update `watched` and `keys`. Repeated heartbeats change nothing."""
    alerts: list[Alert] = []
    for heartbeat in heartbeats:
        up = heartbeat.up or heartbeat.at
        if heartbeat.relay != watched.relay:
            watched.others += 1
            if watched.others <= OTHER_RELAY_HEARTBEATS:
                continue
            watched.relay, passed = heartbeat.relay, GAP + 1
        elif up > watched.up:
            passed = up - watched.up if watched.up else 0
        else:
            continue
        if passed > GAP:
            passed, heartbeat = PAUSE, msgspec.structs.replace(heartbeat, arrived=0, keys={})
            watched.gaps = [*watched.gaps, (watched.last, watched.last_seen)][-MOST_GAPS:]
        at = watched.last + passed if watched.last else max(watched.since, heartbeat.at)
        alerts += _Evaluation(watched, heartbeat, at, keys, rules).alerts()
        watched.last, watched.last_seen, watched.up, watched.others = at, heartbeat.at, up, 0
    return alerts


@dataclass
class _Evaluation:
    """Evaluation of one heartbeat."""

    watched: Watched
    heartbeat: Heartbeat
    at: int
    """Watched time of the heartbeat."""
    keys: dict[str, KeyMinutes]
    rules: Rules
    present: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Present problems by kind and subject: start, and tasks to add."""

    def alerts(self) -> list[Alert]:
        self._count()
        self._stall()
        self._flood()
        self._burst()
        heartbeat, at = self.heartbeat, self.at
        if heartbeat.stuck or (heartbeat.stuck is None and _STUCK in self.watched.open):
            # If stuck tasks were not counted, the alert stays open.
            self.present[_STUCK] = at, heartbeat.stuck or 0
        for node in {*heartbeat.lost, *heartbeat.silent}:
            self.present[f"node loss\t{node}"] = at, heartbeat.lost.get(node, 0)
        for key in heartbeat.starved:
            self.present[f"starved\t{key}"] = at, 0
        return [*self._raised(), *self._ended()]

    def _instant(self, time: int) -> int:
        """Return the instant of a watched time by the clock of the heartbeats since the last
        unknown time; of an earlier time, by the clock before."""
        for last, shown in self.watched.gaps:
            if time <= last:
                return time - last + shown
        return time - self.at + self.heartbeat.at

    def _time(self, instant: int) -> int:
        """Return the watched time of something new that this heartbeat reports: since the last
        heartbeat."""
        time = instant - self.heartbeat.at + self.at
        return min(max(time, self.watched.last or self.watched.since), self.at)

    def _count(self) -> None:
        watched, begin = self.watched, self.at - self.at % INTERVAL
        watched.intervals = [each for each in watched.intervals if each.begin > self.at - MINUTE]
        if not watched.intervals or watched.intervals[-1].begin != begin:
            watched.intervals.append(IntervalCounts(begin))
        interval = watched.intervals[-1]
        interval.done += self.heartbeat.done
        interval.failed += self.heartbeat.failed
        interval.arrived += self.heartbeat.arrived

    def _stall(self) -> None:
        watched, heartbeat, rules = self.watched, self.heartbeat, self.rules
        ended = bool(heartbeat.done or heartbeat.failed or heartbeat.lost)
        if ended:
            watched.moved_at = self.at
        elif heartbeat.claimed_at > watched.claimed_at:
            watched.moved_at = self._time(heartbeat.claimed_at)
        if heartbeat.running is not None:
            watched.claimed_at = heartbeat.claimed_at
        oldest = None if heartbeat.is_paused else heartbeat.waits_since
        if oldest is not None and (watched.oldest is None or oldest > watched.oldest):
            watched.waits_from = self._time(oldest)
        watched.oldest = oldest
        if oldest is None:
            return
        since = max(watched.moved_at, watched.since, watched.waits_from)
        if heartbeat.running is None:
            # The number of running tasks is unknown. An open stall stays open, except when the
            # heartbeat reports ended runs.
            is_stalled = _STALL in watched.open and not ended
        else:
            patience = rules.standstill_seconds if heartbeat.running else rules.stall_seconds
            is_stalled = self.at - since >= patience * MICROS
        if is_stalled:
            self.present[_STALL] = since, 0

    def _flood(self) -> None:
        watched, rules, minute = self.watched, self.rules, self.at // MINUTE
        total = sum(interval.arrived for interval in watched.intervals)
        is_known = self.at - watched.since >= rules.warm_up_seconds * MICROS
        for key, tasks in self.heartbeat.keys.items():
            known = self.keys.setdefault(key, KeyMinutes(minute))
            known.arrive(tasks, minute)
            brought = known.last_minute(self.at)
            least = max(rules.flood_tasks, rules.flood_times * known.mean)
            if f"flood\t{key}" in watched.open:
                least /= 2  # an open flood lasts until the arrivals have clearly fallen
            if is_known and brought >= least and 2 * brought > total:
                self.present[f"flood\t{key}"] = self.at, tasks

    def _burst(self) -> None:
        minute = self.watched.intervals
        last_two = [each for each in minute if each.begin > self.at - 2 * INTERVAL]
        # Also check the last two intervals alone: after successful runs, it may take half a minute
        # until most runs of the whole minute have failed.
        for intervals in (minute, last_two):
            failed = sum(each.failed for each in intervals)
            if failed >= self.rules.burst_runs and failed > sum(each.done for each in intervals):
                first = next(each.begin for each in intervals if each.failed)
                self.present["error burst\t" + ALL] = first, self.heartbeat.failed

    def _raised(self) -> Iterable[Alert]:
        for name, (since, tasks) in self.present.items():
            found = self.watched.open.get(name)
            if found is None:
                # The clock of an earlier relay may have been ahead.
                start = min(self._instant(since), self.heartbeat.at)
                found = self.watched.open[name] = Open(start, self.at, at=self.heartbeat.at)
                kind, _, subject = name.partition("\t")
                yield Alert(kind, self.heartbeat.queue, subject, start, found.at, tasks=tasks)
            found.last = self.at
            found.tasks += tasks

    def _ended(self) -> Iterable[Alert]:
        for name, found in list(self.watched.open.items()):
            at_once = name in (_STALL, _STUCK)
            is_quiet = self.at - found.last >= round(self.rules.quiet_seconds * MICROS)
            if name not in self.present and (at_once or is_quiet):
                del self.watched.open[name]
                kind, _, subject = name.partition("\t")
                # The clock of the heartbeats may have been set back.
                end = max(found.start, found.at, self._instant(self.at if at_once else found.last))
                queue = self.heartbeat.queue
                yield Alert(kind, queue, subject, found.start, end, True, found.tasks)
