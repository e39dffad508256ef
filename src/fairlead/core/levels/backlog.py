"""The fair backlog of one lane: the levels in memory, the levels only in the store, and the ack
level, below which everything is done.

A (ack level): everything at or below it has been dispatched. R (read level): memory holds exactly
the stored entries in (A, R]. M (max level): nothing is stored above it. The backlog does no I/O: it
returns what to read, write and delete, and the caller reports each outcome. The caller does one
thing at a time; only acks come in between.

Two rules keep it correct. Nothing is read or written at or below A, and A only moves forward. A is
pinned below every level that was assigned and not yet merged.

Source: the levels A, R and M are those of Temporal's fair task reader
(https://github.com/temporalio/temporal, service/matching/fairness.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

from fairlead.core.levels.levels import Levels
from fairlead.model import LOWEST, LaneRecord, Level, Trigger

MOST_REMEMBERED = 10_000
"""Maximum number of acked levels above A that are remembered, so that a second read does not
dispatch them again. Beyond this number the oldest are dropped, at the cost of a refused claim."""

HEAVIEST_KEPT = 1000
"""Maximum number of tenants whose next pass is in the record. If there are more, the next owner
learns the others from the stored entries."""

_ACKS_SHARE = 3
"""A moves once this fraction (one in _ACKS_SHARE) of the triggers in memory has been acked since it
last moved."""

_FIRST_SHARE = 4
"""The virtual time is the highest pass taken, but at most this fraction (one in _FIRST_SHARE) of
the triggers in memory lies below it: ranks, not levels, decide which of them is taken."""


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
    pin: Level
    """Lowest level that was given for this write, or else written by it: A stays below."""
    leaving: Sequence[Trigger] = ()
    """Triggers to ack at their old levels once the write has landed; the entries hold them at new
    levels."""


class Read(NamedTuple):
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


class _Memory:
    """Triggers of a lane in memory, by level."""

    def __init__(self) -> None:
        self.loaded: dict[Level, Trigger] = {}
        """Triggers that are not yet taken for dispatch."""
        self.taken: dict[Level, Trigger] = {}
        """Triggers taken for dispatch and not yet acked."""
        self.unstored: dict[Level, Trigger] = {}
        """Loaded or taken triggers that are not yet in the store."""
        self.acked: dict[Level, None] = {}
        """Stored levels above A that were acked, oldest ack first."""
        self.acks = 0
        """Acks since A last moved."""
        self.furthest = 0
        """Highest pass taken."""

    def __contains__(self, level: Level | None) -> bool:
        """Return whether a trigger of this level is loaded or taken."""
        return level in self.loaded or level in self.taken

    def __len__(self) -> int:
        """Return the number of loaded and taken triggers."""
        return len(self.loaded) + len(self.taken)

    def take(self, level: Level) -> None:
        """Take a loaded trigger."""
        self.taken[level] = self.loaded.pop(level)

    def ack(self, triggers: Iterable[Trigger], is_writing: bool) -> int:
        """Drop those of the triggers that are here; return their number. `is_writing`: the store
        may have those that are not known to be stored."""
        acks, acked = self.acks, self.acked
        for level in map(_level, triggers):
            if self.taken.pop(level, None) is None and self.loaded.pop(level, None) is None:
                continue
            self.acks += 1
            if self.unstored.pop(level, None) is None or is_writing:
                acked[level] = None
        # Together, because each search for the first entry of a dict passes over deleted ones.
        for level in [*islice(acked, max(0, len(acked) - MOST_REMEMBERED))]:
            del acked[level]
        return self.acks - acks

    def keep(self, levels: Sequence[Level]) -> None:
        """Drop all loaded triggers but those of these levels."""
        # A dict keeps its size when entries leave it.
        self.loaded = {level: self.loaded[level] for level in levels}
        self.unstored = dict(self.unstored)


class _Upkeep:
    """Times at which dispatched entries leave the store, and at which the record is saved."""

    def __init__(self, timing: Timing, record: LaneRecord) -> None:
        self.acks = 0
        """Number of triggers acked since the last delete."""
        self._timing = timing
        self._deleted_through = LOWEST  # the previous owner may not have deleted anything
        self._deleted_at: float | None = None
        self._recorded = record
        self._recorded_at: float | None = None

    def is_delete_due(self, ack_level: Level, max_level: Level, now: float) -> bool:
        """Return whether to delete what is stored at or below A now."""
        if self._deleted_at is None:
            self._deleted_at = now
        if min(ack_level, max_level) <= self._deleted_through:
            return False
        is_worth_it = self.acks >= self._timing.delete_acks or max_level <= ack_level
        return is_worth_it or now >= self._deleted_at + self._timing.delete_seconds

    def deleted(self, through: Level, now: float) -> None:
        """Record that the entries through this level were deleted."""
        self._deleted_through, self._deleted_at, self.acks = through, now, 0

    def is_record_due(self, ack_level: Level, read_level: Level, now: float) -> bool:
        """Return whether to save these levels now."""
        if self._recorded_at is None:
            self._recorded_at = now
        kept = self._recorded
        has_moved = ack_level != kept.ack_level or read_level != kept.read_level
        return has_moved and now >= self._recorded_at + self._timing.persist_seconds

    def recorded(self, record: LaneRecord, now: float) -> None:
        """Record that the lane's record was saved."""
        self._recorded, self._recorded_at = record, now


class Backlog:
    """The backlog of one lane in the memory of its owner. `capacity`: triggers in memory."""

    def __init__(
        self,
        range_id: int,
        record: LaneRecord,
        capacity: int,
        timing: Timing,
        weights: Mapping[str, float] | None = None,
        is_new: bool = False,
    ) -> None:
        """`weights`: set at run time, by key. `is_new`: the store has never stored anything of this
        lane."""
        self.capacity = capacity
        self.ack_level = record.ack_level
        self.read_level = record.ack_level
        self.max_level = record.max_level
        self.is_at_end = is_new
        """Whether nothing is stored above R. A record that says so is not trusted, because an older
        write may have landed after it."""
        self.read_seq = record.read_seq
        """Position in the channel up to which every trigger found has been given a level."""
        self.write: BacklogWrite | None = None
        """Write to do before anything else."""
        self.upkeep = _Upkeep(timing, record)
        """Times of deletes and of saved records."""
        self._levels = Levels(range_id, record.ack_level.pass_, weights)
        self._memory = _Memory()
        for tenant, next_pass in record.next_passes:
            self._levels.resume(tenant, next_pass)
        are_all_known = not self.is_stored or len(record.next_passes) < HEAVIEST_KEPT
        self.unknown_above = None if are_all_known else record.ack_level
        """Level above which former owners may have stored entries of tenants whose next pass is
        unknown; None if every next pass is known. No trigger gets a level until then."""

    def __len__(self) -> int:
        return len(self._memory.loaded)

    def __contains__(self, trigger: Trigger) -> bool:
        """Return whether the trigger is in memory: loaded, or taken."""
        return trigger.level in self._memory

    def claiming(self, triggers: Iterable[Trigger]) -> list[Trigger]:
        """Return those of the triggers that were taken and whose claim has not ended."""
        return [trigger for trigger in triggers if trigger.level in self._memory.taken]

    def loaded(self) -> list[Trigger]:
        """Return the triggers that may be dispatched, lowest level first."""
        return [trigger for _, trigger in sorted(self._memory.loaded.items(), key=itemgetter(0))]

    @property
    def is_stored(self) -> bool:
        """Whether entries may be stored above A."""
        return self.max_level > self.ack_level

    def learn(self, entries: Sequence[Trigger], limit: int) -> None:
        """Learn next passes from the first entries above `unknown_above`, of at most `limit`."""
        for entry in entries:
            self._levels.observe(entry)
        self.unknown_above = None if len(entries) < limit else entries[-1].level

    # new triggers ---------------------------------------------------------------------------------

    @property
    def can_add(self) -> bool:
        """Whether new triggers can get their levels now: no write is under way, the next passes of
        all tenants are known, and no read could show that the new triggers fit in memory."""
        is_known = self.unknown_above is None and (self.is_at_end or self.is_stored)
        return is_known and self.write is None

    def add(self, triggers: Sequence[Trigger]) -> Changes:
        """Give new triggers their levels. If all triggers fit in memory and none is stored, keep
        the new ones in memory only. Otherwise begin a write of them and of all other triggers that
        are not in the store yet. Allowed if `can_add`."""
        assert self.can_add
        levelled = [self._level(trigger) for trigger in triggers]
        fits = len(self) + len(levelled) <= self.capacity
        if not (fits and self.is_at_end and not self.is_stored):
            self._begin_write(levelled)
            return NO_CHANGES
        self._load(levelled)
        self._memory.unstored.update(zip(map(_level, levelled), levelled, strict=True))
        levelled.sort(key=_level)
        return Changes(added=levelled)

    def evict(self, triggers: Sequence[Trigger]) -> None:
        """Begin a write that gives loaded triggers new levels, after all others of their tenants,
        as if they had arrived now. So they no longer pin A, and those above R make room in memory.
        Start-time fair queueing treats a flow in this way that could not be served. Not allowed
        while a write is under way."""
        self.is_at_end = False  # only the store keeps the evicted ones
        for level in map(_level, triggers):
            self._memory.take(level)
        self._begin_write([self._level(trigger) for trigger in triggers], triggers)

    # writing --------------------------------------------------------------------------------------

    def _begin_write(self, levelled: Sequence[Trigger], leaving: Sequence[Trigger] = ()) -> None:
        assert self.write is None
        left = {*map(_level, leaving)}
        unstored = [each for level, each in self._memory.unstored.items() if level not in left]
        entries = sorted([*unstored, *levelled], key=_level)
        self.max_level = max(self.max_level, _level(entries[-1]))
        pin = min(map(_level, levelled or entries))
        self.write = BacklogWrite(entries, LaneRecord(), pin, leaving)
        self.write.record = self.record()

    def write_failed(self) -> None:
        """Record that the write failed or timed out, and must be repeated: such a write may have
        landed, or may land later."""
        self.is_at_end = False

    def written(self, now: float) -> Changes:
        """Record that the write has landed. `now`: monotonic seconds."""
        write, self.write = self.write, None
        assert write is not None
        self.upkeep.recorded(write.record, now)
        new = [
            trigger
            for trigger in write.entries
            if self._memory.unstored.pop(_level(trigger), None) is None
            and self._is_new_level(_level(trigger))
            and (self.is_at_end or _level(trigger) <= self.read_level)
        ]
        self._load(new)
        self.ack(write.leaving)
        dropped = self._trim()
        self._advance()
        came = {trigger.level for trigger in new}
        return Changes(
            [trigger for trigger in new if trigger in self],
            [trigger for trigger in dropped if trigger.level not in came],
        )

    def shrink(self) -> Changes:
        """Drop triggers that no longer fit in memory. If any trigger is not in the store yet,
        begin a write of these first. Not allowed while a write is under way."""
        if not self._is_too_full:
            return NO_CHANGES
        if not self._memory.unstored:
            return Changes(dropped=self._trim())
        self._begin_write([])
        return NO_CHANGES

    @property
    def _is_too_full(self) -> bool:
        return len(self) > self.capacity + self.capacity // 4

    def _trim(self) -> list[Trigger]:
        """Drop all but the first `capacity` loaded triggers once there are a quarter more; the
        store has the rest."""
        if not self._is_too_full:
            return []
        loaded = self.loaded()
        kept, dropped = [*map(_level, loaded[: self.capacity])], loaded[self.capacity :]
        self._memory.keep(kept)
        self.read_level = kept[-1]
        self.is_at_end = False
        return dropped

    # reading --------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether a read may begin: the store may have more entries, and memory is half empty."""
        return not self.is_at_end and len(self) <= self.capacity // 2

    def next_read(self, most: int | None = None) -> Read | None:
        """Return the read to do now, of at most `most` entries, if memory has room and the store
        may have more."""
        if not self.has_room:
            return None
        room = self.capacity - len(self)
        return Read(self.read_level, room if most is None else min(room, most))

    def read(self, reading: Read, entries: Sequence[Trigger]) -> Changes:
        """Record the entries that the read returned."""
        self.is_at_end = len(entries) < reading.limit
        new = [trigger for trigger in entries if self._is_new_level(_level(trigger))]
        self._load(new)
        for trigger in new:
            self._levels.observe(trigger)
        if entries:
            self.read_level = max(self.read_level, _level(entries[-1]))
            self.max_level = max(self.max_level, self.read_level)
        self._advance()
        return Changes(added=new)

    def _is_new_level(self, level: Level) -> bool:
        is_above = level > self.ack_level
        return is_above and level not in self._memory and level not in self._memory.acked

    # dispatch -------------------------------------------------------------------------------------

    def take(self, triggers: Collection[Trigger]) -> None:
        """Take triggers for dispatch, to be claimed."""
        memory = self._memory
        for level in map(_level, triggers):
            memory.take(level)
            memory.furthest = max(memory.furthest, level.pass_)

    def take_back(self, triggers: Iterable[Trigger]) -> None:
        """Make taken triggers dispatchable again, because the outcome of their claim is unknown."""
        for level in map(_level, triggers):
            self._memory.loaded[level] = self._memory.taken.pop(level)

    def ack(self, triggers: Iterable[Trigger]) -> None:
        """Record that triggers are done: this node claimed them, or their claim was refused. Those
        not in memory are ignored."""
        memory = self._memory
        self.upkeep.acks += memory.ack(triggers, self.write is not None)
        # A may lag: moving it sorts everything unacked, so do it once for many acks.
        if memory.acks * _ACKS_SHARE >= len(memory):
            self._advance()

    def _advance(self) -> None:
        """Move A and the virtual time on."""
        memory = self._memory
        memory.acks = 0
        unacked = sorted([*memory.loaded, *memory.taken])
        bound = self.read_level
        if unacked:
            bound = min(bound, _before(unacked[0]))
            first = unacked[len(unacked) // _FIRST_SHARE].pass_
            self._levels.advance(min(memory.furthest, first))
        elif self.is_at_end and self.write is None:
            # Everything has been dispatched, so nothing stored is needed.
            self.read_level = bound = max(self.read_level, self.max_level)
        if self.write is not None:
            bound = min(bound, _before(self.write.pin))
        if bound > self.ack_level:
            self.ack_level = bound
            self._levels.advance(bound.pass_)
            memory.acked = {level: None for level in memory.acked if level > bound}

    # deletes and records --------------------------------------------------------------------------

    def next_delete(self, now: float) -> Level | None:
        """Return the level at or below which to delete entries now, or None if it is too early.
        `now`: monotonic seconds."""
        is_due = self.upkeep.is_delete_due(self.ack_level, self.max_level, now)
        return self.ack_level if is_due else None

    def next_record(self, now: float) -> LaneRecord | None:
        """Return the record to save now, or None if it is too early. Never returns one while a
        write is under way, whose triggers the record would skip. `now`: monotonic seconds."""
        if self.write is not None:
            return None
        is_due = self.upkeep.is_record_due(self.ack_level, self.read_level, now)
        return self.record() if is_due else None

    def record(self) -> LaneRecord:
        """Return the record for the next owner, who gives triggers their levels anew that are only
        in memory and not in the write under way."""
        unstored = self._memory.unstored.values() if self.write is None else ()
        first = min([trigger.seq for trigger in unstored], default=self.read_seq + 1)
        return LaneRecord(
            ack_level=self.ack_level,
            read_level=self.read_level,
            max_level=self.max_level,
            read_seq=min(self.read_seq, first - 1),
            buffered=len(self._memory),
            next_passes=[] if unstored else self._levels.next_passes(HEAVIEST_KEPT),
        )

    # levels ---------------------------------------------------------------------------------------

    def _level(self, trigger: Trigger) -> Trigger:
        self.read_seq = max(self.read_seq, trigger.seq)
        return self._levels.assign(trigger)

    def _load(self, triggers: Sequence[Trigger]) -> None:
        levels = [*map(_level, triggers)]
        self._memory.loaded.update(zip(levels, triggers, strict=True))
        if self.is_at_end and levels:
            self.read_level = max(self.read_level, *levels)


_level: Callable[[Trigger], Level] = attrgetter("level")


def _before(level: Level) -> Level:
    return Level(level.pass_, level.id - 1)
