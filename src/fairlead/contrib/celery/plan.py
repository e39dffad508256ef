"""The tasks of one submit, in an order in which each comes after those that it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional, Union

from fairlead.contrib.celery.utils.ids import is_row_id, uuid

if TYPE_CHECKING:
    from fairlead.contrib.celery.canvas import Signature
    from fairlead.contrib.celery.messages import Ids

MANY = 8
"""Tasks from which on one that waits for them is woken at most once a second."""


class Node:
    """One task of a plan."""

    def __init__(self, signature: Signature, before: Before) -> None:
        self.signature = signature
        chosen = signature.id
        self.id = chosen if chosen is not None and is_row_id(chosen) else uuid()
        self.before = before
        self.wakes: list[str] = []
        self.is_partial = False

    @property
    def after(self) -> Ids | None:
        """Ids of the tasks that it waits for; None if it waits for none."""
        return None if self.before is None else ids_of(self.before)


Before = Optional[Union[Node, list["Before"]]]  # noqa: UP007, UP045 - a recursive type
"""The tasks before another one: none, one, or a list as deep as its groups."""


class Plan:
    """Tasks to submit in one transaction."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, signature: Signature, before: Before) -> Node:
        """Add a task after others, and return its node."""
        node = Node(signature, before)
        earlier = list(nodes_of(before))
        for each in earlier:
            each.wakes.append(node.id)
            each.is_partial = each.is_partial or len(earlier) > MANY
        self.nodes.append(node)
        return node


def nodes_of(before: Before) -> Iterator[Node]:
    """Yield the nodes in order."""
    if isinstance(before, Node):
        yield before
    for each in before if isinstance(before, list) else ():
        yield from nodes_of(each)


def ids_of(before: Before) -> Ids:
    """Return the ids of the nodes, as deep as their lists."""
    if isinstance(before, Node):
        return before.id
    return [ids_of(each) for each in before or []]
