"""Credits: the offers of other nodes to run tasks, as the owner of the partitions knows them. No
I/O and no clock.

Credit-based flow control: an offer carries a running total, so lost, doubled and overtaken offers
do no harm, and the owner never grants more than the node has promised to take.

Source: Kung, Blackwell and Chapman 1994, "Credit-based flow control for ATM networks".
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.model.peer import Offer

CREDIT_SECONDS = 1.5
"""Seconds after which the owner no longer uses an offer. The offering node keeps its promise for
longer (`fairlead.core.grants.promises.PROMISE_SECONDS`)."""


@dataclass(slots=True)
class _Credit:
    """Last offer of one node; `session` and `total` as in `Offer`."""

    session: int
    total: int
    at: float
    """Monotonic seconds at which the last offer came."""
    rooms: dict[tuple[str, str], int]
    """Free slots left, by (queue, task name)."""
    used: int = 0
    """Triggers granted in this session."""


class Credits:
    """The offers of all nodes to one owner. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Credit] = {}

    def offered(self, offer: Offer, now: float) -> None:
        """Record an offer."""
        rooms = {(queue, name): room for queue, name, room in offer.names}
        known = self._nodes.get(offer.node)
        if known is None or offer.session > known.session:
            self._nodes[offer.node] = _Credit(offer.session, offer.total, now, rooms)
        elif offer.session == known.session and offer.total >= known.total:
            known.total, known.at, known.rooms = offer.total, now, rooms

    def expire(self, now: float) -> None:
        """Drop offers that are too old to be used."""
        for node in [n for n, c in self._nodes.items() if now - c.at >= CREDIT_SECONDS]:
            del self._nodes[node]

    def covers(self, queue: str, name: str) -> bool:
        """Return whether some node would take a task of this name."""
        return any(_left(credit, (queue, name)) > 0 for credit in self._nodes.values())

    def spend(self, queue: str, name: str) -> str | None:
        """Use the offer of the node with the most free slots for one task of this name. Return the
        node, or None if no offer is left."""
        task = (queue, name)
        node = max(self._nodes, key=lambda each: _left(self._nodes[each], task), default=None)
        if node is None or _left(self._nodes[node], task) <= 0:
            return None
        credit = self._nodes[node]
        credit.used += 1
        credit.rooms[task] -= 1
        return node

    def session(self, node: str, now: float) -> tuple[int, float]:
        """Return the session of a node's last offer, and the seconds since that offer came."""
        credit = self._nodes[node]
        return credit.session, now - credit.at

    @property
    def are_spent(self) -> bool:
        """Whether no offer has anything left."""
        return all(credit.used >= credit.total for credit in self._nodes.values())


def _left(credit: _Credit, task: tuple[str, str]) -> int:
    return min(credit.total - credit.used, credit.rooms.get(task, 0))
