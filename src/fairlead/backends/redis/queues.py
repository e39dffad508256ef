"""The queues of tasks in a Redis, lane by lane."""

from __future__ import annotations

from fairlead.backends.redis.registry import RedisSteps
from fairlead.backends.redis.sharded.claims import PriorityLane
from fairlead.backends.redis.sharded.endpoint import RedisEndpoint
from fairlead.backends.redis.sharded.lanes import Lanes
from fairlead.backends.redis.sharded.steps import QueueSteps


class Queues:
    """The queues of one application, with the steps of each made once. Usable from any thread."""

    def __init__(self, endpoint: RedisEndpoint, max_deliveries: int) -> None:
        """`max_deliveries`: deliveries after which a task is a dead letter."""
        self._endpoint = endpoint
        self._max_deliveries = max_deliveries
        self._lanes: dict[str, Lanes] = {}

    def at(self, lane: PriorityLane) -> QueueSteps:
        """Return the steps of one lane."""
        return self._of(lane.queue).at(lane.priority)

    def written(self, queue: str) -> RedisSteps[list[PriorityLane]]:
        """Return the lanes of a queue that were ever written to, the best priority first."""
        return [PriorityLane(queue, priority) for priority in (yield from self._of(queue).known())]

    def _of(self, queue: str) -> Lanes:
        found = self._lanes.get(queue)
        if found is None:
            found = self._lanes[queue] = self._endpoint.lanes(queue, self._max_deliveries)
        return found
