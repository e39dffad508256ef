"""The fair backlog: the entries in memory, the entries only in the store, and the ack level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.core.fair.strides import STRIDE_SCALE
from fairlead.core.levels.backlog import Backlog, BacklogWrite, Changes, Timing
from fairlead.core.levels.counters import Counters
from fairlead.core.levels.levels import FIRST_PASS
from fairlead.core.levels.passes import Passes
from fairlead.model import LaneRecord, Level, Trigger
from tests.builders import trigger


def of_letter(id: str, **fields: Any) -> Trigger:
    """Return a trigger whose key is the first letter of its id."""
    return trigger(id, key=id[0], **fields)


def triggers(ids: str) -> list[Trigger]:
    """Return triggers for names such as `a1 a2 b1`; the letter is the key."""
    return [of_letter(id) for id in ids.split()]


def ids(found: Sequence[Trigger]) -> str:
    return " ".join(one.id for one in found)


def backlog_of(
    capacity: int = 10,
    record: LaneRecord | None = None,
    range_id: int = 1,
    timing: Timing = Timing(),
) -> Backlog:
    """Make a backlog without a record, for a lane that was never stored."""
    return Backlog(
        range_id,
        record or LaneRecord(),
        Passes(Counters()),
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


# take and take back ---------------------------------------------------------------------------


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
