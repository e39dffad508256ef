"""Wants: how many triggers each node takes from one owner. No I/O and no clock.

One grant uses up a want, and a want replaces the one before. So lost, doubled and late wants do no
harm, and the owner grants no more than a node takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.model.peer import Want

WANT_SECONDS = 1.5
"""Seconds for which a want is used."""

TaskName = tuple[str, str]
"""(queue, task name)"""


@dataclass(slots=True)
class _Node:
    """Last want of one node."""

    number: int
    at: float
    """Monotonic seconds at which it came."""
    left: int
    """Triggers that the node takes; 0 once the want is used."""
    names: dict[TaskName, int]
    """Triggers that the node takes of each name."""

    def takes(self, name: TaskName) -> int:
        return min(self.left, self.names.get(name, 0))


class Wants:
    """The wants of all nodes from one owner. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def on_want(self, want: Want, now: float) -> bool:
        """Record a want; return whether it is a new one."""
        known = self._nodes.get(want.node)
        if not want.count or (known is not None and want.number <= known.number):
            return False
        names = {(queue, name): count for queue, name, count in want.names}
        self._nodes[want.node] = _Node(want.number, now, want.count, names)
        return True

    def expire(self, now: float) -> None:
        """Drop wants that are too old to be used."""
        for name in [n for n, node in self._nodes.items() if now - node.at >= WANT_SECONDS]:
            del self._nodes[name]

    @property
    def are_met(self) -> bool:
        """Whether no node takes any more triggers."""
        return not any(node.left for node in self._nodes.values())

    def choose(self, name: TaskName) -> str | None:
        """Count one trigger of this name for the node that takes most of them. Return the node, or
        None if none takes any."""
        best = max(self._nodes, key=lambda each: self._nodes[each].takes(name), default=None)
        if best is None or not (node := self._nodes[best]).takes(name):
            return None
        node.names[name] -= 1
        node.left -= 1
        return best

    def used(self, node: str) -> None:
        """Choose the node no more until its next want: a grant was sent."""
        self._nodes[node].left = 0
