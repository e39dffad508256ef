"""One log line for all partitions of a node that fail because a store is unavailable."""

from __future__ import annotations

import logging

from fairlead.model import PartitionKey

log = logging.getLogger("fairlead.ordered")


class OutageLog:
    """Log an outage once per node, not once per partition."""

    def __init__(self) -> None:
        self._failing: dict[PartitionKey, None] = {}
        self._most = 0

    def failed(self, partition: PartitionKey) -> int:
        """Note that the store was unavailable for a partition. Return how many partitions fail now
        if this is the first, else 0."""
        self._failing[partition] = None
        self._most = max(self._most, len(self._failing))
        return len(self._failing) if next(iter(self._failing)) == partition else 0

    def over(self, partition: PartitionKey) -> None:
        """Note that the store responded to a partition; log the end of the outage after the last
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
        """Drop a partition that another node owns now."""
        self._failing.pop(partition, None)
