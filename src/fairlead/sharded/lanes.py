"""The priorities of a queue: each is a section of one sharded queue, and better priorities are read
first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fairlead.sharded import script
from fairlead.sharded.message import Message, message
from fairlead.sharded.settings import ShardedSettings
from fairlead.sharded.steps import (
    DELIVERING,
    WAIT_SECONDS,
    QueueSteps,
    ReadGroup,
    RedisCall,
    RunScript,
    Steps,
    WaitForEntry,
    taken,
)


class Delivery(NamedTuple):
    """A message, and the priority at which it waited."""

    priority: int
    message: Message


class EmptyScan(NamedTuple):
    """How to wait after a scan of the lanes that found nothing."""

    wait: WaitForEntry
    is_whole: bool
    """Whether the scan read every priority. A priority for which the node has no room is left
    out."""


class Lanes:
    """The steps of one queue, by priority. Priorities are strict: a reader gets nothing of a lower
    priority while a better one has a message and the reader has room for it."""

    def __init__(self, settings: ShardedSettings, monotonic: Callable[[], float]) -> None:
        """`settings`: without a section. `monotonic`: seconds on a clock that never steps back."""
        self.name = settings.name
        self._settings = settings
        self._monotonic = monotonic
        self._steps: dict[int, QueueSteps] = {}
        self._known: tuple[int, ...] = ()
        self._streams: dict[int, int] = {}
        """Number of streams of each priority at the last scan that found nothing."""
        self._prepared: set[int] = set()
        self._notifications = f"{{{settings.name}}}:notifications"

    def at(self, priority: int) -> QueueSteps:
        """Return the steps of one priority."""
        found = self._steps.get(priority)
        if found is None:
            found = QueueSteps(replace(self._settings, section=str(priority)), self._monotonic)
            self._steps[priority] = found
        return found

    def known(self) -> Steps[Sequence[int]]:
        """Return the priorities that were ever written to, the best first."""
        yield from self._ask()
        return self._known

    def read_once(
        self, group: str, consumer: str, room: Callable[[int], int]
    ) -> Steps[tuple[list[Delivery], EmptyScan]]:
        """Scan each priority once, and claim up to `room` messages of it. Return the
        claimed messages, and the wait for the next ones if there are none."""
        found: list[Delivery] = []
        waits: list[WaitForEntry] = []
        done: set[int] = set()
        latest = "" if self._known else (yield from self._ask())
        is_whole = True
        while left := [priority for priority in self._known if priority not in done]:
            priority = left[0]
            done.add(priority)
            if (space := room(priority)) <= 0:
                is_whole = False
                continue
            steps = self.at(priority)
            response: Any = (b"again",)
            times_again = 0
            while response[0] == b"again":
                response = yield steps.read_once(group, consumer, space, times_again=times_again)
                times_again += 1
            self._learn(response[2])
            if response[0] in DELIVERING:
                now = response[1]
                found += [Delivery(priority, taken(now, each)) for each in response[3:]]
                if len(response) - 3 == space or response[0] == b"large":
                    break  # there may be more of this priority, and lower ones must wait for it
            else:
                waits.append(steps.waiting(response, WAIT_SECONDS))
                self._streams[priority] = response[6]
        if waits:
            # Any message that a scan missed has a newer notification than the first scan has seen.
            latest = waits[0].after[self._notifications]
        elif not found and not latest:
            latest = yield from self._ask()
        seconds = min((wait.millis for wait in waits), default=round(WAIT_SECONDS * 1000))
        return found, EmptyScan(WaitForEntry({self._notifications: latest}, seconds), is_whole)

    def wait(self, group: str, consumer: str, empty: EmptyScan) -> Steps[list[Delivery]]:
        """Wait for a message after a whole scan that found nothing, and claim it at once. Fairness
        needs no other scan, because no other message waits."""
        lanes = {
            priority: self._streams[priority]
            for priority in self._known
            if priority in self._streams
        }
        if not lanes:
            yield empty.wait
            return []
        for priority in lanes.keys() - self._prepared:
            yield from self.at(priority).prepare(group)
            self._prepared.add(priority)
        priorities = {
            key: priority
            for priority, count in lanes.items()
            for key in self.at(priority).streams(count)
        }
        notifiers = {self.at(priority).notifier for priority in lanes}
        responses = yield ReadGroup(group, consumer, [*notifiers, *priorities], empty.wait.millis)
        if responses is None:
            self._prepared.clear()
            return []
        found = []
        for key, entry, fields in responses:
            name = key.decode()
            if name in notifiers:
                yield RedisCall(("XACK", name, group, entry))
                yield RedisCall(("XDEL", name, entry))
                continue
            stream = name.rpartition(":s")[2].encode()
            now = entry.partition(b"-")[0]
            found.append(Delivery(priorities[name], message((stream, entry, 1, now, fields))))
        return found

    def _ask(self) -> Steps[str]:
        """Refresh the known priorities, and return the newest notification of that moment."""
        latest, *sections = yield RunScript(script.SECTIONS, self._settings.meta, ())
        self._learn(sections)
        return str(latest.decode())

    def _learn(self, sections: Iterable[bytes]) -> None:
        self._known = tuple(sorted(int(section) for section in sections))
