"""Steps of a fair backlog: the reads and writes that it asks its caller to do, and what they change
in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.model import LaneRecord, Level, Trigger


class Changes(NamedTuple):
    """Triggers that came into memory and may be dispatched, and triggers that left memory and are
    only in the store now."""

    added: Sequence[Trigger] = ()
    dropped: Sequence[Trigger] = ()


NO_CHANGES = Changes()


@dataclass(eq=False)
class BacklogWrite:
    """A write of entries and record, both or neither. Repeat it until it is known to have landed,
    or the owner is fenced."""

    entries: list[Trigger]
    record: LaneRecord
    leaving: Sequence[Trigger] = ()
    """Triggers to ack at their old levels once the write has landed; the entries hold them at new
    levels."""


@dataclass(eq=False)
class Read:
    """A read to do: entries stored above a level, ascending, at most `limit`."""

    above: Level
    limit: int


@dataclass(frozen=True)
class Timing:
    """Intervals (seconds) and ack counts at which dispatched entries leave the store.

    After a crash, at most `persist_seconds` times the dispatch rate is dispatched again.
    """

    delete_seconds: float = 15.0
    delete_acks: int = 1000
    persist_seconds: float = 60.0
