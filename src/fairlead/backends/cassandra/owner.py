"""What an owner of a partition of an ordered queue's schedule on Cassandra knows of it, beside what
is stored."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from fairlead.model import NewTask, PartitionKey, ScheduleRecord, TaskKey
from fairlead.ports.schedule_store import HOUR, Fenced

_STAMP_BITS = 32
_FIRST_SECOND = 1_735_689_600
"""2025-01-01: range ids are seconds since then, and with the bits of a stamp behind them less than
2**63 until 2093."""


def next_range_id(*held: int) -> int:
    """Greater than all of these, and than what any other datacentre has handed out before this
    second."""
    return max(int(time.time()) - _FIRST_SECOND, *(range_id + 1 for range_id in held))


class Owner:
    """From a take-over to the next one. Its methods are called when what they say is in the
    store."""

    def __init__(
        self,
        partition: PartitionKey,
        range_id: int,
        low_water_mark: TaskKey,
        begins: TaskKey,
        is_whole: bool,
    ) -> None:
        self.partition = partition
        self.range_id = range_id
        self.low_water_mark = low_water_mark
        """As it was kept last."""
        self.is_whole = is_whole
        """Whatever it was told of came from a read of every datacentre."""
        self.swept = begins
        """Rows through here are deleted, but for those that came later. It reads from here on."""
        self.hours: dict[int, int] = {}
        """That it has noted, and when they were finished by what is noted."""
        self.completed_in: set[int] = set()
        """Hours with keys that were completed since rows were swept."""
        self._calls = 0

    def stamp(self) -> int:
        """The timestamp of one call's writes: above every former one, and every former owner's.
        Raises Fenced when there are no more."""
        self._calls += 1
        if self._calls >> _STAMP_BITS:
            raise Fenced(
                f"range id {self.range_id} of {self.partition} has written {self._calls:,} times:"
                " take over anew"
            )
        return (self.range_id << _STAMP_BITS) + self._calls

    def sure(self, record: ScheduleRecord, tasks: Sequence[NewTask] = ()) -> ScheduleRecord:
        """The record to keep with these tasks. Its floor does not rise while a datacentre may know
        of others."""
        if self.is_whole:
            return record
        low_water_mark = min(
            [self.low_water_mark, *(TaskKey(task.run_at, "", "") for task in tasks)]
        )
        return msgspec.structs.replace(record, low_water_mark=low_water_mark)

    def kept(self, record: ScheduleRecord) -> None:
        """This is the record now."""
        self.low_water_mark = record.low_water_mark
        self.swept = min(self.swept, record.low_water_mark)

    def unnoted(self, hours: set[int]) -> list[int]:
        """Of these hours, those that it has not noted."""
        return sorted(hours - self.hours.keys())

    def unnoted_ends(self, finished: dict[int, int]) -> dict[int, int]:
        """Of these hours and when a key of them was completed, those of which something about as
        late is not noted."""
        return {hour: at for hour, at in finished.items() if self.hours.get(hour, 0) + HOUR <= at}
