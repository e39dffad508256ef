"""Messages between nodes that share the work of a queue.

A lost, doubled or late message does no harm: the claim in the store decides which node runs a task,
and each side drops an offer or a grant that gets no reply in time.

    Call    the owner of a partition announces that it has more tasks than it can run now
    Offer   a node promises to take up to a number of tasks from that owner
    Grant   the owner gives triggers to that node, and the node claims their tasks
    Report  the node reports to the owner which tasks it claimed, returned or ended
"""

from __future__ import annotations

import msgspec

from fairlead.model.fields import Version
from fairlead.model.trigger import Trigger


class Call(msgspec.Struct, frozen=True, tag="call", array_like=True, gc=False):
    """Announcement of a partition owner that it has tasks for which it has no free slots."""

    owner: str
    names: list[tuple[str, str]]
    """(queue, task name) of these tasks, in the order in which they should run."""


class Offer(msgspec.Struct, frozen=True, tag="offer", array_like=True, gc=False):
    """Promise of a node to take triggers from one owner."""

    owner: str
    node: str
    session: int
    """Session of the offers that `total` counts. An offer of a new session, with a higher number,
    voids all offers of earlier sessions."""
    total: int
    """Number of triggers offered to this owner since the session began, including triggers that the
    owner has already granted."""
    names: list[tuple[str, str, int]]
    """(queue, task name, number of free slots) of each name that has free slots now."""


class Grant(msgspec.Struct, frozen=True, tag="grant", array_like=True, gc=False):
    """Triggers that the owner gives to a node."""

    node: str
    owner: str
    session: int
    held: float
    """Seconds between the arrival of the offer at the owner and this grant."""
    has_more: bool
    """Whether the owner has more triggers for which it has no slots."""
    triggers: list[Trigger]


class Report(msgspec.Struct, frozen=True, tag="report", array_like=True, gc=False):
    """Report of a node about the triggers that an owner granted to it."""

    owner: str
    node: str
    claimed: list[str] = []
    """Ids of tasks that the node has claimed, or that were already claimed."""
    returned: list[str] = []
    """Ids of tasks for which the node had no free slot when the grant arrived."""
    ended: list[tuple[str, int]] = []
    """(task id, run time in microseconds or 0 if the run never began) of each ended run of a task
    with an ordering key or of a queue with cost="runtime"."""
    versions: list[Version] = []
    """Versions of the granted triggers of `claimed`, `returned` and `ended`, one after the other,
    so that a late report acts on no newer run."""


PeerMessage = Call | Offer | Grant | Report


def recipient_of(message: PeerMessage) -> str | None:
    """Return the node that a message is for; None if it is for all nodes."""
    if isinstance(message, Call):
        return None
    return message.node if isinstance(message, Grant) else message.owner


def split(message: PeerMessage) -> list[PeerMessage]:
    """Split a message that is too long. Return both halves of a Call, a Grant or a Report.

    Return an Offer with only the first half of its names. Return an empty list for a message that
    cannot be split.
    """
    replace = msgspec.structs.replace
    if isinstance(message, Grant) and len(message.triggers) > 1:
        middle = len(message.triggers) // 2
        parts = message.triggers[:middle], message.triggers[middle:]
        return [replace(message, triggers=part) for part in parts]
    if isinstance(message, Call | Offer) and len(message.names) > 1:
        middle = len(message.names) // 2
        first = replace(message, names=message.names[:middle])
        if isinstance(message, Offer):
            return [first]
        return [first, replace(message, names=message.names[middle:])]
    if isinstance(message, Report):
        fields, before = ("claimed", "returned", "ended"), 0
        for number, field in enumerate(fields):
            if len(entries := getattr(message, field)) > 1:
                middle = len(entries) // 2
                # All claims come before the ends, because the owner drops any other end.
                left: dict[str, list[object]] = {each: [] for each in fields[number:]}
                right: dict[str, list[object]] = {each: [] for each in fields[:number]}
                left[field], right[field] = entries[:middle], entries[middle:]
                cut, versions = before + middle, message.versions
                return [
                    replace(message, **left, versions=versions[:cut]),
                    replace(message, **right, versions=versions[cut:]),
                ]
            before += len(entries)
    return []
