"""Who speaks for the partitions of a node that fail for one reason, a store that is away: the first
of them, for all."""

from __future__ import annotations

import logging

from fairlead.model import PartitionKey

log = logging.getLogger("fairlead.ordered")


class OutageLog:
    """One per node: its log tells of one trouble once, not once for each partition."""

    def __init__(self) -> None:
        self._failing: dict[PartitionKey, None] = {}
        self._most = 0

    def failed(self, partition: PartitionKey) -> int:
        """The store was away for it. Answers how many fail now, if it is the one to say so; else
        0."""
        self._failing[partition] = None
        self._most = max(self._most, len(self._failing))
        return len(self._failing) if next(iter(self._failing)) == partition else 0

    def over(self, partition: PartitionKey) -> None:
        """The store has answered it."""
        if partition in self._failing:
            self.forget(partition)
            if not self._failing:
                log.info(
                    "the partitions of ordered queues are loaded again",
                    extra={"partitions": self._most},
                )
                self._most = 0

    def forget(self, partition: PartitionKey) -> None:
        """It is not this node's any more."""
        self._failing.pop(partition, None)
