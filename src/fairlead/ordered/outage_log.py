"""One log line for the partitions of a node that all fail because a store is away."""

from __future__ import annotations

import logging

from fairlead.model import PartitionKey

log = logging.getLogger("fairlead.ordered")


class OutageLog:
    """Logs an outage once per node, not once per partition: the first partition that fails speaks
    for all."""

    def __init__(self) -> None:
        self._failing: dict[PartitionKey, None] = {}
        self._most = 0

    def failed(self, partition: PartitionKey) -> int:
        """Record that the store was away for a partition. Return how many partitions fail now, if
        this one speaks for them; else 0."""
        self._failing[partition] = None
        self._most = max(self._most, len(self._failing))
        return len(self._failing) if next(iter(self._failing)) == partition else 0

    def over(self, partition: PartitionKey) -> None:
        """Record that the store has answered a partition; log the end of the outage after the last
        one."""
        if partition in self._failing:
            self.drop(partition)
            if not self._failing:
                log.info(
                    "the partitions of ordered queues are loaded again",
                    extra={"partitions": self._most},
                )
                self._most = 0

    def drop(self, partition: PartitionKey) -> None:
        """Drop a partition that is not this node's any more."""
        self._failing.pop(partition, None)
