"""Weights set at run time and run times of the fair queues of a node, and sizes of lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.core.fair.run_times import RunTimes
from fairlead.engine.context import NodeContext
from fairlead.model import LaneKey, Trigger

LOOK_AHEADS = 4
"""Triggers of a fair queue in memory, in multiples of the look-ahead; its partitions on this node
share them."""

LEAST = 500
"""Triggers in memory that each partition may have at least, if the budget of the node allows."""


def most_of_lane(look_ahead: int, partitions: int, is_fair: bool = True) -> int:
    """Return how many triggers a lane may have in memory, by the number of partitions of its queue
    on this node."""
    most = LOOK_AHEADS * look_ahead if is_fair else look_ahead
    return max(most // partitions, min(LEAST, look_ahead))


class Sharing:
    """Weights and run times of the fair queues of a node, learnt from its runs."""

    def __init__(self, context: NodeContext) -> None:
        self.weights: dict[str, dict[str, float]] = {queue: {} for queue in context.kinds.fair}
        """Weights set at run time, by queue and fairness key."""
        self.run_times = {queue: RunTimes() for queue in context.kinds.timed}
        """Mean run times of the queues with cost="runtime"."""
        for queue, weights in self.weights.items():
            context.table.weigh(queue, weights)
        for queue, run_times in self.run_times.items():
            context.table.share_run_time(queue, run_times)

    def set_weights(self, queue: str, weights: Mapping[str, float]) -> set[str]:
        """Set weights by fairness key; return the keys whose weights changed."""
        before = self.weights.get(queue)
        if before is None or before == weights:
            return set()
        changed = {
            key for key in before.keys() | weights.keys() if before.get(key) != weights.get(key)
        }
        before.clear()
        before.update(weights)
        return changed

    def ended(self, trigger: Trigger, cost: int) -> None:
        """Learn the time of a run (microseconds); 0 for one that never began."""
        if cost and (run_times := self.run_times.get(trigger.queue)) is not None:
            run_times.ended(trigger.name, trigger.fairness_key, cost)


def by_lane(triggers: Iterable[Trigger]) -> list[tuple[LaneKey, list[Trigger]]]:
    """Group triggers by lane."""
    lanes: dict[LaneKey, list[Trigger]] = {}
    last, batch = LaneKey("", -1, -1), list[Trigger]()
    for trigger in triggers:
        lane = (trigger.queue, trigger.partition, trigger.priority)
        if lane != last:
            last = LaneKey(*lane)
            batch = lanes.setdefault(last, [])
        batch.append(trigger)
    return [*lanes.items()]
