"""The watch of one queue: its state, and the alerts that its heartbeats raise and end. Pure.

| kind | raised when | over when |
|---|---|---|
| stall | no run begins or ends for `stall_seconds` | one does, or none waits |
| flood | a key brings `flood_tasks` a minute, `flood_times` its usual | half, for `quiet_seconds` |
| error burst | `burst_runs` runs failed in a minute, and most | none for `quiet_seconds` |
| stuck | a task runs past its greatest time | none does any more |
| node loss | a node is silent, or runs of it were lost | nothing of it for `quiet_seconds` |

The usual minutes of a queue are learnt first, so floods are reported after `warm_up_seconds`. While
some run continues, a stall needs `standstill_seconds`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Protocol

import msgspec

from fairlead.clock import MICROS
from fairlead.pipeline.alerts.heartbeat import Heartbeat
from fairlead.pipeline.incidents.detect import ALL

MINUTE = 60 * MICROS
SLOT = 10 * MICROS
"""Length of the intervals in which the last minute is stored."""
LONGEST_MEMORY = 60
"""Minutes whose mean is the usual minute of a key."""
OTHER_RELAY_SECONDS = 10.0
"""Seconds of silence after which another relay replaces this one."""

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
    warm_up_seconds: Annotated[float, msgspec.Meta(ge=0)] = 120.0
    silence_seconds: _Seconds = 60.0
    """Seconds without a heartbeat of a queue after which a silence alert is raised."""
    forget_seconds: _Seconds = 7200.0
    """Seconds without tasks after which a key is dropped from the state of every queue."""
    queues: dict[str, dict[str, int | float]] = {}
    """Other values by queue: {"payouts": {"stall_seconds": 300}}."""

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


class KeyMinutes(msgspec.Struct):
    """Arrivals of a key by minutes."""

    minute: int
    """Last minute with arrivals, counted from the epoch."""
    tasks: int = 0
    """Arrivals in that minute."""
    before: int = 0
    """Arrivals in the minute before."""
    mean: float = 0.0
    """Mean arrivals of the known minutes before."""
    known: int = -1
    """Number of known minutes; -1 if even the minute before is unknown."""

    def arrive(self, tasks: int, minute: int) -> None:
        """Add arrivals in this minute or a later one than the last."""
        while self.minute < minute:
            self.known = min(self.known + 1, LONGEST_MEMORY)
            if self.known > 0:
                self.mean += (self.before - self.mean) / self.known
            self.before, self.tasks = self.tasks, 0
            self.minute += 1
            if self.minute < minute - LONGEST_MEMORY:  # all minutes are too old
                self.minute, self.before, self.mean = minute, 0, 0.0
        self.tasks += tasks

    def last_minute(self, at: int) -> float:
        """Return the approximate arrivals in the sixty seconds before `at` (microseconds)."""
        minute, into = divmod(at, MINUTE)
        if minute == self.minute:
            return self.tasks + self.before * (1 - into / MINUTE)
        return self.tasks * (1 - into / MINUTE) if minute == self.minute + 1 else 0.0


class Keys(Protocol):
    """Storage for the minutes of keys."""

    def get(self, key: str) -> KeyMinutes | None:
        """Return the minutes of a key; None if there are none."""

    def put(self, key: str, minutes: KeyMinutes) -> None:
        """Store the minutes of a key."""


class Open(msgspec.Struct):
    """An open alert."""

    start: int
    last: int
    """Instant of its last sighting."""
    tasks: int = 0


class Slot(msgspec.Struct):
    """Ten seconds of a queue."""

    begin: int
    done: int = 0
    failed: int = 0
    arrived: int = 0


class Watched(msgspec.Struct):
    """State of one watched queue."""

    since: int
    relay: str
    last: int = 0
    """Instant of its last heartbeat."""
    moved_at: int = 0
    """Instant of the last begin or end of a run."""
    slots: list[Slot] = []
    open: dict[str, Open] = {}
    """Open alerts by kind and subject, separated by a tab."""


def observe(
    watched: Watched, heartbeats: Iterable[Heartbeat], keys: Keys, rules: Rules
) -> list[Alert]:
    """Return the alerts that these heartbeats, in any order, raise and end, and update `watched`
    and `keys`. Repeated heartbeats change nothing."""
    alerts: list[Alert] = []
    for heartbeat in sorted(heartbeats, key=lambda heartbeat: heartbeat.at):
        if (
            heartbeat.relay != watched.relay
            and heartbeat.at > watched.last + OTHER_RELAY_SECONDS * MICROS
        ):
            watched.relay = heartbeat.relay
        if heartbeat.relay == watched.relay and heartbeat.at > watched.last:
            alerts += _Look(watched, heartbeat, keys, rules).alerts()
            watched.last = heartbeat.at
    return alerts


class _Look:
    """Evaluation of one heartbeat."""

    def __init__(self, watched: Watched, heartbeat: Heartbeat, keys: Keys, rules: Rules) -> None:
        self._watched = watched
        self._heartbeat = heartbeat
        self._keys = keys
        self._rules = rules
        self._seen: dict[str, tuple[int, int]] = {}
        """Present problems by kind and subject: start, and tasks to add."""
        self._at_once = {"stall\t" + ALL, "stuck\t" + ALL}
        """Problems that end as soon as they do not show."""

    def alerts(self) -> list[Alert]:
        self._remember()
        self._stall()
        self._flood()
        self._burst()
        heartbeat = self._heartbeat
        if heartbeat.stuck:
            self._show("stuck", ALL, heartbeat.at, heartbeat.stuck)
        elif heartbeat.stuck is None and "stuck\t" + ALL in self._watched.open:
            self._show("stuck", ALL, heartbeat.at, 0)  # no count
        for node in {*heartbeat.lost, *heartbeat.silent}:
            self._show("node loss", node, heartbeat.at, heartbeat.lost.get(node, 0))
        return [*self._raised(), *self._ended()]

    def _show(self, kind: str, subject: str, since: int, tasks: int) -> None:
        self._seen[f"{kind}\t{subject}"] = since, tasks

    def _remember(self) -> None:
        watched, heartbeat = self._watched, self._heartbeat
        begin = heartbeat.at - heartbeat.at % SLOT
        watched.slots = [slot for slot in watched.slots if slot.begin > heartbeat.at - MINUTE]
        if not watched.slots or watched.slots[-1].begin != begin:
            watched.slots.append(Slot(begin))
        slot = watched.slots[-1]
        slot.done += heartbeat.done
        slot.failed += heartbeat.failed
        slot.arrived += heartbeat.arrived

    def _stall(self) -> None:
        watched, heartbeat = self._watched, self._heartbeat
        ended = heartbeat.at if heartbeat.done or heartbeat.failed or heartbeat.lost else 0
        watched.moved_at = max(watched.moved_at, watched.since, heartbeat.claimed_at, ended)
        if heartbeat.waits_since is None or heartbeat.is_paused:
            return
        since = max(watched.moved_at, heartbeat.waits_since)
        if heartbeat.running is None:
            # The number of running tasks is unknown. An open stall stays open, except when the
            # heartbeat reports ended runs.
            shows = "stall\t" + ALL in watched.open and not ended
        else:
            patience = (
                self._rules.standstill_seconds if heartbeat.running else self._rules.stall_seconds
            )
            shows = heartbeat.at - since >= patience * MICROS
        if shows:
            self._show("stall", ALL, since, 0)

    def _flood(self) -> None:
        watched, heartbeat, rules = self._watched, self._heartbeat, self._rules
        minute = heartbeat.at // MINUTE
        total = sum(slot.arrived for slot in watched.slots)
        is_known = heartbeat.at - watched.since >= rules.warm_up_seconds * MICROS
        for key, tasks in heartbeat.keys.items():
            known = self._keys.get(key) or KeyMinutes(minute)
            known.arrive(tasks, minute)
            self._keys.put(key, known)
            brought = known.last_minute(heartbeat.at)
            least = max(rules.flood_tasks, rules.flood_times * known.mean)
            if f"flood\t{key}" in watched.open:
                least /= 2  # an open flood lasts until the arrivals have clearly fallen
            if is_known and brought >= least and 2 * brought > total:
                self._show("flood", key, heartbeat.at, tasks)

    def _burst(self) -> None:
        every = self._watched.slots
        # Also check the last seconds alone, because a minute needs half a minute until most runs
        # have failed.
        for slots in (
            every,
            [slot for slot in every if slot.begin > self._heartbeat.at - 2 * SLOT],
        ):
            failed = sum(slot.failed for slot in slots)
            if failed >= self._rules.burst_runs and failed > sum(slot.done for slot in slots):
                first = next(slot.begin for slot in slots if slot.failed)
                self._show("error burst", ALL, first, self._heartbeat.failed)

    def _raised(self) -> Iterable[Alert]:
        watched, heartbeat = self._watched, self._heartbeat
        for name, (since, tasks) in self._seen.items():
            found = watched.open.get(name)
            if found is None:
                found = watched.open[name] = Open(since, heartbeat.at)
                kind, _, subject = name.partition("\t")
                yield Alert(kind, heartbeat.queue, subject, since, heartbeat.at, tasks=tasks)
            found.last = heartbeat.at
            found.tasks += tasks

    def _ended(self) -> Iterable[Alert]:
        heartbeat, quiet = self._heartbeat, round(self._rules.quiet_seconds * MICROS)
        for name, found in list(self._watched.open.items()):
            if name not in self._seen and (
                name in self._at_once or heartbeat.at - found.last >= quiet
            ):
                del self._watched.open[name]
                kind, _, subject = name.partition("\t")
                end = heartbeat.at if name in self._at_once else found.last
                yield Alert(kind, heartbeat.queue, subject, found.start, end, True, found.tasks)
