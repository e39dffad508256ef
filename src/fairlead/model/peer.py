"""Messages between nodes that share the work of a queue. Any of them may be lost, doubled or late:
claims decide who runs a task, and each side drops what it has not heard of in time.

    Call    the owner of a partition has tasks that it cannot run now
    Offer   a node would take so many tasks of that owner
    Grant   the owner gives triggers to that node, which claims their tasks
    Report  the node says what became of them
"""

from __future__ import annotations

import msgspec

from fairlead.model.trigger import Trigger


class Call(msgspec.Struct, frozen=True, tag="call", array_like=True, gc=False):
    """The owner of partitions has tasks of these names that it has no slots for."""

    owner: str
    names: list[tuple[str, str]]
    """(queue, task name), the next to run first."""


class Offer(msgspec.Struct, frozen=True, tag="offer", array_like=True, gc=False):
    """A node would take triggers from one owner."""

    owner: str
    node: str
    session: int
    """Number of the series of offers that `total` counts; a higher number ends lower ones."""
    total: int
    """Triggers offered to this owner since the session began, granted ones included."""
    names: list[tuple[str, str, int]]
    """(queue, task name, most triggers of it): the names that have free slots now."""


class Grant(msgspec.Struct, frozen=True, tag="grant", array_like=True, gc=False):
    """The owner gives triggers to a node."""

    node: str
    owner: str
    session: int
    held: float
    """Seconds for which the owner had the offer before it used it."""
    has_more: bool
    """Whether more triggers wait that the owner has no slots for."""
    triggers: list[Trigger]


class Report(msgspec.Struct, frozen=True, tag="report", array_like=True, gc=False):
    """Results of granted triggers."""

    owner: str
    node: str
    claimed: list[str] = []
    """Ids of tasks that the node has claimed, or found claimed."""
    returned: list[str] = []
    """Ids of tasks that the node had no slots for after all."""
    ended: list[tuple[str, int]] = []
    """(id, run time in microseconds, 0 if the run never began) of each ended run that the owner
    must know of: those with an ordering key, and those of queues that share run time."""


PeerMessage = Call | Offer | Grant | Report


def halves(message: PeerMessage) -> list[PeerMessage]:
    """Return the message cut into two; none for one that cannot be cut."""
    replace = msgspec.structs.replace
    if isinstance(message, Grant) and len(message.triggers) > 1:
        middle = len(message.triggers) // 2
        parts = message.triggers[:middle], message.triggers[middle:]
        return [replace(message, triggers=part) for part in parts]
    if isinstance(message, Call | Offer) and len(message.names) > 1:
        return [replace(message, names=message.names[: len(message.names) // 2])]
    if isinstance(message, Report):
        for field in ("claimed", "returned", "ended"):
            if len(entries := getattr(message, field)) > 1:
                middle = len(entries) // 2
                return [
                    replace(message, **{field: entries[:middle]}),
                    Report(message.owner, message.node, **{field: entries[middle:]}),
                ]
    return []
