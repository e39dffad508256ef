"""The owner of a schedule partition on Cassandra: what it keeps in memory about the stored rows."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from fairlead.backends.cassandra.horizon import Horizon
from fairlead.model import NewTask, PartitionKey, ScheduleRecord, TaskKey
from fairlead.ports.schedule_store import HOUR, Fenced, hour_of

T = TypeVar("T", bound=Hashable)

_STAMP_BITS = 32
_FIRST_SECOND = 1_735_689_600
"""2025-01-01 in seconds since the epoch. Range ids are seconds since then; with the bits of a stamp
after them they stay below 2**63 until 2093."""


def next_range_id(*held: int) -> int:
    """Return a range id greater than all of `held`, and than any that another datacentre has given
    before this second."""
    return max(int(time.time()) - _FIRST_SECOND, *(range_id + 1 for range_id in held))


class StoredHours:
    """The hours of a range that have rows, as read from the store and as written by this owner.

    Only an owner adds hours, so the read of a range is not repeated during its ownership. An hour
    may be listed after its rows were deleted.
    """

    def __init__(self, first: int) -> None:
        """`first`: hour at which the range begins; no hour is read yet."""
        self.first = first
        self.through = first - 1
        """Hour through which the range was read."""
        self._hours: set[int] = set()

    def on_read(self, hours: Collection[int], through: int) -> None:
        """Record the hours that a read has found after the range, which now ends at `through`."""
        self._hours.update(hours)
        self.through = through

    def add(self, hours: Collection[int]) -> None:
        """Add hours that this owner has written."""
        self._hours.update(hours)

    def drop(self, hours: Collection[int]) -> None:
        """Remove hours whose rows were deleted."""
        self._hours.difference_update(hours)

    def within(self, first: int, last: int) -> list[int]:
        """Return the hours from `first` to `last`, ascending."""
        return sorted(hour for hour in self._hours if first <= hour <= last)


class HoursInUse(Generic[T]):
    """Hours of which calls under way write rows. A deletion with a later stamp would delete
    them."""

    def __init__(self) -> None:
        self._calls: Counter[T] = Counter()

    @contextlib.contextmanager
    def use(self, hours: Collection[T]) -> Iterator[None]:
        """Note that rows of these hours are being written."""
        self._calls.update(hours)
        try:
            yield
        finally:
            self._calls.subtract(hours)
            self._calls = +self._calls

    @property
    def hours(self) -> frozenset[T]:
        """Hours of which rows are being written."""
        return frozenset(self._calls)


RunHours = tuple[int, int]
"""Hours in which some runs ended, and were due."""


class StoredRuns:
    """The hours of runs that are stored for the history, as their owner knows them.

    A pair of hours is noted in the store before its first row, and dropped there after its rows
    were deleted: with a history in SQL, when all were moved. A row that is written after `take` has
    a later stamp than that deletion, and its hours are noted again.
    """

    def __init__(self) -> None:
        self.is_read = False
        """Whether the hours that earlier owners have noted were read."""
        self._writing = HoursInUse[RunHours]()
        self._cut_off: set[RunHours] = set()
        """Hours with a call that failed: rows of it may reach the store at any time."""
        self._noted: dict[RunHours, bool] = {}
        """Noted hours, each with whether it may have a row that is not in the history."""

    @contextlib.contextmanager
    def write(self, hours: Collection[RunHours]) -> Iterator[None]:
        """Note that rows of these hours are being written. After a failure, leave the hours to the
        next owner."""
        with self._writing.use(hours):
            try:
                yield
            except BaseException:
                self._cut_off.update(hours)
                raise

    def to_note(self, hours: Collection[RunHours]) -> list[RunHours]:
        """Return those of the hours that are not noted, ascending."""
        return sorted(set(hours) - self._noted.keys())

    def note(self, hours: Collection[RunHours], are_moved: bool) -> None:
        """Record that these hours are noted in the store, and whether the rows just written, or
        those of an earlier owner, are in the history too."""
        for hour in hours:
            self._noted[hour] = self._noted.get(hour, False) or not are_moved

    def drop(self, hours: Iterable[RunHours]) -> None:
        """Record that the rows of these hours were deleted."""
        for hour in hours:
            self._noted.pop(hour, None)

    def take(self) -> dict[RunHours, bool]:
        """Return the noted hours of which no row can reach the store now, each with whether it may
        have a row that is not in the history. Drop these hours here."""
        busy = self._writing.hours | self._cut_off
        taken = {hour: unmoved for hour, unmoved in self._noted.items() if hour not in busy}
        for hour in taken:
            del self._noted[hour]
        return taken


class ScheduleOwner:
    """An owner of a partition, from one take-over to the next.

    Methods that change an owner are called after the change is in the store.
    """

    def __init__(
        self,
        partition: PartitionKey,
        range_id: int,
        low_water_mark: TaskKey,
        begins: TaskKey,
        is_whole: bool,
        horizon: Horizon | None = None,
    ) -> None:
        self.partition = partition
        self.range_id = range_id
        self.low_water_mark = low_water_mark
        """Low-water mark of the record that was last saved."""
        self.is_whole = is_whole
        """Whether every read of this owner was whole: it had the writes of every datacentre (see
        `datacentres`)."""
        self.swept = begins
        """Key through which rows are deleted, except rows that were written later. Reads start
        here."""
        self.has_persisted = False
        """Whether this owner has taken in entries of the log."""
        self.hours: dict[int, int] = {}
        """Hours noted in the store, with the noted time of the last completion in microseconds."""
        self.completed_in: set[int] = set()
        """Hours with keys that were completed since the last sweep."""
        self.stored_hours = StoredHours(hour_of(begins))
        self.finishing = HoursInUse[int]()
        """Hours of which completions are being written."""
        self.runs = StoredRuns()
        self.horizon = horizon or Horizon(0)
        """Horizon of the history, if runs stay in Cassandra."""
        self._calls = 0

    def stamp(self) -> int:
        """Return the timestamp for the writes of one call.

        The timestamp is greater than every earlier one of this owner and of earlier owners. Raise
        Fenced if the timestamps of this range id are used up.
        """
        self._calls += 1
        if self._calls >> _STAMP_BITS:
            raise Fenced(
                f"range id {self.range_id} of {self.partition} has written {self._calls:,} times:"
                " take over again"
            )
        return (self.range_id << _STAMP_BITS) + self._calls

    def on_finished(self, finished: Mapping[int, int], noted: Mapping[int, int]) -> None:
        """Record that tasks were completed: the times of the last completions by hour, and those
        that were noted in the store."""
        self.hours.update(noted)
        self.completed_in.update(finished)

    def on_cleaned(self, hours: dict[int, bool]) -> None:
        """Record that these hours were cleaned, each with whether unfinished tasks are left."""
        for hour, has_left in hours.items():
            if has_left:
                self.hours[hour] = 0
            else:
                self.hours.pop(hour, None)
                self.stored_hours.drop([hour])

    def safe_record(self, record: ScheduleRecord, tasks: Sequence[NewTask] = ()) -> ScheduleRecord:
        """Return the record to save with these tasks.

        The low-water mark does not rise while a datacentre may have tasks that we have not read.
        """
        if self.is_whole:
            return record
        low_water_mark = min(
            [self.low_water_mark, *(TaskKey(task.run_at, "", "") for task in tasks)]
        )
        return msgspec.structs.replace(record, low_water_mark=low_water_mark)

    def on_saved(self, record: ScheduleRecord) -> None:
        """Record that `record` was saved."""
        self.low_water_mark = record.low_water_mark
        self.swept = min(self.swept, record.low_water_mark)

    def hours_to_note(self, hours: set[int]) -> list[int]:
        """Return those of `hours` that are not noted in the store, ascending."""
        return sorted(hours - self.hours.keys())

    def ends_to_note(self, finished: Mapping[int, int]) -> dict[int, int]:
        """Return those of `finished` (completion times in microseconds, by hour) that are at least
        an hour later than the noted ones."""
        return {hour: at for hour, at in finished.items() if self.hours.get(hour, 0) + HOUR <= at}
