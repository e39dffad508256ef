"""The state machine of a supervisor: which worker process to start, drain or kill next.

The fleet has no clock and no I/O: the supervisor reports what happened and carries out the returned
actions. Times are in monotonic seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

EARLY_ENDS = 5
"""Number of early ends in a row of one worker after which the supervisor ends, if no worker is
ready."""

FIRST_DELAY = 0.5
"""Seconds until the next start after the first early end; it doubles with each one in a row."""

LONGEST_DELAY = 30.0
"""Longest such time, in seconds."""

SETTLED_SECONDS = 10.0
"""Age of a process from which its end is not early."""

KILL_GRACE = 10.0
"""Seconds beyond the drain time after which a draining process is killed."""

START_SECONDS = 60.0
"""Seconds within which a process must be ready, by default."""

_ENDED_BY_SIGTERM = 128 + 15
"""Exit code of a process that got SIGTERM before it could drain: it held no task."""

WRONG_USE = 2
"""Exit code of a process that cannot work as it is configured."""


@dataclass(frozen=True)
class Start:
    """Start a process for a slot."""

    child: int
    slot: int


@dataclass(frozen=True)
class Drain:
    """Ask a process to end its tasks and leave."""

    child: int


@dataclass(frozen=True)
class Kill:
    """Kill a process at once."""

    child: int


@dataclass(frozen=True)
class Log:
    """Log an event."""

    event: str
    fields: dict[str, object] = field(default_factory=dict)
    is_warning: bool = False


@dataclass(frozen=True)
class End:
    """End the supervisor."""

    code: int


Action = Start | Drain | Kill | Log | End


class Phase(StrEnum):
    """The phase of one process."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


@dataclass
class Child:
    """One process."""

    number: int
    slot: int
    generation: int
    """Number of the reload whose code the process runs; 0 is the code of the first start."""
    started_at: float
    phase: Phase = Phase.STARTING
    kill_at: float | None = None


@dataclass
class Slot:
    """One of the N workers, whatever process serves it."""

    number: int
    failures: int = 0
    """Early ends in a row."""
    due_at: float | None = None
    """Time of the next start; None while a process runs or none is wanted."""


def restart_delay(failures: int) -> float:
    """Return the seconds until the next start of a worker after these early ends in a row."""
    if not failures:
        return 0.0
    doublings = min(failures - 1, 32)  # keeps the float finite
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0**doublings)


class Fleet:
    """N slots with one process each, and at most one replacement at a time."""

    def __init__(
        self,
        workers: int,
        *,
        drain: float = 20.0,
        start_timeout: float = START_SECONDS,
        until_empty: bool = False,
    ) -> None:
        """`drain`: seconds that a process may take to drain. `start_timeout`: seconds that it may
        take until it is ready. `until_empty`: a process that ends
        with code 0 has found nothing left to run, and is not started again."""
        self._drain_seconds = drain
        self._start_seconds = start_timeout
        self._until_empty = until_empty
        self._numbers = itertools.count(1)
        self._generation = 0
        self._slots = {number: Slot(number) for number in range(1, workers + 1)}
        self._exit_code = 0
        self._was_ready = False
        self.is_stopping = False
        self.children: dict[int, Child] = {}
        """Living processes by number."""

    @property
    def next_due(self) -> float | None:
        """Time at which `on_time` has something to do; None if never."""
        times = [slot.due_at for slot in self._slots.values()]
        times += [child.kill_at for child in self.children.values()]
        return min((time for time in times if time is not None), default=None)

    def serving(self, slot: int) -> Child | None:
        """Return the process of a slot that takes tasks, or will."""
        own = [child for child in self._living(slot) if child.phase != Phase.DRAINING]
        return min(own, key=lambda child: child.phase != Phase.READY, default=None)

    def early_ends(self, slot: int) -> int:
        """Return the number of early ends in a row of the worker in a slot."""
        return self._slots[slot].failures

    def start(self, now: float) -> list[Action]:
        """Start all slots."""
        return [self._start(slot, now) for slot in self._slots.values()]

    def on_time(self, now: float) -> list[Action]:
        """Start the slots that are due, and kill the processes that start or drain for too
        long."""
        actions: list[Action] = []
        for slot in self._slots.values():
            if slot.due_at is not None and slot.due_at <= now:
                actions.append(self._start(slot, now))
        for child in self.children.values():
            if child.kill_at is not None and child.kill_at <= now:
                actions += self._kill(child)
        return actions

    def on_ready(self, number: int, now: float) -> list[Action]:
        """Note that a process is ready; drain the one that it replaces."""
        child = self.children[number]
        if child.phase != Phase.STARTING:
            return []
        child.phase = Phase.READY
        child.kill_at = None
        self._was_ready = True
        actions: list[Action] = [Log("worker is ready", {"worker": child.slot})]
        for old in self._living(child.slot):
            if old.number != number:
                actions += self._drain(old, now)
        return actions + self._roll(now)

    def on_waits(self, number: int, now: float) -> None:
        """Note that the start of a process waits for a server: its time limit begins anew."""
        if (child := self.children[number]).phase == Phase.STARTING:
            child.kill_at = now + self._start_seconds

    def on_exit(self, number: int, code: int, now: float) -> list[Action]:
        """Remove a process that ended with this code; decide what follows."""
        child = self.children.pop(number)
        if self.is_stopping:
            if code != _ENDED_BY_SIGTERM:
                self._exit_code = self._exit_code or code
            return self._ended()
        if child.phase == Phase.DRAINING or any(self._living(child.slot)):
            return self._on_replacement_exit(child, code, now)
        slot = self._slots[child.slot]
        if self._until_empty and code == 0:
            return self._ended()
        lived = now - child.started_at
        # A process that was never ready has ended early, however long it hung.
        served = 0.0 if child.phase == Phase.STARTING else lived
        slot.failures = 0 if served >= SETTLED_SECONDS else slot.failures + 1
        fields: dict[str, object] = {"worker": slot.number, "exit_code": code}
        if self._is_hopeless(child, slot, code):
            return [
                Log("worker cannot run", fields, is_warning=True),
                *self._stop(code or 1, now),
            ]
        delay = restart_delay(slot.failures)
        slot.due_at = now + delay
        fields |= {"lived_seconds": round(lived, 1), "restart_seconds": delay}
        return [Log("worker ended and is started again", fields, is_warning=True), *self._roll(now)]

    def reload(self, now: float) -> list[Action]:
        """Replace all processes, one after another."""
        if self.is_stopping:
            return []
        self._generation += 1
        return [Log("replacing the workers one by one"), *self._roll(now)]

    def stop(self, number: int, now: float) -> list[Action]:
        """Drain all processes after the first signal; kill them after the second."""
        if not self.is_stopping:
            event = "stopping: running tasks may end; a second signal ends at once"
            return [Log(event), *self._stop(0, now)]
        return [*(Kill(child) for child in self.children), End(128 + number)]

    def _start(self, slot: Slot, now: float) -> Start:
        slot.due_at = None
        child = Child(next(self._numbers), slot.number, self._generation, now)
        child.kill_at = now + self._start_seconds
        self.children[child.number] = child
        return Start(child.number, slot.number)

    def _living(self, slot: int) -> Iterator[Child]:
        return (child for child in self.children.values() if child.slot == slot)

    def _drain(self, child: Child, now: float) -> list[Action]:
        if child.phase == Phase.DRAINING:
            return []
        child.phase = Phase.DRAINING
        child.kill_at = now + self._drain_seconds + KILL_GRACE
        return [Drain(child.number)]

    def _kill(self, child: Child) -> list[Action]:
        child.kill_at = None
        event = "worker does not end and is killed"
        fields: dict[str, object] = {"worker": child.slot}
        if child.phase == Phase.STARTING:
            event = "worker is not ready in time and is killed"
            fields["start_timeout"] = self._start_seconds
        return [Kill(child.number), Log(event, fields, is_warning=True)]

    def _stop(self, code: int, now: float) -> list[Action]:
        self.is_stopping = True
        self._exit_code = code
        for slot in self._slots.values():
            slot.due_at = None
        drains = [action for child in self.children.values() for action in self._drain(child, now)]
        return drains + self._ended()

    def _ended(self) -> list[Action]:
        is_waiting = any(slot.due_at is not None for slot in self._slots.values())
        return [] if self.children or is_waiting else [End(self._exit_code)]

    def _is_hopeless(self, child: Child, slot: Slot, code: int) -> bool:
        """Return whether another start cannot help: wrong use before any process was ready, or too
        many early ends while none is ready."""
        if code == WRONG_USE and not self._was_ready:
            return True
        is_any_ready = any(other.phase == Phase.READY for other in self.children.values())
        return slot.failures >= EARLY_ENDS and not is_any_ready

    def _on_replacement_exit(self, child: Child, code: int, now: float) -> list[Action]:
        """Continue the reload, or end it when the new process ended before it was ready."""
        if child.phase == Phase.STARTING:
            # Keep the old code, which works, because the new code does not start.
            self._generation = min(other.generation for other in self.children.values())
            fields: dict[str, object] = {"worker": child.slot, "exit_code": code}
            return [
                Log(
                    "reload failed; the other workers continue with the old code",
                    fields,
                    is_warning=True,
                )
            ]
        if not any(self._living(child.slot)) and self._slots[child.slot].due_at is None:
            self._slots[child.slot].due_at = now
        return self._roll(now)

    def _roll(self, now: float) -> list[Action]:
        """Start the next replacement, unless one is under way."""
        living = [*self.children.values()]
        if any(child.phase != Phase.READY for child in living):
            return []
        for child in sorted(living, key=lambda child: child.slot):
            if child.generation < self._generation:
                return [self._start(self._slots[child.slot], now)]
        return []
