"""The parts of a simulated lane (tasks, owners, and their calls to the store), and their short forms
in messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fairlead.core.levels.backlog import Backlog
from fairlead.model import LOWEST, LaneKey, LaneRecord, Level, PartitionKey, Trigger

LANE = LaneKey("post", 0, 5)
PARTITION = PartitionKey("post", 0)
CLAIM = "claim"
"""Kind of the calls that claim tasks."""


@dataclass(eq=False)
class Task:
    """One version of a task: a row of the source."""

    trigger: Trigger
    is_committed: bool
    is_late: bool = False
    """Whether the row appeared below the position of a reader, so that only its announcement or a sweep
    finds it."""
    is_to_be_announced: bool = False
    runs: int = 0


@dataclass(eq=False)
class Call:
    """A call to a store, from its request until no owner waits for it and it cannot take effect."""

    owner: Owner
    what: str
    act: Callable[[], Any]
    answered: Callable[[Any], None]
    failed: Callable[[], None]
    may_be_late: bool = True
    has_landed: bool = False
    answer: Any = None
    is_fenced: bool = False


@dataclass(eq=False)
class Owner:
    """State in the memory of an owner, lost in a crash."""

    range_id: int
    """Range id: the part of the owner's level ids above the low 40 bits."""
    backlog: Backlog
    position: int
    """Position up to which the source has been read."""
    table: dict[Level, Trigger] = field(default_factory=dict)
    """Triggers that may be dispatched, according to the backlog's changes."""
    to_ack: list[Trigger] = field(default_factory=list)
    intake: list[Trigger] | None = None
    """Triggers read from the source, while the store is asked which of them have a level."""
    placed: Sequence[Trigger] = ()
    """Triggers that got their levels for the current write."""
    is_calling: bool = False
    """Whether a call to the store is under way. Claims go on meanwhile."""
    ack_level: Level = LOWEST
    """Ack level (A) after the previous step."""

    @property
    def has_acked_a_successor(self) -> bool:
        """Whether the owner has dispatched a task that a later owner levelled. Its own levels may
        then be below A. None of them can take effect, because the later owner fenced it first."""
        return self.backlog.ack_level.id >> 40 > self.range_id

    def in_memory(self) -> Iterator[Trigger]:
        """Yield all triggers that the owner has and has not acked."""
        yield from self.table.values()
        yield from self.backlog._memory.taken.values()
        yield from self.backlog.write.entries if self.backlog.write is not None else ()


def above(rows: Sequence[Trigger], level: Level) -> Sequence[Trigger]:
    """Return the rows above the level, from rows in ascending order."""
    return rows[bisect_right(rows, level, key=level_of) :]


def key_of(trigger: Trigger) -> tuple[str, int]:
    return trigger.id, trigger.version


def level_of(trigger: Trigger) -> Level:
    assert trigger.level is not None
    return trigger.level


def shown(value: Any) -> Any:
    """Return the short form: t3 or t3v2 for a task, pass/owner.count for a level."""
    if isinstance(value, Level):
        return f"{value.pass_ / 1e6:g}/{value.id >> 40}.{value.id & (1 << 40) - 1}"
    if isinstance(value, Trigger):
        version = f"v{value.version}" if value.version > 1 else ""
        return f"t{UUID(value.id).int}{version}" + (
            f"@{shown(value.level)}" if value.level else f"({value.fairness_key})"
        )
    if isinstance(value, LaneRecord):
        A, R, M = map(shown, (value.ack_level, value.read_level, value.max_level))
        return f"A={A} R={R} M={M} read_seq={value.read_seq}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + " ".join(str(shown(one)) for one in value) + "]"
    return value
