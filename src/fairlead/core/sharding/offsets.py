"""Which offset of a log may be committed, when what was read from it is done with in another
order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from fairlead.model import PartitionKey, Trigger


class Offsets:
    """Of one partition of a log, read from front to back. `len()`: read, and not yet released."""

    def __init__(self) -> None:
        self._held: deque[int] = deque()
        self._done: set[int] = set()
        self.position: int | None = None
        """Everything below is done with, so reading may begin here next time; None: nothing is
        known."""

    def __len__(self) -> int:
        return len(self._held)

    def read(self, offset: int) -> None:
        """This one was read, after all before it; logs may have gaps. One at or below the last one
        is a repetition: it is done with when that is."""
        if self._held and offset <= self._held[-1]:
            return
        if not self._held and self.position is not None and offset < self.position:
            return
        if not self._held:
            self.position = offset
        self._held.append(offset)

    def done(self, offset: int) -> None:
        """This one is done with. One that was never read, or is released, changes nothing."""
        held, done = self._held, self._done
        if not held or not held[0] <= offset <= held[-1]:
            return
        done.add(offset)
        while held and held[0] in done:
            done.remove(held[0])
            self.position = held.popleft() + 1
        if held:
            self.position = held[0]


class Progress:
    """What was read of the partitions of a log, whose triggers are held, and how far each may be
    committed."""

    def __init__(self) -> None:
        self._offsets: dict[PartitionKey, Offsets] = {}
        self._committed: dict[PartitionKey, int] = {}
        self._held: dict[str, tuple[PartitionKey, int, float]] = {}
        """By task, in the order of arrival: the message that its trigger came with, and when
        (monotonic seconds)."""

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._offsets

    def begin(self, keys: Iterable[PartitionKey]) -> None:
        """These are read from now on."""
        for key in keys:
            self._offsets[key] = Offsets()

    def end(self, keys: Collection[PartitionKey]) -> None:
        """These are no longer read."""
        for key in keys:
            self._offsets.pop(key, None)
            self._committed.pop(key, None)
        gone = set(keys)
        self._held = {
            task_id: message for task_id, message in self._held.items() if message[0] not in gone
        }

    def read(self, key: PartitionKey, offset: int) -> None:
        """A message of a partition that is read."""
        self._offsets[key].read(offset)

    def done(self, key: PartitionKey, offset: int) -> None:
        """Nobody needs it any more."""
        if (offsets := self._offsets.get(key)) is not None:
            offsets.done(offset)

    def hold(self, task_id: str, key: PartitionKey, offset: int, now: float) -> None:
        """It is done with when its trigger is."""
        self._held[task_id] = (key, offset, now)

    def holds(self, task_id: str) -> bool:
        """A message with its trigger is not done with."""
        return task_id in self._held

    def settled(self, triggers: Iterable[Trigger]) -> None:
        """These are done with."""
        for trigger in triggers:
            if (message := self._held.pop(trigger.id, None)) is not None:
                self.done(message[0], message[1])

    def give_up(self, before: float) -> None:
        """Those that have been held since then (monotonic seconds), or for longer, are left to the
        rows."""
        while self._held:
            task_id, (key, offset, since) = next(iter(self._held.items()))
            if since > before:
                break
            del self._held[task_id]
            self.done(key, offset)

    def to_commit(self, keys: Iterable[PartitionKey] | None = None) -> dict[PartitionKey, int]:
        """Where these (all by default) may be read on from, as far as that is news."""
        found = {}
        for key in self._offsets if keys is None else keys:
            offsets = self._offsets.get(key)
            if (
                offsets is not None
                and offsets.position is not None
                and offsets.position != self._committed.get(key)
            ):
                found[key] = self._committed[key] = offsets.position
        return found
