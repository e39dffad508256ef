"""Who takes part in a simulated lane: its tasks, its owners and their calls to the store; and how
they are shown."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.core.fair.backlog import Backlog, Write
from fairlead.model import LOWEST, LaneKey, LaneRecord, Level, PartitionKey, Trigger

LANE = LaneKey("post", 0, 5)
PARTITION = PartitionKey("post", 0)


@dataclass(eq=False)
class Task:
    """One version of a task: a row of the source."""

    trigger: Trigger
    is_committed: bool
    is_late: bool = False
    """It appeared below a place that some owner had read already: only its own announcement, or a
    sweep, finds it."""
    is_to_be_announced: bool = False
    runs: int = 0


@dataclass(eq=False)
class Call:
    """A call to a store, from its beginning until nobody waits for it and it can no longer do
    anything."""

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
    """What an owner has in memory: gone when it crashes."""

    range_id: int
    """Of its levels, it stands above the 40 bits in which it counts."""
    backlog: Backlog
    position: int
    """The source has been read up to here."""
    table: dict[Level, Trigger] = field(default_factory=dict)
    """What may be dispatched, as the backlog's changes told it."""
    to_ack: list[Trigger] = field(default_factory=list)
    intake: list[Trigger] | None = None
    """Read from the source, and being looked up in the store."""
    write: Write | None = None
    placed: Sequence[Trigger] = ()
    """Of the write, those that were given their levels for it."""
    is_write_to_repeat: bool = False
    is_busy: set[str] = field(default_factory=set)
    """Kinds of calls of which it makes one at a time."""
    ack_level: Level = LOWEST
    """A, as it was after the step before."""

    @property
    def has_acked_a_successor(self) -> bool:
        """It has read and dispatched what a later owner placed. Its own levels may then be below A;
        none of them can land, as it was fenced before the other one could write."""
        return self.backlog.ack_level.id >> 40 > self.range_id

    def in_memory(self) -> Iterator[Trigger]:
        """Whatever it has and has not acked."""
        yield from self.table.values()
        yield from self.backlog._taken.values()
        yield from self.write.entries if self.write is not None else ()


def above(rows: Sequence[Trigger], level: Level) -> Sequence[Trigger]:
    """Of rows that ascend, those above the level."""
    return rows[bisect_right(rows, level, key=level_of) :]


def key_of(trigger: Trigger) -> tuple[str, int]:
    return trigger.id, trigger.version


def level_of(trigger: Trigger) -> Level:
    assert trigger.level is not None
    return trigger.level


def shown(value: Any) -> Any:
    """Short: t3 or t3v2 for a task, turn/owner.count for a level."""
    if isinstance(value, Level):
        return f"{value.pass_ / 1e6:g}/{value.id >> 40}.{value.id & (1 << 40) - 1}"
    if isinstance(value, Trigger):
        version = f"v{value.version}" if value.version > 1 else ""
        return f"{value.id}{version}" + (
            f"@{shown(value.level)}" if value.level else f"({value.fairness_key})"
        )
    if isinstance(value, LaneRecord):
        A, R, M = map(shown, (value.ack_level, value.read_level, value.max_level))
        return f"A={A} R={R} M={M} read_seq={value.read_seq}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + " ".join(str(shown(one)) for one in value) + "]"
    return value
