"""Messages between nodes that share the work of a queue.

A lost, doubled or late message does no harm: the claim in the store decides which node runs a task,
and each side drops a want or a grant that gets no reply in time.

    Spare   the owner of a partition has more tasks than it can run now
    Want    a node asks the owner for triggers, and reports what became of those that it got
    Grant   the owner gives triggers to that node, and the node claims their tasks
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.model.fields import Version
from fairlead.model.trigger import Trigger


class Spare(msgspec.Struct, frozen=True, tag="spare", array_like=True, gc=False):
    """Announcement of a partition owner that it has tasks for which it has no free slots."""

    owner: str
    names: list[tuple[str, str]]
    """(queue, task name) of these tasks, in the order in which they should run."""


class Result(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Result of one granted trigger."""

    task_id: str
    version: Version
    """Version of the trigger, so that a late result acts on no newer run."""
    kind: Literal["claimed", "returned", "ended"]
    """Claimed: the node has claimed the task, or found it claimed. Returned: the node had no free
    slot. Ended: the run ended, of a task with an ordering key or of a queue with cost="runtime"."""
    run_us: int = 0
    """Microseconds that an ended run took; 0 if it never began."""


class Want(msgspec.Struct, frozen=True, tag="want", array_like=True, gc=False):
    """Want of a node, which replaces its earlier wants of this owner, with results."""

    owner: str
    node: str
    number: int
    """Number that grows with every want of the node, so that a late want is ignored."""
    count: int
    """Maximum number of triggers to grant; 0 in a message that has only results."""
    names: list[tuple[str, str, int]]
    """(queue, task name, maximum number of its triggers) of each name that the node takes."""
    results: list[Result] = []
    """New results; the claim of a run comes before its end."""


class Grant(msgspec.Struct, frozen=True, tag="grant", array_like=True, gc=False):
    """Triggers that the owner gives to a node, which use up its want."""

    node: str
    owner: str
    triggers: list[Trigger]
    is_last: bool = True
    """False if this is a part of a long grant and others follow."""


PeerMessage = Spare | Want | Grant


def recipient_of(message: PeerMessage) -> str | None:
    """Return the node that a message is for; None if it is for all nodes."""
    if isinstance(message, Spare):
        return None
    return message.node if isinstance(message, Grant) else message.owner


def split(message: PeerMessage) -> list[PeerMessage]:
    """Split a message that is too long into two. Shorten the names of a want that has at most one
    result. Return an empty list for a message that cannot be split."""
    field = "triggers" if isinstance(message, Grant) else "names"
    if isinstance(message, Want) and len(message.results) > 1:
        field = "results"
    entries = getattr(message, field)
    middle = len(entries) // 2
    if not middle:
        return []
    halves = [
        msgspec.structs.replace(message, **{field: half})
        for half in (entries[:middle], entries[middle:])
    ]
    if isinstance(message, Grant):
        halves[0] = msgspec.structs.replace(halves[0], is_last=False)
    # The second half of the names would replace the first one.
    return halves[:1] if isinstance(message, Want) and field == "names" else halves
