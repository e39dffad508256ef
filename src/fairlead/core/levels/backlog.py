"""The fair backlog of one lane: the levels in memory, the levels only in the store, and the ack
level, below which everything is done.

A (ack level): everything at or below it has been dispatched. R (read level): memory holds exactly
the stored entries in (A, R]. M (max level): nothing is stored above it. The backlog does no I/O: it
returns what to read, write and delete, and the caller reports each outcome.

Two rules keep it correct. Nothing is read or written at or below A, and A only moves forward. A is
pinned below every level that was assigned and not yet merged.

Source: the levels A, R and M are those of Temporal's fair task reader
(https://github.com/temporalio/temporal, service/matching/fairness.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from fairlead.core.levels.counters import LAST_PASS
from fairlead.core.levels.levels import Levels
from fairlead.core.levels.passes import Passes
from fairlead.model import LOWEST, LaneRecord, Level, Trigger

MOST_REMEMBERED = 10_000
"""Maximum number of acked levels above A that are remembered, so that a second read does not
dispatch them again. Beyond this number the oldest are dropped, at the cost of a refused claim."""

HEAVIEST_KEPT = 1000
"""Maximum number of keys whose next pass is in the record. If there are more, the next owner learns
the others from the stored entries."""

_ACKS_SHARE = 3
"""A moves once this fraction (one in _ACKS_SHARE) of the triggers in memory has been acked since it
last moved."""


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


class Backlog:
    """The backlog of one lane in the memory of its owner. `capacity`: triggers in memory."""

    def __init__(
        self,
        range_id: int,
        record: LaneRecord,
        passes: Passes,
        capacity: int,
        timing: Timing,
        is_new: bool = False,
    ) -> None:
        """`is_new`: the store has never stored anything of this lane."""
        self.capacity = capacity
        self.ack_level = record.ack_level
        self.read_level = record.ack_level
        self.max_level = record.max_level
        self.is_at_end = is_new
        """Whether nothing is stored above R. A record that says so is not trusted, because an older
        write may have landed after it."""
        self.read_seq = record.read_seq
        """Position in the channel up to which every trigger found has been given a level."""
        self.highest_seq = max(record.read_seq, record.highest_seq)
        """Highest position in the channel of a trigger that has a level."""
        self._passes = passes
        self._timing = timing
        self._levels = Levels(range_id, max(record.virtual_time, record.ack_level.pass_), passes)
        self._loaded: dict[Level, Trigger] = {}
        """Triggers in memory that are not yet taken for dispatch."""
        self._taken: dict[Level, Trigger] = {}
        """Triggers taken for dispatch and not yet acked."""
        self._unstored: dict[Level, Trigger] = {}
        """Loaded or taken triggers that are not yet in the store."""
        self._acked: dict[Level, None] = {}
        """Stored levels above A that were acked, oldest ack first."""
        self._writing: BacklogWrite | None = None
        self._landed: BacklogWrite | None = None
        """Write that landed while a read was under way; merged after the read."""
        self._reading: Read | None = None
        self._acks = 0
        """Acks since the last delete."""
        self._acks_since_advance = 0
        """Acks since A last moved."""
        self._deleted_through = LOWEST  # the previous owner may not have deleted anything
        self._deleted_at: float | None = None
        self._recorded = record
        self._recorded_at: float | None = None
        for key, next_pass in record.next_passes:
            passes.resume(key, next_pass)
        self.unknown_above = (
            record.ack_level
            if self.is_stored and len(record.next_passes) >= HEAVIEST_KEPT
            else None
        )
        """Level above which former owners may have stored entries of keys whose next pass is
        unknown; None if every next pass is known. No trigger gets a level until then."""

    def __len__(self) -> int:
        return len(self._loaded)

    def __contains__(self, trigger: Trigger) -> bool:
        """Return whether the trigger is in memory: loaded, or taken."""
        return trigger.level in self._loaded or trigger.level in self._taken

    def claiming(self, triggers: Iterable[Trigger]) -> list[Trigger]:
        """Return those of the triggers that were taken and whose claim has not ended."""
        taken = self._taken
        return [trigger for trigger in triggers if trigger.level in taken]

    def loaded(self) -> list[Trigger]:
        """Return the triggers that may be dispatched, lowest level first."""
        return [self._loaded[level] for level in sorted(self._loaded)]

    @property
    def virtual_time(self) -> int:
        """Highest pass at which a trigger was taken."""
        return self._levels.virtual_time

    @property
    def is_stored(self) -> bool:
        """Whether entries may be stored above A."""
        return self.max_level > self.ack_level

    @property
    def acks(self) -> int:
        """Number of triggers acked since the last delete."""
        return self._acks

    @property
    def is_writing(self) -> bool:
        """Whether a write was returned whose outcome is not yet known."""
        return self._writing is not None

    def learn(self, keys: Iterable[tuple[str, int, float]], through: Level | None) -> None:
        """Learn next passes from entries above `unknown_above`: (key, last pass, least weight).
        `through`: the last level of these entries, None if there are no others."""
        for key, pass_, weight in keys:
            self._passes.observe(key, weight, pass_, self.virtual_time)
        self.unknown_above = through

    # new triggers ---------------------------------------------------------------------------------

    @property
    def can_add(self) -> bool:
        """Whether new triggers can get their levels now: the next passes of all keys are known, and
        no read could show that the new triggers fit in memory."""
        return self.unknown_above is None and (self.is_at_end or self.is_stored)

    def add(self, triggers: Sequence[Trigger]) -> BacklogWrite | Changes:
        """Give new triggers their levels. If all triggers fit in memory and none is stored, keep
        the new ones in memory only. Otherwise return a write of them and of all other triggers that
        are not in the store yet. Not allowed while a write is under way, or before the next passes
        of all keys are known."""
        assert self._writing is None and self.unknown_above is None
        levelled = [self._level(trigger) for trigger in triggers]
        fits = len(self._loaded) + len(levelled) <= self.capacity
        if fits and self.is_at_end and not self.is_stored and self._reading is None:
            self._load(levelled)
            self._unstored.update(zip(map(_level, levelled), levelled, strict=True))
            levelled.sort(key=_level)
            return Changes(added=levelled)
        return self._write(levelled, [])

    def evict(self, kept: Sequence[Trigger], evicted: Sequence[Trigger]) -> BacklogWrite:
        """Give new levels to triggers in memory that a limit holds back. `kept` start again at the
        virtual time, so that they no longer pin A; `evicted` get levels after all others of their
        keys, so that they make room in memory for triggers that may run. Treat all of them as newly
        arrived, as start-time fair queueing treats a flow that could not be served. Not allowed
        while a write is under way."""
        assert self._writing is None
        self.is_at_end = False  # only the store keeps the evicted ones
        for level in map(_level, [*kept, *evicted]):
            self._taken[level] = self._loaded.pop(level)
        return self._write(
            [*self._levels.assign_again(kept, self.ack_level), *map(self._level, evicted)],
            [*kept, *evicted],
        )

    # writing --------------------------------------------------------------------------------------

    def _write(self, levelled: Sequence[Trigger], leaving: Sequence[Trigger]) -> BacklogWrite:
        left_levels = {*map(_level, leaving)}
        write = BacklogWrite(
            [*(t for level, t in self._unstored.items() if level not in left_levels), *levelled],
            LaneRecord(),
            leaving,
        )
        write.entries.sort(key=_level)
        self.max_level = max(self.max_level, _level(write.entries[-1]))
        self._writing = write
        self._pin = min(map(_level, levelled or write.entries))
        write.record = self.record(are_all_stored=True)
        return write

    def written(self, write: BacklogWrite) -> Changes:
        """Record that the write has landed."""
        assert write is self._writing
        if self._reading is not None:
            self._landed = write
            return NO_CHANGES
        return self._merge(write)

    def write_failed(self) -> None:
        """Record that the write failed or timed out, and must be repeated: such a write may have
        landed, or may land later."""
        self.is_at_end = False

    def _merge(self, write: BacklogWrite) -> Changes:
        self._writing = self._landed = None
        new = [
            trigger
            for trigger in write.entries
            if self._unstored.pop(_level(trigger), None) is None
            and self._is_new_level(_level(trigger))
        ]
        if not self.is_at_end:
            new = [trigger for trigger in new if _level(trigger) <= self.read_level]
        self._load(new)
        self.ack(write.leaving)
        changes = _changes(new, self._trim())
        self._advance()
        return changes

    def shrink(self) -> BacklogWrite | Changes:
        """Drop triggers that no longer fit in memory. If any trigger is not in the store yet,
        return a write of these first. Not allowed while a write or a read is under way."""
        assert self._writing is None and self._reading is None
        if not self._is_too_full:
            return NO_CHANGES
        return self._write([], []) if self._unstored else Changes(dropped=self._trim())

    @property
    def _is_too_full(self) -> bool:
        return len(self._loaded) > self.capacity + self.capacity // 4

    def _trim(self) -> list[Trigger]:
        """Drop all but the first `capacity` loaded triggers once there are a quarter more; the
        store has the rest."""
        if not self._is_too_full:
            return []
        levels = sorted(self._loaded)
        dropped = [
            trigger
            for level in levels[self.capacity :]
            if (trigger := self._unload(level)) is not None
        ]
        self.read_level = levels[self.capacity - 1]
        self.is_at_end = False
        # A dict keeps its size when entries leave it.
        self._loaded, self._unstored = dict(self._loaded), dict(self._unstored)
        return dropped

    # reading --------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether the next read may begin: the store may have more entries, none is read, and
        memory is half empty."""
        if self._reading is not None or self._landed is not None or self.is_at_end:
            return False
        return len(self._loaded) <= self.capacity // 2

    def next_read(self, most: int | None = None) -> Read | None:
        """Return the read to do now, of at most `most` entries, if memory has room and the store
        may have more."""
        if not self.has_room:
            return None
        room = self.capacity - len(self._loaded)
        self._reading = Read(self.read_level, room if most is None else min(room, most))
        return self._reading

    def read(self, entries: Sequence[Trigger]) -> Changes:
        """Record the entries that the read returned."""
        reading, self._reading = self._reading, None
        assert reading is not None
        self.is_at_end = len(entries) < reading.limit
        new = [trigger for trigger in entries if self._is_new_level(_level(trigger))]
        self._load(new)
        for trigger in new:
            self._levels.observe(trigger)
        if entries:
            self.read_level = max(self.read_level, _level(entries[-1]))
            self.max_level = max(self.max_level, self.read_level)
        self._advance()
        if self._landed is None:
            return Changes(added=new)
        added, dropped = self._merge(self._landed)
        return _changes([*new, *added], dropped)

    def read_failed(self) -> Changes:
        """Record that the read failed."""
        self._reading = None
        return NO_CHANGES if self._landed is None else self._merge(self._landed)

    def _is_new_level(self, level: Level) -> bool:
        return (
            level > self.ack_level
            and level not in self._loaded
            and level not in self._taken
            and level not in self._acked
        )

    # dispatch -------------------------------------------------------------------------------------

    def take(self, triggers: Collection[Trigger]) -> None:
        """Take triggers for dispatch, to be claimed."""
        loaded, taken = self._loaded, self._taken
        for trigger in triggers:
            level = _level(trigger)
            taken[level] = loaded.pop(level)
        self._levels.took(triggers)

    def take_back(self, triggers: Iterable[Trigger]) -> None:
        """Make taken triggers dispatchable again, because the outcome of their claim is unknown."""
        for trigger in triggers:
            level = _level(trigger)
            self._loaded[level] = self._taken.pop(level)

    def ack(self, triggers: Iterable[Trigger]) -> None:
        """Record that triggers are done: this node claimed them, or their claim was refused. Those
        not in memory are ignored."""
        loaded, taken, unstored, acked = self._loaded, self._taken, self._unstored, self._acked
        is_writing = self._writing is not None
        left = []
        for level in map(_level, triggers):
            trigger = taken.pop(level, None) or loaded.pop(level, None)
            if trigger is None:
                continue
            left.append(trigger)
            if unstored.pop(level, None) is None or is_writing:
                acked[level] = None
        self._levels.left(left)
        count = len(left)
        self._acks += count
        self._acks_since_advance += count
        # Together, because each search for the first entry of a dict passes over deleted ones.
        for level in [*islice(acked, max(0, len(acked) - MOST_REMEMBERED))]:
            del acked[level]
        # A may lag: moving it scans everything unacked, so do it once for many acks.
        if self._acks_since_advance * _ACKS_SHARE >= len(self._loaded) + len(self._taken):
            self._advance()

    def _advance(self) -> None:
        self._acks_since_advance = 0
        unacked = [min(levels) for levels in (self._loaded, self._taken) if levels]
        bound = self.read_level
        if self.virtual_time < LAST_PASS:
            # A must not reach the virtual time: a key that arrives now starts just before it, and
            # its level must be above A.
            bound = min(bound, Level(max(0, self.virtual_time - 1), 0))
        if unacked:
            bound = min(bound, _before(min(unacked)))
        if self._writing is not None:
            bound = min(bound, _before(self._pin))
        if bound > self.ack_level:
            self.ack_level = bound
            if self._acked:
                self._acked = {level: None for level in self._acked if level > bound}
        if not unacked and self.is_at_end and self._writing is None and self._reading is None:
            # Everything has been dispatched, so nothing stored is needed. A stays below the virtual
            # time if nothing is stored there: keys that come while the lane reads start before it.
            self.read_level = max(self.read_level, self.max_level)
            self.ack_level = max(self.ack_level, self.max_level)
            self._acked.clear()

    # deletes and records --------------------------------------------------------------------------

    def next_delete(self, now: float) -> Level | None:
        """Return the level at or below which to delete entries now, or None if it is too early.
        `now`: monotonic seconds."""
        if self._deleted_at is None:
            self._deleted_at = now
        if self.ack_level <= self._deleted_through or self.max_level <= self._deleted_through:
            return None
        is_worth_it = self._acks >= self._timing.delete_acks or not self.is_stored
        if not is_worth_it and now < self._deleted_at + self._timing.delete_seconds:
            return None
        return self.ack_level

    def deleted(self, through: Level, now: float) -> None:
        """Record that the entries through this level were deleted."""
        self._deleted_through, self._deleted_at, self._acks = through, now, 0

    def next_record(self, now: float) -> LaneRecord | None:
        """Return the record to save now, or None if it is too early. Never returns one while a
        write is under way, whose triggers the record would skip. `now`: monotonic seconds."""
        if self._writing is not None:
            return None
        if self._recorded_at is None:
            self._recorded_at = now
        kept = self._recorded
        has_moved = self.ack_level != kept.ack_level or self.read_level != kept.read_level
        if not has_moved or now < self._recorded_at + self._timing.persist_seconds:
            return None
        return self.record()

    def recorded(self, record: LaneRecord, now: float) -> None:
        """Record that the lane's record was saved."""
        self._recorded, self._recorded_at = record, now

    def record(self, are_all_stored: bool = False) -> LaneRecord:
        """Return the record for the next owner."""
        unstored = {} if are_all_stored else self._unstored
        first = min([trigger.seq for trigger in unstored.values()], default=None)
        passes: dict[str, int] = {}
        for level, trigger in unstored.items():
            key, pass_ = trigger.fairness_key, level[0]
            if passes.setdefault(key, pass_) > pass_:
                passes[key] = pass_
        return LaneRecord(
            ack_level=self.ack_level,
            read_level=self.read_level,
            max_level=self.max_level,
            virtual_time=self.virtual_time,
            read_seq=self.read_seq if first is None else min(self.read_seq, first - 1),
            highest_seq=self.highest_seq,
            buffered=len(self._loaded) + len(self._taken),
            next_passes=self._passes.heaviest(HEAVIEST_KEPT, passes.items()),
        )

    # levels ---------------------------------------------------------------------------------------

    def _level(self, trigger: Trigger) -> Trigger:
        self.highest_seq = max(self.highest_seq, trigger.seq)
        self.read_seq = max(self.read_seq, trigger.seq)
        return self._levels.assign(trigger, self.ack_level)

    def _load(self, triggers: Sequence[Trigger]) -> None:
        levels = [*map(_level, triggers)]
        self._loaded.update(zip(levels, triggers, strict=True))
        self._levels.came(triggers, self._loaded, self._taken.values())
        if self.is_at_end and levels:
            self.read_level = max(self.read_level, *levels)

    def _unload(self, level: Level) -> Trigger | None:
        trigger = self._taken.pop(level, None) or self._loaded.pop(level, None)
        if trigger is not None:
            self._levels.left([trigger])
        return trigger


def _changes(added: Sequence[Trigger], dropped: Sequence[Trigger]) -> Changes:
    """Return the changes without triggers that were added and dropped at once."""
    if not dropped:
        return Changes(added)
    came, left = {trigger.level for trigger in added}, {trigger.level for trigger in dropped}
    return Changes(
        [t for t in added if t.level not in left], [t for t in dropped if t.level not in came]
    )


_level: Callable[[Trigger], Level] = attrgetter("level")


def _before(level: Level) -> Level:
    return Level(level.pass_, level.id - 1)
