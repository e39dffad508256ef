"""The plan of a simulated fleet, drawn from its seed: queues, limits, tasks, and the odds of events.

Each fleet has its own odds: an event rare in one is frequent in another.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead import ClusterLimit, Limit, LimitTree, RateLimit
from fairlead.core.limits.cluster_limits import AnyLimit
from fairlead.engine.settings import LOOK_AHEAD
from tests.integration.odd_endings import ASYNC_FAILING, ASYNC_RETURNING, RAISED

QUEUES = ("a", "b", "c")
KEYS = ("x", "y", "z")
OLD = ("work", "flaky", "odd", "joined")
NEW = (*OLD, "added")
DELAYS = (0.0, 0.0, 0.0, 0.0, 1.0, 4.0)
"""Seconds after its submit at which a task is due, to choose from."""
LENGTHS = (0.0, 0.0, 0.1, 2.0)
"""Seconds of the tasks, to choose from."""
ODD = (*RAISED, *ASYNC_FAILING, *ASYNC_RETURNING, "snooze")
EVENTS = {
    "submit": 8.0,
    "start": 1.5,
    "kill": 1.0,
    "stop": 1.0,
    "deploy": 0.5,
    "restart": 0.5,
    "lose": 0.7,
    "hang": 0.5,
    "pause": 0.5,
}
"""Usual odds of each event."""

Scope = tuple[str, ...]
"""Name of a count of runs, such as ("queue", "a") or ("key", "a", "x")."""


def scopes_of(queue: str, name: str, key: str) -> tuple[Scope, Scope, Scope]:
    """Return everything as which a run counts."""
    return ("queue", queue), ("name", queue, name), ("key", queue, key)


@dataclass(frozen=True)
class QueuePlan:
    """One queue."""

    name: str
    order: str
    cost: str
    partitions: int
    kind: str
    """Kind of its limit: none, node, cluster, tree, cluster tree or rate."""
    total: int
    works: int
    per_key: int
    wide_levels: frozenset[str] = frozenset()
    """Levels below the total that a cluster tree has over the whole cluster: "works", "per_key"."""
    wide_works: int | None = None
    """Limit of the task "work" over the whole cluster, besides the limit of its queue."""

    @classmethod
    def draw(cls, name: str, chance: random.Random, wide: random.Random) -> QueuePlan:
        """`wide`: draws what holds over the whole cluster."""
        order = chance.choice(["fair", "fifo"])
        kinds = ["none", "none", "none", "node", "cluster", "tree", "cluster tree", "rate"]
        return cls(
            name,
            order,
            chance.choice(["tasks", "tasks", "runtime"]) if order == "fair" else "tasks",
            chance.choice([1, 1, 2, 3]),
            chance.choice(kinds),
            chance.randint(1, 4),
            chance.randint(1, 2),
            chance.randint(1, 2),
            frozenset(wide.choice([(), ("works",), ("per_key",), ("works", "per_key")])),
            wide.choice([None, None, None, 1, 2]),
        )

    @property
    def needs_permits(self) -> bool:
        """Whether any of its limits needs permits."""
        return self.kind.startswith("cluster") or self.wide_works is not None

    def limit_of_task(self, name: str) -> AnyLimit | None:
        """Return a limit of its task of this name for one application."""
        is_limited = name == "work" and self.wide_works is not None
        return ClusterLimit(self.wide_works or 0) if is_limited else None

    def limit(self) -> AnyLimit | None:
        """Return a limit for one application."""
        if self.kind == "node":
            return Limit(self.total)
        if self.kind == "cluster":
            return ClusterLimit(self.total)
        if self.kind == "rate":
            return RateLimit(self.total, per=0.5)
        if self.kind.endswith("tree"):
            return LimitTree(
                self._level("total", self.total),
                names={f"{self.name}.work": self._level("works", self.works)},
                per_fairness_key=self._level("per_key", self.per_key),
            )
        return None

    def _level(self, level: str, n: int) -> int | ClusterLimit:
        return ClusterLimit(n) if self._is_wide(level) else n

    def _is_wide(self, level: str) -> bool:
        is_wide = level == "total" or level in self.wide_levels
        return self.kind.startswith("cluster") and is_wide

    def limits(self, name: str, key: str) -> list[tuple[Scope, int, bool]]:
        """Return the limits of a task: what it counts, how many, whether in the whole cluster."""
        total, names, keys = scopes_of(self.name, name, key)
        found = []
        if name == "work" and self.wide_works is not None:
            found.append((names, self.wide_works, True))
        if self.kind.endswith(("node", "cluster", "tree")):
            found.append((total, self.total, self._is_wide("total")))
        if self.kind.endswith("tree"):
            found.append((keys, self.per_key, self._is_wide("per_key")))
            if name == "work":
                found.append((names, self.works, self._is_wide("works")))
        return found


@dataclass(frozen=True)
class Plan:
    """A whole fleet."""

    chance: random.Random
    queues: Mapping[str, QueuePlan]
    events: int
    odds: Mapping[str, float]
    pauses: tuple[float, ...]
    """Seconds between two events, to choose from."""
    latency: float
    """Most seconds of one way to the database."""
    most_nodes: int
    look_ahead: int
    """Look-ahead of the nodes."""
    loss: float
    """Share of the notifications and messages that are lost."""
    more_partitions: Mapping[str, int]
    """Partitions that the submitter, and applications of the new version, declare in addition."""
    people: random.Random | None = None
    """Draws what people change; None: they change nothing."""

    @classmethod
    def draw(cls, seed: int, has_people: bool = False) -> Plan:
        """`has_people`: whether people change tasks and weights meanwhile."""
        chance, wide = random.Random(seed), random.Random(f"limits of {seed}")
        names = QUEUES[: chance.randint(1, 3)]
        odds = {
            event: usual * (1.0 if event == "submit" else chance.choice((0.0, 0.3, 1.0, 3.0)))
            for event, usual in EVENTS.items()
        }
        queues = {name: QueuePlan.draw(name, chance, wide) for name in names}
        people = random.Random(f"people of {seed}") if has_people else None
        return cls(
            chance=chance,
            queues=queues,
            events=chance.randint(4, chance.choice((8, 16, 30))),
            odds=odds,
            pauses=chance.choice(((0.0, 0.1, 1.0), (0.0, 0.0, 0.3), (0.1, 1.0, 3.0))),
            latency=chance.choice((0.0, 0.0, 0.003, 0.03)),
            most_nodes=chance.randint(1, 4),
            look_ahead=chance.choice((LOOK_AHEAD, 20, 4)),
            loss=chance.choice((0.0, 0.0, 0.0, 0.1)),
            more_partitions={
                "submitter": chance.choice((0, 0, 1)),
                "new": chance.choice((0, 0, 1)),
            },
            people=people,
        )

    @property
    def has_ordering_keys(self) -> bool:
        """Whether tasks may have ordering keys: those that wait for a retry of their key would fill a
        small look-ahead."""
        return self.look_ahead >= LOOK_AHEAD

    def event(self) -> str:
        """Draw the kind of the next event."""
        return self.chance.choices([*self.odds], [*self.odds.values()])[0]
