"""The fair backlog: the entries in memory, the entries only in the store, and the ack level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.core.fair.strides import STRIDE_SCALE
from fairlead.core.levels.backlog import Backlog, Changes, Timing
from fairlead.core.levels.levels import FIRST_PASS
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
        capacity,
        timing,
        is_new=record is None,
    )


def land(backlog: Backlog) -> tuple[list[Trigger], Changes]:
    """Let the write that has begun land; return its entries and the changes."""
    assert backlog.write is not None
    return backlog.write.entries, backlog.written(0.0)


def add(backlog: Backlog, found: Sequence[Trigger]) -> list[Trigger]:
    """Level triggers and let a write land at once; return the entries that were written."""
    backlog.add(found)
    return [] if backlog.write is None else land(backlog)[0]


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


# virtual time -------------------------------------------------------------------------------------


def test_a_few_triggers_that_a_limit_holds_back_do_not_hold_back_the_virtual_time() -> None:
    """A flood that arrives would otherwise get all of the levels that others have passed."""
    backlog = backlog_of(1000)
    backlog.add([of_letter("h1", name="held"), *(of_letter(f"a{n}") for n in range(400))])
    for _ in range(3):
        free = [one for one in backlog.loaded() if one.name == "pay"][:100]
        backlog.take(free)
        backlog.ack(free)
    (held, x1) = backlog.loaded()[:1] + list(backlog.add(triggers("x1")).added)
    assert backlog.ack_level < level(held) and level(held).pass_ == FIRST_PASS
    assert 299 * STRIDE_SCALE <= level(x1).pass_ < 350 * STRIDE_SCALE


# deletes and records ------------------------------------------------------------------------------


def test_dispatched_entries_are_deleted_after_a_number_of_acks_or_seconds() -> None:
    timing = Timing(delete_seconds=15, delete_acks=3)
    backlog = backlog_of(4, timing=timing)
    add(backlog, triggers("a0 a1 a2 a3 a4 a5"))
    assert backlog.next_delete(100.0) is None, "nothing is below the ack level"
    dispatch(backlog, 2)
    assert backlog.next_delete(114.9) is None
    assert backlog.next_delete(115.0) == backlog.ack_level
    backlog.upkeep.deleted(backlog.ack_level, 115.0)
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
    backlog.upkeep.recorded(record, 160.0)
    assert backlog.next_record(1000.0) is None, "nothing has changed"
    dispatch(backlog)
    assert backlog.next_record(219.0) is None
    assert backlog.next_record(220.0) is not None


# memory that shrinks ------------------------------------------------------------------------------


def test_a_smaller_memory_drops_only_what_the_store_has() -> None:
    backlog = backlog_of(capacity=20)
    backlog.add([of_letter(f"a{n:02}", seq=n) for n in range(16)])
    backlog.capacity = 4
    backlog.shrink()
    assert len(backlog) == 16
    entries, (_, dropped) = land(backlog)
    assert len(entries) == 16
    assert ids(dropped) == " ".join(f"a{n:02}" for n in range(4, 16))
    assert ids(backlog.loaded()) == "a00 a01 a02 a03"
    assert not backlog.is_at_end


def test_what_left_a_smaller_memory_is_read_again_in_its_order() -> None:
    backlog = backlog_of(capacity=20)
    stored = add(backlog, [of_letter(f"a{n:02}", seq=n) for n in range(25)])
    backlog.capacity = 4
    backlog.shrink()
    assert backlog.write is None and len(backlog) == 4
    ran = []
    while len(backlog):
        taken = first(backlog)
        backlog.take(taken)
        backlog.ack(taken)
        ran += taken
        if (read := backlog.next_read()) is not None:
            above = [entry for entry in stored if entry.level > read.above]
            backlog.read(read, above[: read.limit])
    assert ids(ran) == ids(stored)
