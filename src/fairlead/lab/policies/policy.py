"""A policy: everything about a queue that a replay can change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from fairlead.core.limits.limit_tree import LimitTree
from fairlead.core.limits.limits import ConcurrencyPolicy, Limit
from fairlead.lab.policies.samples import original_key

MOST_SLOTS, MOST_PARTITIONS, MOST_NODES = 1_000_000, 1024, 1024

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of each node; by default there is none but the slots. See `fairlead.LimitTree`."""

    total: Count | None = None
    per_key: Count | None = None
    keys: dict[str, Count] = {}
    names: dict[str, Count] = {}

    def new_limits(self, slots: int, keys: Iterable[str]) -> list[ConcurrencyPolicy]:
        """Return new limits for one node; nodes cannot share them, since limits count. `keys`: the
        keys of the arrivals; a copy of a key has the limit of the key."""
        if self.total is None and not self.keys and not self.names:
            return [] if self.per_key is None else [Limit(self.per_key, per="fairness_key")]
        tree = LimitTree(
            slots if self.total is None else self.total,
            names=self.names,
            fairness_keys={
                key: self.keys[original_key(key)] for key in keys if original_key(key) in self.keys
            },
            per_fairness_key=self.per_key,
        )
        return [tree]

    def __str__(self) -> str:
        parts = [
            f"{name} {getattr(self, name)}"
            for name in ("total", "per_key")
            if getattr(self, name) is not None
        ]
        parts += [f"{key}: {n}" for key, n in {**self.names, **self.keys}.items()]
        return ", ".join(parts) or "none"


class CandidatePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One point of the grid. `slots` are those of one node; all nodes together have `nodes` times
    as many."""

    order: Literal["fifo", "fair"] = "fair"
    weights: str | dict[str, float] = "recorded"
    """A rule or a table; see `policies.weighing`."""
    slots: Count = 1
    nodes: Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)] = 1
    partitions: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTITIONS)] = 1
    limits: Limits = Limits()

    @property
    def all_slots(self) -> int:
        """Slots of all nodes."""
        return self.slots * self.nodes

    def plain(self) -> CandidatePolicy:
        """Return the policy without settings that have no effect: fifo ignores weights and, on
        one node, partitions. Equivalent policies become equal, except for rules that give equal
        weights."""
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
