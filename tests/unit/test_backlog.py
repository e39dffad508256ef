"""The fair backlog: the entries in memory, the entries only in the store, and the ack level."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.fair.backlog import Backlog
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.key_choice import EARLY_CREDIT
from fairlead.core.fair.levels import FIRST_PASS
from fairlead.core.fair.passes import STRIDE_SCALE, Passes
from fairlead.core.fair.steps import NO_CHANGES, BacklogWrite, Changes, Read, Timing
from fairlead.model import LOWEST, LaneRecord, Level, Trigger
from tests.builders import trigger
from tests.tiers import examples


def of_letter(id: str, **fields: Any) -> Trigger:
    """Return a trigger whose key is the first letter of its id."""
    return trigger(id, key=id[0], **fields)


def triggers(ids: str, name: str = "pay") -> list[Trigger]:
    """Return triggers for names such as `a1 a2 b1`; the letter is the key."""
    return [of_letter(id, name=name) for id in ids.split()]


def ids(found: Sequence[Trigger]) -> str:
    return " ".join(one.id for one in found)


def backlog_of(
    capacity: int = 10,
    record: LaneRecord | None = None,
    range_id: int = 1,
    timing: Timing = Timing(),
    weights: Mapping[str, float] | None = None,
) -> Backlog:
    """Make a backlog without a record, for a lane that was never stored."""
    return Backlog(
        range_id,
        record or LaneRecord(),
        Passes(Counters(), weights),
        capacity,
        timing,
        is_new=record is None,
    )


def add(backlog: Backlog, found: Sequence[Trigger]) -> list[Trigger]:
    """Level triggers and let a write land at once; return the entries that were written."""
    added = backlog.add(found)
    if isinstance(added, Changes):
        return []
    backlog.written(added)
    return added.entries


def written(added: BacklogWrite | Changes) -> BacklogWrite:
    assert isinstance(added, BacklogWrite)
    return added


def first(backlog: Backlog, count: int = 1) -> list[Trigger]:
    return backlog.loaded()[:count]


def dispatch(backlog: Backlog, count: int = 1) -> list[Trigger]:
    """Take `count` triggers, lowest level first, and ack them."""
    found = first(backlog, count)
    backlog.take(found)
    backlog.ack(found)
    return found


def level(one: Trigger) -> Level:
    assert one.level is not None
    return one.level


def stored_beyond_memory(capacity: int = 2, tasks: int = 6) -> tuple[Backlog, list[Trigger]]:
    """Return a backlog with more stored than fits in memory, and the stored entries."""
    backlog = backlog_of(capacity)
    stored = add(backlog, triggers(" ".join(f"a{n}" for n in range(tasks))))
    return backlog, sorted(stored, key=level)


# levels and writes --------------------------------------------------------------------------------


def test_triggers_that_fit_while_nothing_is_stored_need_no_write() -> None:
    backlog = backlog_of(3)
    added = backlog.add(triggers("a1 a2 b1"))
    assert isinstance(added, Changes)
    assert ids(added.added) == "a1 b1 a2" and not added.dropped
    assert ids(backlog.loaded()) == "a1 b1 a2"
    assert not backlog.is_stored and backlog.next_read() is None


def test_triggers_only_in_memory_are_written_with_the_first_that_does_not_fit() -> None:
    backlog = backlog_of(4)
    backlog.add(triggers("a1 a2 a3"))
    write = written(backlog.add(triggers("b1 b2")))
    assert ids(write.entries) == "a1 b1 a2 b2 a3"
    assert write.record.max_level == level(write.entries[-1])
    changes = backlog.written(write)
    assert ids(changes.added) == "b1 b2", "triggers that were in memory before are not reported"
    assert not backlog.is_writing
    assert ids(written(backlog.add(triggers("c1"))).entries) == "c1", "each trigger is written once"


def test_until_a_write_lands_its_new_triggers_wait_while_those_in_memory_may_be_dispatched() -> (
    None
):
    backlog = backlog_of(2)
    backlog.add(triggers("a1"))
    write = written(backlog.add(triggers("b1 b2")))
    assert ids(backlog.loaded()) == "a1"
    assert ids(dispatch(backlog)) == "a1"
    assert ids(backlog.written(write).added) == "b1 b2"


def test_an_unstored_trigger_acked_while_its_write_is_under_way_is_not_dispatched_twice() -> None:
    backlog = backlog_of(2)
    backlog.add(triggers("a1 b1"))
    write = written(backlog.add(triggers("c1 c2 c3")))
    assert ids(dispatch(backlog)) == "a1"
    changes = backlog.written(write)
    assert "a1" not in ids(changes.added)
    seen = [*changes.added]
    while backlog.is_stored:
        if read := backlog.next_read():
            seen += backlog.read(
                [entry for entry in write.entries if level(entry) > read.above][: read.limit]
            ).added
        dispatch(backlog)
    assert "a1" not in ids(seen)


def test_after_a_failed_write_the_reader_no_longer_counts_as_at_the_end() -> None:
    backlog = backlog_of(2)
    backlog.add(triggers("a1"))
    write = written(backlog.add(triggers("b1 b2")))
    assert backlog.is_at_end
    backlog.write_failed()
    assert not backlog.is_at_end and backlog.is_writing
    read = backlog.next_read()
    assert read is not None and read.above == backlog.read_level
    landed = [entry for entry in write.entries if level(entry) > read.above][: read.limit]
    assert ids(backlog.read(landed).added) == "b1"
    assert ids(dispatch(backlog, 2)) == "a1 b1"
    assert backlog.ack_level < level(landed[0]), "the write may still be under way"
    backlog.written(write)
    assert ids(backlog.loaded()) == "", "the reader is not at the end, so b2 is read"
    read = backlog.next_read()
    assert read is not None
    assert (
        ids(backlog.read([entry for entry in write.entries if level(entry) > read.above]).added)
        == "b2"
    )


def test_a_write_that_returns_while_a_read_is_under_way_is_merged_after_it() -> None:
    backlog, stored = stored_beyond_memory(capacity=2, tasks=4)
    dispatch(backlog, 2)
    read = backlog.next_read()
    assert read is not None and read.limit == 2
    write = written(backlog.add(triggers("b1")))
    assert backlog.written(write) == NO_CHANGES
    assert ids(backlog.loaded()) == "" and backlog.is_writing
    changes = backlog.read(stored[2:4])
    assert ids(changes.added) == "a2 b1", (
        "two of three entries fit, and the highest stays in the store"
    )
    assert ids(backlog.loaded()) == "b1 a2"
    assert not backlog.is_writing and not backlog.is_at_end


def test_a_write_that_returned_is_merged_also_when_the_read_fails() -> None:
    backlog, _ = stored_beyond_memory(capacity=2, tasks=4)
    dispatch(backlog, 2)
    assert backlog.next_read() is not None
    write = written(backlog.add(triggers("b1")))
    backlog.written(write)
    changes = backlog.read_failed()
    assert not backlog.is_writing
    below = level(write.entries[0]) <= backlog.read_level
    assert ids(changes.added) == ("b1" if below else "")
    assert backlog.next_read() is not None, "a failed read is repeated"


def test_a_write_in_the_middle_of_the_stored_queue_keeps_only_entries_at_or_below_the_read_level() -> (
    None
):
    backlog, _ = stored_beyond_memory(capacity=4, tasks=8)
    end = backlog.read_level
    assert ids(backlog.loaded()) == "a0 a1 a2 a3" and not backlog.is_at_end
    dispatch(backlog, 2)
    write = written(backlog.add(triggers("b1 b2 a8")))
    changes = backlog.written(write)
    assert ids(changes.added) == "b1 b2"
    assert all(level(one) <= end for one in changes.added)
    assert backlog.read_level == end


# trims and reads ----------------------------------------------------------------------------------


def test_after_a_trim_the_reader_is_no_longer_at_the_end() -> None:
    backlog = backlog_of(4)
    add(backlog, triggers("a1 a2 a3 a4 a5"))
    assert backlog.is_at_end and len(backlog) == 5, (
        "memory may hold a quarter more than the capacity"
    )
    write = written(backlog.add(triggers("a6")))
    changes = backlog.written(write)
    assert ids(changes.dropped) == "a5" and ids(changes.added) == "", (
        "triggers added and dropped at once are not reported"
    )
    assert len(backlog) == 4 and not backlog.is_at_end
    assert backlog.read_level == level(backlog.loaded()[-1])


def test_a_reader_with_nothing_loaded_reads_unless_it_is_at_the_end() -> None:
    backlog, _ = stored_beyond_memory(capacity=1, tasks=3)
    dispatch(backlog)
    assert len(backlog) == 0 and not backlog.is_at_end
    assert backlog.next_read() == backlog._reading is not None
    assert backlog.next_read() is None, "only one read at a time"
    backlog.read_failed()
    assert backlog.next_read() is not None


def test_a_new_owner_reads_the_entries_above_the_ack_level() -> None:
    backlog = backlog_of(10, LaneRecord(ack_level=Level(3, 7), max_level=Level(9, 12)))
    read = backlog.next_read()
    assert read is not None and read.above == Level(3, 7) and read.limit == 10


def test_a_read_takes_no_more_than_its_limit() -> None:
    backlog, _ = stored_beyond_memory(capacity=4, tasks=9)
    dispatch(backlog, 4)
    read = backlog.next_read(most=3)
    assert read is not None and read.limit == 3


def test_acked_entries_do_not_count_towards_the_capacity() -> None:
    backlog, _ = stored_beyond_memory(capacity=4, tasks=9)
    found = first(backlog, 4)
    backlog.take(found)
    backlog.ack(found[1:])
    read = backlog.next_read()
    assert read is not None and read.limit == 4
    assert read.above == level(found[-1]), (
        "the read begins above the acked entries, though the first entry is not acked"
    )


def test_known_entries_from_a_read_that_races_with_acks_are_ignored() -> None:
    backlog, stored = stored_beyond_memory(capacity=4, tasks=9)
    dispatch(backlog, 2)
    on_its_way = first(backlog, 1)
    backlog.take(on_its_way)
    assert level(stored[0]) <= backlog.ack_level < level(stored[2])
    assert backlog.next_read() is not None
    dispatch(backlog, 1)
    assert ids(backlog.read(stored[:7]).added) == "a4 a5 a6"
    assert ids(backlog.loaded()) == "a4 a5 a6"


def test_an_ack_above_the_cut_of_a_trim_does_not_move_the_ack_level_past_entries_dropped_below_it() -> (
    None
):
    backlog = backlog_of(4)
    backlog.add([of_letter("h1", name="held"), *triggers("a0 a1 a2")])
    high = backlog.loaded()[-1]
    assert high.id == "a2"
    backlog.take([high])
    # A limit holds the name back, so it has its own virtual time: new tasks get levels below those
    # being dispatched.
    stored = add(backlog, triggers("x1 y1 z1", name="held"))
    assert ids(backlog.loaded()) == "x1 h1 a0 y1"
    dropped = [entry for entry in stored if entry.id in ("z1", "a1")]
    backlog.ack([high])
    dispatch(backlog, 4)
    assert backlog.ack_level < min(map(level, dropped))
    read = backlog.next_read()
    assert read is not None
    above = [entry for entry in sorted(stored, key=level) if level(entry) > read.above]
    assert ids(above) == "z1 a1 a2", "the store still has the acked entry"
    assert ids(backlog.read(above).added) == "z1 a1", "the acked entry is not dispatched again"
    dispatch(backlog, 2)
    assert (
        not backlog.is_stored or backlog.ack_level >= level(high) or backlog.next_read() is not None
    )


# the ack level ------------------------------------------------------------------------------------


def test_the_ack_level_stays_below_the_first_unacked_entry() -> None:
    backlog, stored = stored_beyond_memory(capacity=4, tasks=9)
    found = first(backlog, 4)
    backlog.take(found)
    backlog.ack(found[1:])
    assert backlog.ack_level < level(stored[0])
    backlog.ack(found[:1])
    assert level(stored[2]) < backlog.ack_level < level(stored[3]), "a key may begin before a4"


def test_the_ack_level_stays_below_levels_being_written() -> None:
    backlog = backlog_of(2)
    backlog.add(triggers("a1 a2"))
    write = written(backlog.add(triggers("b1")))
    dispatch(backlog, 2)
    assert backlog.ack_level < level(next(entry for entry in write.entries if entry.id == "b1"))
    backlog.written(write)
    dispatch(backlog)
    assert not backlog.is_stored


def test_once_all_tasks_are_dispatched_the_whole_stored_backlog_may_be_deleted() -> None:
    backlog, stored = stored_beyond_memory(capacity=4, tasks=5)
    dispatch(backlog, 5)
    assert backlog.ack_level == backlog.max_level == level(stored[-1])
    assert not backlog.is_stored
    assert isinstance(backlog.add(triggers("a6")), Changes)


def test_a_level_is_never_given_at_or_below_the_ack_level() -> None:
    backlog = backlog_of(2)
    for n in range(20):
        add(backlog, triggers(f"{'abc'[n % 3]}{n}"))
        if n % 3 == 2:
            dispatch(backlog, 2)
        assert all(level(one) > backlog.ack_level for one in backlog.loaded())
        assert all(level(one).id >> 40 == 1 for one in backlog.loaded())


def test_two_owners_never_give_the_same_id() -> None:
    before, after = backlog_of(range_id=7), backlog_of(range_id=8)
    given = [level_one(before, n) for n in range(500)], [level_one(after, n) for n in range(500)]
    assert max(given[0]) < min(given[1])
    assert len({*given[0], *given[1]}) == 1000


def level_one(backlog: Backlog, number: int) -> int:
    backlog.capacity = 1000
    added = backlog.add([of_letter(f"a{number}")])
    assert isinstance(added, Changes)
    return level(added.added[0]).id


# take and take back ---------------------------------------------------------------------------


def test_taken_triggers_are_dispatched_again_only_after_they_are_taken_back() -> None:
    backlog = backlog_of()
    backlog.add(triggers("a1 b1"))
    found = first(backlog)
    backlog.take(found)
    assert ids(backlog.loaded()) == "b1" and found[0] in backlog and len(backlog) == 1
    backlog.take_back(found)
    assert ids(backlog.loaded()) == "a1 b1" and found[0] in backlog
    dispatch(backlog, 2)
    assert found[0] not in backlog and not backlog.loaded()


def test_triggers_taken_back_hold_the_ack_level() -> None:
    backlog, _ = stored_beyond_memory(capacity=4, tasks=9)
    found = first(backlog, 2)
    backlog.take(found)
    backlog.take_back(found[:1])
    backlog.ack(found[1:])
    assert backlog.ack_level < level(found[0])


def test_a_key_that_arrives_comes_into_memory_although_its_virtual_time_is_read_already() -> None:
    """Ranks, not levels, decide what runs, so the last trigger in memory may run first."""
    backlog = backlog_of(3)
    add(backlog, triggers("a1 a2 a3 a4 a5 a6"))
    last = backlog.loaded()[-1]
    backlog.take([last])
    backlog.ack([last])
    assert backlog.virtual_time == backlog.read_level.pass_ == level(last).pass_
    added = backlog.written(written(backlog.add(triggers("x1"))))
    assert ids(added.added) == "x1"


# names and virtual time ---------------------------------------------------------------------------


def test_a_name_that_a_limit_holds_back_keeps_its_own_virtual_time() -> None:
    backlog = backlog_of()
    backlog.add([of_letter("h1", name="held"), *triggers("a1 a2 a3 a4")])
    for _ in range(4):
        free = [one for one in backlog.loaded() if one.name == "pay"][:1]
        backlog.take(free)
        backlog.ack(free)
    assert backlog.virtual_time == FIRST_PASS + 3 * STRIDE_SCALE
    added = backlog.add([of_letter("x1", name="held"), of_letter("y1", name="pay")])
    assert isinstance(added, Changes)
    passes = [level(one).pass_ for one in added.added]
    assert passes == [FIRST_PASS, FIRST_PASS - 1 + 3 * STRIDE_SCALE]


def test_a_name_that_was_idle_starts_with_the_lane() -> None:
    backlog = backlog_of()
    backlog.add([of_letter("h1", name="other"), *triggers("a1 a2 a3 a4")])
    dispatch(backlog, 5)
    added = backlog.add([of_letter("x1", name="other"), of_letter("y1", name="new")])
    assert isinstance(added, Changes)
    assert [level(one).pass_ for one in added.added] == [backlog.virtual_time - 1] * 2


def test_an_idle_key_does_not_wait_for_every_key_whose_turn_is_at_the_same_pass() -> None:
    backlog = backlog_of(10_000)
    keys = [f"k{number}" for number in range(1000)]
    for _ in range(3):
        backlog.add([trigger(f"{key}:", key=key) for key in keys])
    for served in (100, 900, 550):
        dispatch(backlog, served)
        newcomer = trigger(f"n{served}", key=f"n{served}")
        backlog.add([newcomer])
        assert first(backlog, 1)[0].id == newcomer.id
        dispatch(backlog, 1)


def test_a_stream_of_new_keys_takes_at_most_every_second_turn() -> None:
    backlog = backlog_of(10_000)
    backlog.add([trigger(f"{n}", key=f"k{n}") for n in range(500)])
    ran = []
    for number in range(900):
        backlog.add([trigger(f"new{number}", key=f"n{number}")])
        ran += [one.id for one in dispatch(backlog, 1)]
    assert sum(not one.startswith("new") for one in ran) >= 449


def test_a_new_owner_continues_with_the_virtual_time_and_passes_of_the_previous_one() -> None:
    before = backlog_of(3)
    add(before, triggers("a1 a2 a3 b1"))
    dispatch(before, 3)
    after = backlog_of(2, before.record(), range_id=2)
    assert after.virtual_time == before.virtual_time == FIRST_PASS + STRIDE_SCALE
    write = written(after.add(triggers("a4 b2 c1")))
    assert {one.id: level(one).pass_ for one in write.entries} == {
        "a4": FIRST_PASS + 3 * STRIDE_SCALE,
        "b2": FIRST_PASS + STRIDE_SCALE,
        "c1": FIRST_PASS + STRIDE_SCALE,
    }


# deletes and records ------------------------------------------------------------------------------


def test_dispatched_entries_are_deleted_after_a_number_of_acks_or_seconds() -> None:
    timing = Timing(delete_seconds=15, delete_acks=3)
    backlog = backlog_of(4, timing=timing)
    add(backlog, triggers("a0 a1 a2 a3 a4 a5"))
    assert backlog.next_delete(100.0) is None, "nothing is below the ack level"
    dispatch(backlog, 2)
    assert backlog.next_delete(114.9) is None
    assert backlog.next_delete(115.0) == backlog.ack_level
    backlog.deleted(backlog.ack_level, 115.0)
    assert backlog.next_delete(200.0) is None, "the entries are deleted already"
    dispatch(backlog, 1)
    assert backlog.next_delete(129.9) is None
    dispatch(backlog, 1)
    assert backlog.next_delete(130.0) == backlog.ack_level


def test_enough_acks_cause_a_delete() -> None:
    backlog = backlog_of(8, timing=Timing(delete_acks=3))
    add(backlog, triggers("a0 a1 a2 a3 a4 a5 a6 a7 a8"))
    dispatch(backlog, 2)
    assert backlog.next_delete(0.0) is None
    dispatch(backlog, 1)
    assert backlog.next_delete(0.0) == backlog.ack_level


def test_triggers_that_were_never_stored_need_no_delete() -> None:
    backlog = backlog_of(timing=Timing(delete_acks=1))
    backlog.add(triggers("a1 a2"))
    dispatch(backlog, 2)
    assert backlog.next_delete(0.0) is None and backlog.next_delete(1000.0) is None


def test_a_record_is_saved_when_the_ack_level_has_moved_and_the_interval_has_passed() -> None:
    backlog = backlog_of(timing=Timing(persist_seconds=60))
    backlog.add(triggers("a1 a2"))
    assert backlog.next_record(100.0) is None
    dispatch(backlog)
    assert backlog.next_record(159.0) is None
    record = backlog.next_record(160.0)
    assert record is not None and record.ack_level == backlog.ack_level
    backlog.recorded(record, 160.0)
    assert backlog.next_record(1000.0) is None, "nothing has changed"
    dispatch(backlog)
    assert backlog.next_record(219.0) is None
    assert backlog.next_record(220.0) is not None


def test_a_record_lets_the_next_owner_find_triggers_only_in_memory() -> None:
    backlog = backlog_of()
    backlog.add([of_letter("a1", seq=5), of_letter("a2", seq=6), of_letter("b1", seq=9)])
    assert backlog.record().read_seq == 4
    assert backlog.record().next_passes == [("a", FIRST_PASS), ("b", FIRST_PASS)]
    dispatch(backlog, 2)
    assert backlog.read_seq == 9
    assert backlog.record().read_seq == 5, "a2 is not dispatched yet"
    following = FIRST_PASS + STRIDE_SCALE
    assert backlog.record().next_passes == [("a", following), ("b", following)]
    dispatch(backlog)
    assert backlog.record().read_seq == 9


def test_a_record_written_with_all_triggers_charges_their_keys() -> None:
    backlog = backlog_of(1)
    backlog.add([of_letter("a1", seq=5)])
    write = written(backlog.add([of_letter("a2", seq=6)]))
    assert write.record.read_seq == 6
    assert write.record.next_passes == [("a", FIRST_PASS + 2 * STRIDE_SCALE)]


# random steps -------------------------------------------------------------------------------------


class Lane:
    """A backlog and a faulty store, driven by single steps in any order.

    After every step, the ack level A has not moved back, and each task that was not dispatched is in
    memory, in a write that is not settled, or stored above A.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._rows: dict[Level, Trigger] = {}
        self._pushed: list[Trigger] = []
        self._first: dict[str, int] = {}
        self._kept = LaneRecord()
        self._owner = 0
        self.dispatched: Counter[str] = Counter()
        self._own()

    def _own(self) -> None:
        self._owner += 1
        record = None if self._owner == 1 else self._kept
        self.backlog = backlog_of(self._capacity, record, self._owner, Timing(delete_acks=3))
        self._ready: dict[Level, Trigger] = {}
        self._taken: list[Trigger] = []
        self._write: BacklogWrite | None = None
        self._late: list[BacklogWrite] = []
        self._read: tuple[Read, list[Trigger]] | None = None
        self._given = self._kept.read_seq
        self._ack_level = LOWEST

    def push(self, number: int) -> None:
        """Submit a task to the channel; it gets its level when no write is under way."""
        seq = len(self._pushed) + 1
        self._pushed.append(
            trigger(
                str(seq),
                key="abcd"[number % 4],
                name="xy"[number // 4 % 2],
                weight=1 + number,
                seq=seq,
            )
        )

    def add(self, number: int) -> None:
        if self._write is not None or self.backlog.is_writing:
            return
        levelled = {row.id for row in self._rows.values()}
        batch = [
            one
            for one in self._pushed[self._given : self._given + 1 + number]
            if one.id not in levelled and one.id not in self.dispatched
        ]
        self._given = min(len(self._pushed), self._given + 1 + number)
        if not batch:
            return
        added = self.backlog.add(batch)
        if isinstance(added, BacklogWrite):
            assert all(level(entry) > self.backlog.ack_level for entry in added.entries)
            assert not self._rows.keys() & {
                level(entry)
                for entry in added.entries
                if entry.id not in {row.id for row in self._rows.values()}
            }
            self._write = added
        else:
            self._apply(added)

    def write(self, number: int) -> None:
        """Land the write with or without a response, or lose it."""
        if self._write is None:
            return
        if number % 4 == 3:
            self._late.append(self._write)
        else:
            self._land(self._write)
        if number % 4 >= 2:
            self.backlog.write_failed()
            return
        write, self._write = self._write, None
        self.backlog.recorded(write.record, 0.0)
        self._apply(self.backlog.written(write))

    def late(self, number: int) -> None:
        """Land a write that was abandoned and perhaps repeated."""
        if self._late:
            self._land(self._late.pop(number % len(self._late)))

    def _land(self, write: BacklogWrite) -> None:
        self._rows |= {level(entry): entry for entry in write.entries}
        self._kept = write.record

    def ask(self, number: int) -> None:
        if (read := self.backlog.next_read()) is not None:
            assert self._read is None
            levels = sorted(self._rows)
            start = bisect_right(levels, read.above)
            self._read = read, [self._rows[one] for one in levels[start : start + read.limit]]

    def answer(self, number: int) -> None:
        if self._read is None:
            return
        (_, found), self._read = self._read, None
        self._apply(self.backlog.read_failed() if number % 4 == 3 else self.backlog.read(found))

    def take(self, number: int) -> None:
        if self._ready:
            levels = sorted(self._ready)
            one = self._ready.pop(levels[number % len(levels)])
            self.backlog.take([one])
            self._taken.append(one)

    def take_back(self, number: int) -> None:
        if self._taken:
            one = self._taken.pop(number % len(self._taken))
            self.backlog.take_back([one])
            self._ready[level(one)] = one

    def ack(self, number: int) -> None:
        if self._taken:
            one = self._taken.pop(number % len(self._taken))
            self.dispatched[one.id] += 1
            self.backlog.ack([one])

    def delete(self, number: int) -> None:
        if (through := self.backlog.next_delete(float(number))) is not None:
            self._rows = {one: row for one, row in self._rows.items() if one > through}
            self.backlog.deleted(through, float(number))

    def keep(self, number: int) -> None:
        if self._write is None and not self.backlog.is_writing:
            self._kept = self.backlog.record()
            self.backlog.recorded(self._kept, 0.0)

    def crash(self, number: int) -> None:
        self._own()

    def _apply(self, changes: Changes) -> None:
        for one in changes.dropped:
            del self._ready[level(one)]
        for one in changes.added:
            assert level(one) not in self._ready and one not in self._taken
            self._ready[level(one)] = one

    def check(self) -> None:
        assert self.backlog.ack_level >= self._ack_level
        self._ack_level = self.backlog.ack_level
        assert sorted(self._ready) == [level(one) for one in self.backlog.loaded()]
        known = {one.id for one in [*self._ready.values(), *self._taken]}
        known |= {row.id for at, row in self._rows.items() if at > self.backlog.ack_level}
        known |= {entry.id for entry in (self._write.entries if self._write is not None else ())}
        known |= {one.id for one in self._landed()}
        lost = [
            one.id
            for one in self._pushed[: self._given]
            if one.id not in known and one.id not in self.dispatched
        ]
        assert not lost
        kept = {row.id for at, row in self._rows.items() if at > self._kept.ack_level}
        after = self._pushed[self._kept.read_seq :]
        lost = [
            one.id
            for one in self._pushed
            if one not in after and one.id not in kept and one.id not in self.dispatched
        ]
        assert not lost, "a new owner would not find these tasks"

    def _landed(self) -> list[Trigger]:
        return [] if self.backlog._landed is None else self.backlog._landed.entries

    def finish(self) -> None:
        """Work without faults until everything is dispatched."""
        for _ in range(10 * len(self._pushed) + 100):
            for step in (self.add, self.write, self.ask, self.answer, self.take, self.ack):
                step(0)
                self.check()
        assert set(self.dispatched) == {one.id for one in self._pushed}
        assert not self._ready and not self._taken and not self.backlog.is_stored


STEPS = [
    "push",
    "push",
    "add",
    "write",
    "late",
    "ask",
    "answer",
    "take",
    "take",
    "ack",
    "ack",
    "take_back",
    "delete",
    "keep",
]
steps = st.tuples(st.sampled_from(STEPS), st.integers(0, 30))
steps_and_crashes = st.tuples(st.sampled_from([*STEPS, "crash"]), st.integers(0, 30))


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 10), st.lists(steps, max_size=120))
def test_every_task_is_dispatched_exactly_once_under_any_order_of_failures(capacity, steps) -> None:
    lane = Lane(capacity)
    for step, number in steps:
        getattr(lane, step)(number)
        lane.check()
    lane.finish()
    assert set(lane.dispatched.values()) <= {1}


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 10), st.lists(steps_and_crashes, max_size=120))
def test_the_owner_after_a_crash_dispatches_every_task_not_yet_dispatched(capacity, steps) -> None:
    lane = Lane(capacity)
    for step, number in steps:
        getattr(lane, step)(number)
        lane.check()
    lane.finish()


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 10])
def test_all_stored_tasks_are_dispatched_with_any_capacity(capacity: int) -> None:
    lane = Lane(capacity)
    for number in range(60):
        lane.push(number)
    lane.finish()
    assert lane.dispatched.total() == 60


# keys whose triggers the channel keeps ------------------------------------------------------------


def flooded(of_a: int, of_b: int = 0, capacity: int = 80) -> Backlog:
    """Make a backlog with triggers of a and b in memory, and more in the channel."""
    backlog = backlog_of(capacity)
    backlog.is_read_by_key = True
    add(backlog, [of_letter(f"a{n}") for n in range(of_a)])
    add(backlog, [of_letter(f"b{n}") for n in range(of_b)])
    return backlog


def chosen_of(
    backlog: Backlog, announced: str = "", found: str = "", unread: int = 2
) -> dict[str, int]:
    """Tell the backlog of keys with unread triggers; return which it asks for."""
    backlog.remember(announced, found)
    return dict(backlog.choose_keys(unread, 0))


def test_a_key_with_new_triggers_is_read_although_others_wait_for_room() -> None:
    backlog = flooded(90)
    backlog.remember((), "abc")
    assert not backlog.is_asking and not chosen_of(backlog)
    backlog.remember("n", ())
    assert backlog.is_asking
    assert [*chosen_of(backlog)] == ["n"]


def test_keys_that_are_due_wait_until_memory_has_room() -> None:
    backlog = backlog_of(80)
    backlog.is_read_by_key = True
    for n in range(2):
        add(backlog, [of_letter(f"{chr(1000 + key)}{n}") for key in range(35)])
    assert not chosen_of(backlog, found="bcz", unread=100) and not backlog.is_asking
    dispatch(backlog, 15)
    assert backlog.is_asking
    assert chosen_of(backlog, unread=100).keys() == {*"bcz"}


def test_the_turns_of_many_keys_found_at_one_time_are_spread_over_one_step() -> None:
    backlog = backlog_of(1000, weights={"heavy": 100.0})
    backlog.is_read_by_key = True
    keys = [f"k{n}" for n in range(400)]
    backlog.remember((), [*keys, "heavy"])
    chosen = backlog.choose_keys(401, 0)
    assert {key for key, _ in chosen} == {*keys, "heavy"}
    add(backlog, [trigger(f"{key} {n}", key=key) for key, count in chosen for n in range(count)])
    ran = [one.fairness_key for one in dispatch(backlog, 400)]
    for low in range(0, 400, 100):
        assert ran[low : low + 100].count("heavy") == pytest.approx(20, abs=8)
    light = [key for key in ran if key != "heavy"]
    assert len({*light}) == len(light)


def test_new_keys_beyond_their_credit_take_turns_with_the_keys_that_wait() -> None:
    backlog = backlog_of(10_000)
    backlog.is_read_by_key = True
    backlog.remember((), [f"k{n}" for n in range(500)])
    for key, _ in backlog.choose_keys(500, 0):
        add(backlog, [trigger(f"{key}:1", key=key)])
    new = [f"n{n}" for n in range(500)]
    backlog.remember(new, ())
    for key, _ in backlog.choose_keys(1000, 0):
        add(backlog, [trigger(f"{key}:1", key=key)])
    ran = [one.fairness_key[0] for one in dispatch(backlog, 500)]
    assert ran[:EARLY_CREDIT] == ["n"] * EARLY_CREDIT
    assert ran[EARLY_CREDIT:].count("k") == pytest.approx(220, abs=30)


def test_keys_that_are_due_do_not_wait_for_triggers_that_come_turns_later() -> None:
    backlog = flooded(80)
    assert chosen_of(backlog, found="bcd", unread=100).keys() == {*"bcd"}


def test_new_keys_take_a_quarter_of_memory_beyond_its_size() -> None:
    backlog = flooded(80)
    backlog.is_read_by_key = True
    new = "".join(chr(1000 + n) for n in range(40))
    assert chosen_of(backlog, announced=new, unread=100).keys() == {*new[:20]}
    add(backlog, [of_letter(f"{key}1") for key in new[:20]])
    assert not backlog.is_stored
    assert not backlog.is_asking and not chosen_of(backlog, unread=100)
    backlog.take(first(backlog, 2))
    assert backlog.is_asking
    assert chosen_of(backlog, unread=100).keys() == {*new[20:22]}


def test_keys_are_read_until_three_quarters_of_memory_are_full() -> None:
    backlog = backlog_of(80)
    count, found = 0, "ab"
    while "a" in (chosen := chosen_of(backlog, found=found)):
        for key, number in chosen.items():
            add(backlog, [of_letter(f"{key}{count + n}") for n in range(number)])
            count += number
        found = "".join(chosen)
        assert len(backlog) <= 80
    assert len(backlog) >= 60
    assert not backlog.is_stored


def test_a_key_whose_triggers_in_memory_soon_end_is_read_before_memory_is_half_empty() -> None:
    backlog = flooded(50, 5)
    assert [*chosen_of(backlog, found="ab")] == ["b"]
    add(backlog, [of_letter(f"b{n}") for n in range(5, 30)])
    assert not chosen_of(backlog, found="b")


def test_the_channel_is_asked_again_when_memory_is_half_empty_or_keys_come_to_an_end() -> None:
    backlog = flooded(60)
    chosen_of(backlog, found="a", unread=1)
    assert not backlog.is_asking
    done = first(backlog, 20)
    backlog.take(done)
    assert backlog.is_asking
    backlog = flooded(50, 5)
    backlog.remember((), "ab")
    assert backlog.is_asking


def test_more_triggers_are_read_of_a_key_of_greater_weight() -> None:
    backlog = backlog_of(80, weights={"b": 8.0})
    add(backlog, [of_letter(f"{key}0") for key in "acdefghijklmnopqrst"])
    add(backlog, [of_letter(f"{key}1") for key in "acdefghijklmnopqrst"])
    chosen = chosen_of(backlog, found="bz", unread=100)
    assert chosen == {"b": 8, "z": 1}


def test_a_key_that_is_remembered_twice_is_read_once() -> None:
    backlog = flooded(10)
    backlog.remember((), ["a", "b", "a"])
    assert sorted(key for key, _ in backlog.choose_all(2, 100)) == ["a", "b"]


def test_positions_of_triggers_read_by_key_do_not_move_the_position_of_the_lane() -> None:
    backlog = backlog_of()
    add(backlog, [of_letter("a1", seq=5)])
    backlog.is_read_by_key = True
    add(backlog, [of_letter("b1", seq=900)])
    assert (backlog.read_seq, backlog.highest_seq) == (5, 900)
    record = backlog.record(are_all_stored=True)
    later = backlog_of(record=record, range_id=2)
    assert (later.read_seq, later.highest_seq) == (5, 900)


# memory that shrinks ------------------------------------------------------------------------------


def test_a_smaller_memory_drops_only_what_the_store_has() -> None:
    backlog = backlog_of(capacity=20)
    backlog.add([of_letter(f"a{n:02}", seq=n) for n in range(16)])
    backlog.capacity = 4
    write = written(backlog.shrink())
    assert len(write.entries) == 16 == len(backlog)
    dropped = backlog.written(write).dropped
    assert ids(dropped) == " ".join(f"a{n:02}" for n in range(4, 16))
    assert ids(backlog.loaded()) == "a00 a01 a02 a03"
    assert not backlog.is_at_end


def test_what_left_a_smaller_memory_is_read_again_in_its_order() -> None:
    backlog = backlog_of(capacity=20)
    stored = add(backlog, [of_letter(f"a{n:02}", seq=n) for n in range(25)])
    backlog.capacity = 4
    shrunk = backlog.shrink()
    assert isinstance(shrunk, Changes) and len(backlog) == 4
    ran = []
    while len(backlog):
        taken = first(backlog)
        backlog.take(taken)
        backlog.ack(taken)
        ran += taken
        if (read := backlog.next_read()) is not None:
            above = [entry for entry in stored if entry.level > read.above]
            backlog.read(above[: read.limit])
    assert ids(ran) == ids(stored)


def test_a_memory_that_is_not_too_full_stays_as_it_is() -> None:
    backlog = backlog_of(capacity=20)
    backlog.add(triggers("a1 a2 a3 a4 a5"))
    backlog.capacity = 4
    assert backlog.shrink() == Changes()
    assert len(backlog) == 5
