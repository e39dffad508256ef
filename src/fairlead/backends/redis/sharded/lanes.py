"""The priorities of a queue: each is a section of one sharded queue, and a better one is read
first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fairlead.backends.redis.sharded import script
from fairlead.backends.redis.sharded.message import Message, message
from fairlead.backends.redis.sharded.settings import Settings
from fairlead.backends.redis.sharded.steps import (
    WAIT_SECONDS,
    Call,
    QueueSteps,
    ReadGroup,
    Run,
    Steps,
    Wait,
)


class Delivery(NamedTuple):
    """A message, and the priority at which it waited."""

    priority: int
    message: Message


class Empty(NamedTuple):
    """What to do when a pass has found nothing."""

    wait: Wait
    is_whole: bool
    """It looked at all priorities: none was left out for want of room."""


class Lanes:
    """The steps of one queue, by priority. Strict: nothing of a lower priority is read while a
    better one has a message and the reader has room for it."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float]) -> None:
        """`settings`: without a section; `monotonic`: seconds on a clock that never steps back."""
        self.name = settings.name
        self._settings = settings
        self._monotonic = monotonic
        self._steps: dict[int, QueueSteps] = {}
        self._known: tuple[int, ...] = ()
        self._streams: dict[int, int] = {}
        """Of each priority, how many there were at the last empty pass."""
        self._prepared: set[int] = set()
        self._notifications = f"{{{settings.name}}}:notifications"

    def at(self, priority: int) -> QueueSteps:
        """The steps of one priority."""
        found = self._steps.get(priority)
        if found is None:
            found = QueueSteps(replace(self._settings, section=str(priority)), self._monotonic)
            self._steps[priority] = found
        return found

    def known(self) -> Steps[Sequence[int]]:
        """The priorities that were ever written to, the best first."""
        yield from self._ask()
        return self._known

    def look(
        self, group: str, consumer: str, room: Callable[[int], int]
    ) -> Steps[tuple[list[Delivery], Empty]]:
        """One pass over each priority: claims up to `room` messages of each. Answers them, and what
        to wait for if there are none."""
        found: list[Delivery] = []
        waits: list[Wait] = []
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
            answer: Any = (b"again",)
            while answer[0] == b"again":
                answer = yield steps.look(group, consumer, space)
            self._learn(answer[2])
            if answer[0] == b"messages":
                now = answer[1]
                found += [
                    Delivery(priority, message((s, at, 1, now, fields)))
                    for s, at, fields in answer[3:]
                ]
                if len(answer) - 3 == space:
                    break  # there may be more of it, and a lower one has to wait for that
            else:
                waits.append(steps.waiting(answer, WAIT_SECONDS))
                self._streams[priority] = answer[6]
        if waits:
            # What one of the passes may have missed comes after the newest notification that the
            # first of them saw.
            latest = waits[0].after[self._notifications]
        elif not found and not latest:
            latest = yield from self._ask()
        seconds = min((wait.millis for wait in waits), default=round(WAIT_SECONDS * 1000))
        return found, Empty(Wait({self._notifications: latest}, seconds), is_whole)

    def wait(self, group: str, consumer: str, empty: Empty) -> Steps[list[Delivery]]:
        """After a whole pass that found nothing: wait for what comes, and claim it at once, without
        another pass. It need not be looked whose turn it is, as nothing else waits."""
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
        answers = yield ReadGroup(group, consumer, [*notifiers, *priorities], empty.wait.millis)
        if answers is None:
            self._prepared.clear()
            return []
        found = []
        for key, entry, fields in answers:
            name = key.decode()
            if name in notifiers:
                yield Call(("XACK", name, group, entry))
                yield Call(("XDEL", name, entry))
                continue
            stream = name.rpartition(":s")[2].encode()
            now = entry.partition(b"-")[0]
            found.append(Delivery(priorities[name], message((stream, entry, 1, now, fields))))
        return found

    def _ask(self) -> Steps[str]:
        """Learns which priorities there are; the newest notification of that moment."""
        latest, *sections = yield Run(script.SECTIONS, self._settings.meta, ())
        self._learn(sections)
        return str(latest.decode())

    def _learn(self, sections: Iterable[bytes]) -> None:
        self._known = tuple(sorted(int(section) for section in sections))
