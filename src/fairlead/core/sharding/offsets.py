"""Offsets of a log: how far they may be committed when messages are completed out of order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from fairlead.model import PartitionKey, Trigger


class Offsets:
    """Offsets of one partition, read in order. `len()`: offsets read and not yet released."""

    def __init__(self) -> None:
        self._held: deque[int] = deque()
        self._done: set[int] = set()
        self.position: int | None = None
        """Offset below which everything is done, so that reading may begin here next time; None if
        nothing was read."""

    def __len__(self) -> int:
        return len(self._held)

    def read(self, offset: int) -> None:
        """Record that an offset was read, in ascending order; logs may have gaps. An offset at or
        below the last one is a repetition and adds nothing."""
        if self._held and offset <= self._held[-1]:
            return
        if not self._held and self.position is not None and offset < self.position:
            return
        if not self._held:
            self.position = offset
        self._held.append(offset)

    def done(self, offset: int) -> None:
        """Record that an offset is done. An unknown or released offset changes nothing."""
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
    """Progress in the partitions of a log: messages read, triggers held, and offsets to commit."""

    def __init__(self) -> None:
        self._offsets: dict[PartitionKey, Offsets] = {}
        self._committed: dict[PartitionKey, int] = {}
        self._held: dict[str, tuple[PartitionKey, int, float]] = {}
        """Partition, offset and arrival (monotonic seconds) of each held trigger's message, by
        task, in the order of arrival."""

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._offsets

    def begin(self, keys: Iterable[PartitionKey]) -> None:
        """Start reading partitions."""
        for key in keys:
            self._offsets[key] = Offsets()

    def end(self, keys: Collection[PartitionKey]) -> None:
        """Stop reading partitions."""
        for key in keys:
            self._offsets.pop(key, None)
            self._committed.pop(key, None)
        ended = set(keys)
        self._held = {
            task_id: message for task_id, message in self._held.items() if message[0] not in ended
        }

    def read(self, key: PartitionKey, offset: int) -> None:
        """Record that a message of a partition was read."""
        self._offsets[key].read(offset)

    def done(self, key: PartitionKey, offset: int) -> None:
        """Record that a message is no longer needed."""
        if (offsets := self._offsets.get(key)) is not None:
            offsets.done(offset)

    def hold(self, task_id: str, key: PartitionKey, offset: int, now: float) -> None:
        """Hold a message until its trigger is settled."""
        self._held[task_id] = (key, offset, now)

    def holds(self, task_id: str) -> bool:
        """Return whether a message with the task's trigger is held."""
        return task_id in self._held

    def settled(self, triggers: Iterable[Trigger]) -> None:
        """Complete the messages of triggers that are no longer needed."""
        for trigger in triggers:
            if (message := self._held.pop(trigger.id, None)) is not None:
                self.done(message[0], message[1])

    def release_before(self, before: float) -> None:
        """Complete messages held since `before` (monotonic seconds) or longer; their triggers are
        read from the rows instead."""
        while self._held:
            task_id, (key, offset, since) = next(iter(self._held.items()))
            if since > before:
                break
            del self._held[task_id]
            self.done(key, offset)

    def to_commit(self, keys: Iterable[PartitionKey] | None = None) -> dict[PartitionKey, int]:
        """Return the offsets to commit, by partition (all by default), as far as they are new."""
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
