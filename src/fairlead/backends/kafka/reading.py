"""One partition of the task log that is being read: its position, and the messages that wait."""

from __future__ import annotations

from collections import deque

from fairlead.backends.kafka.endpoint import PartitionId

Taken = list[tuple[int, bytes]]
"""Messages with their offsets."""


class PartitionReading:
    """A partition from the position where its reading began. Guarded by the reader's lock."""

    def __init__(self, partition: PartitionId, position: int, now: float) -> None:
        self.partition = partition
        self.position = position
        """The offset of the message that arrives next."""
        self.done = position
        """The offset below which everything is committed or is no message."""
        self.end = position
        """The offset at which the partition ended when its end was last reached. The end may lie
        above the last message, as after a transaction."""
        self.taken_end: int | None = None
        """The offset after the last message that was taken and is not committed; None if there is
        none."""
        self.waiting: deque[tuple[int, bytes]] = deque()
        """Messages that have arrived and were not taken yet."""
        self.size = 0
        """Bytes of the waiting messages."""
        self.wanted_at = now
        """Time of the last request for messages, in seconds of the monotonic clock."""

    def arrive(self, offset: int, message: bytes) -> None:
        """Add the next message."""
        if offset < self.position:  # the topic was created again, or has lost its end
            self.done = self.end = offset
        self.waiting.append((offset, message))
        self.size += len(message)
        self.position = offset + 1

    def take(self, count: int, most_bytes: int) -> Taken:
        """Return the next messages: at most `count`, with at most `most_bytes` bytes together, but
        at least one."""
        taken: Taken = []
        left = most_bytes
        while self.waiting and len(taken) < count:
            size = len(self.waiting[0][1])
            left -= size
            if taken and left < 0:
                break
            taken.append(self.waiting.popleft())
            self.size -= size
        self.taken_end = taken[-1][0] + 1
        return taken

    def finish(self, through: int) -> bool:
        """Mark everything below this offset as done; return whether `done` has grown."""
        if self.taken_end is None and not self.waiting:
            through = max(through, self.end)
        if through <= self.done:
            return False
        self.done = through
        return True

    def drop_waiting(self) -> None:
        """Drop the messages that were not taken; they arrive again with the next reading."""
        if self.waiting:
            self.position = self.waiting[0][0]
        self.waiting.clear()
        self.size = 0
