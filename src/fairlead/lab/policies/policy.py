"""A policy: everything about a queue that a replay can change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from fairlead.core.limits.limit_tree import LimitTree
from fairlead.core.limits.limits import ConcurrencyPolicy, Limit
from fairlead.lab.policies.samples import person

MOST_SLOTS, MOST_PARTITIONS, MOST_NODES = 1_000_000, 1024, 1024

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of each node; nothing given: no limit but the slots. See `fairlead.LimitTree`."""

    total: Count | None = None
    per_key: Count | None = None
    keys: dict[str, Count] = {}
    names: dict[str, Count] = {}

    def made(self, slots: int, keys: Iterable[str]) -> list[ConcurrencyPolicy]:
        """Anew for each node, for they count. `keys`: those that there are; a copy of one has its
        limit."""
        if self.total is None and not self.keys and not self.names:
            return [] if self.per_key is None else [Limit(self.per_key, per="fairness_key")]
        tree = LimitTree(
            slots if self.total is None else self.total,
            names=self.names,
            fairness_keys={key: self.keys[person(key)] for key in keys if person(key) in self.keys},
            per_fairness_key=self.per_key,
        )
        return [tree]

    def __str__(self) -> str:
        told = [
            f"{name} {getattr(self, name)}"
            for name in ("total", "per_key")
            if getattr(self, name) is not None
        ]
        told += [f"{key}: {n}" for key, n in {**self.names, **self.keys}.items()]
        return ", ".join(told) or "none"


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One point of the grid. `slots` are those of one node; all nodes together have `nodes` times
    as many."""

    order: Literal["fifo", "fair"] = "fair"
    weights: str | dict[str, float] = "recorded"
    """See `lab.weights` and `policies.weighing`."""
    slots: Count = 1
    nodes: Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)] = 1
    partitions: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTITIONS)] = 1
    limits: Limits = Limits()

    @property
    def all_slots(self) -> int:
        """Of all nodes."""
        return self.slots * self.nodes

    def plain(self) -> Policy:
        """Without what has no effect: fifo knows no weights, and on one node no partitions. Two
        policies that do the same become equal, but for weights that come to the same numbers."""
        if self.order == "fair":
            return self
        partitions = 1 if self.nodes == 1 else self.partitions
        return msgspec.structs.replace(self, weights="equal", partitions=partitions)

    def __str__(self) -> str:
        weights = self.weights if isinstance(self.weights, str) else f"{len(self.weights)} named"
        parts = [self.order, f"{self.slots} slots"]
        parts += [f"{self.nodes} nodes"] if self.nodes > 1 else []
        parts += [f"{self.partitions} partitions"] if self.partitions > 1 else []
        parts += [f"weights {weights}"] if self.order == "fair" else []
        parts += [f"limits {self.limits}"] if self.limits != Limits() else []
        return ", ".join(parts)
