"""The order in which the tasks of one submit are stored: about the order in which a fair lane
dispatches them.

A database writes the rows of tasks that end together in one page or in many, depending on how far
apart they are stored. Start-time fair queueing over the submit alone (Goyal, Vin and Cheng 1996)
puts them side by side, and shows each fairness key to its lane early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fairlead.model import tenant_of


class Keyed(Protocol):
    """The keys that the place of a task depends on."""

    @property
    def fairness_key(self) -> str:
        """Key that shares; it may be a path."""

    @property
    def weight(self) -> float:
        """Weight of the key."""

    @property
    def ordering_key(self) -> str | None:
        """Key whose tasks run in their order."""

    @property
    def unique_key(self) -> str | None:
        """Key of which one task waits at a time."""


def stored_order(tasks: Sequence[Keyed]) -> list[int] | None:
    """Return the positions of the tasks in the order to store them: one task of each tenant in
    turn, and of each key inside a tenant, by weight; None if all have one key. Tasks of one
    fairness key, one ordering key or one unique key stay in their order."""
    tenants = {key: tenant_of(key) for key in {task.fairness_key for task in tasks}}
    if len(tenants) < 2:
        return None
    order = _in_turn(range(len(tasks)), tasks, {key: key for key in tenants})
    if any(tenant != key for key, tenant in tenants.items()):
        order = _in_turn(order, tasks, tenants)
    return order


def _in_turn(order: Sequence[int], tasks: Sequence[Keyed], groups: Mapping[str, str]) -> list[int]:
    """Return the order with one task of each group in turn. The order inside a group stays.
    `groups`: the group of each fairness key."""
    ranks = [0.0] * len(tasks)
    last: dict[str, float] = {}
    chains: dict[tuple[bool, str], float] = {}
    for position in order:
        task = tasks[position]
        group = groups[task.fairness_key]
        rank = last.get(group, 0.0)
        if task.ordering_key is not None or task.unique_key is not None:
            links = [(False, task.ordering_key), (True, task.unique_key)]
            found = [(kind, key) for kind, key in links if key is not None]
            rank = max(rank, *(chains.get(link, 0.0) for link in found))
            chains.update(dict.fromkeys(found, rank))
        ranks[position] = rank
        last[group] = rank + (1 / task.weight if group == task.fairness_key else 1.0)
    return sorted(order, key=ranks.__getitem__)
