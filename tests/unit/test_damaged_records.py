"""Readers of records that another process may have written: damaged records raise the documented error
of the reader, and no other."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from fairlead.core.levels.backlog import Backlog, Timing
from fairlead.core.limits import permits, sharded_permits
from fairlead.core.payload import unpack
from fairlead.declare.arguments import Arguments
from fairlead.errors import InvalidTask
from fairlead.model import (
    LaneRecord,
    Level,
    PartitionKey,
    TaskKey,
    Trigger,
    read_lanes,
)
from fairlead.model.peer import Grant, Result, Spare, Want
from fairlead.ports import notification, owner_record, task_log
from fairlead.ports.notification import Lane, Notification
from fairlead.ports.run_history import RunCursor, RunPosition, read_cursor
from tests.builders import task
from tests.damage import Reader, damaged, try_damaged

ID = "01977420-e271-7173-b85e-7c76d9bd202d"
TRIGGER = Trigger(ID, 3, "mail", 2, "send", 1, "acme", 0.5, "order-7", seq=881, order_at=17)
TASK = task(ID, ordering_key="k", unique_key="u", keep_result=True, context='{"a":"b"}')
DIGITS = ("0", "_1", " ", "\u0664", "9999999999", "9" * 5000, "a")


def kafka_triggers() -> Reader:
    kafka = pytest.importorskip("fairlead.backends.kafka.messages", reason="needs the extra kafka")
    return Reader(
        lambda record: kafka.decode(PartitionKey("mail", 2), record),
        [kafka.encode_trigger(TRIGGER), kafka.encode_hint(Lane("mail", 2, 7, 99))],
        (msgspec.DecodeError,),
    )


def sharded_messages() -> Reader:
    messages = pytest.importorskip("fairlead.sharded.message", reason="needs the extra redis")

    def read(record: bytes) -> object:
        """Read the record in each place of a message."""
        for name in (b"fairlead:key", b"fairlead:deadline", b"fairlead:context", record, b"n"):
            flat = [name, record]
            found = messages.message((b"3", b"1767225600000-0", 1, 1767225600000, flat))
            letter = [b"id", b"3/1767225600000-0", b"deliveries", b"1", *flat]
            messages.removed_message((b"1767225600000-0", letter))
        return found

    return Reader(read, [b'{"traceparent": "00-1-2"}', b"1767225600000"], ())


def notifications() -> Reader:
    good = [
        Notification(),
        Notification([Lane("mail", 2, 7, 99)], 17, True, [ID], ["log"], [TRIGGER]),
        Notification(peer=Spare("n", [("mail", "send")])),
        Notification(peer=Want("o", "n", 1, 7, [("mail", "send", 3)])),
        Notification(peer=Want("o", "n", 2, 0, [], [Result(ID, 1, "ended", 3)])),
        Notification(peer=Grant("n", "o", [TRIGGER])),
    ]

    def read(record: bytes) -> object:
        # Pipes carry bytes, and PostgreSQL carries text.
        text = record.decode(errors="surrogateescape")
        found = [notification.decode(record), notification.decode(text)]
        return [notification.pieces(each, 4000) for each in found]

    return Reader(read, [notification.encode(each) for each in good], ())


def leases() -> Reader:
    leases = pytest.importorskip(
        "fairlead.backends.zookeeper.leases", reason="needs the extra zookeeper"
    )
    random, owners = Random(3), [b'"node-1"', b'"a"']

    def read(record: bytes) -> object:
        good = leases.held_znode("partition/mail/1", 4)
        foreign = (record.decode(errors="replace"), f"{good}{random.choice(DIGITS)}", f"%;{good}")
        node = good if record in owners else random.choice((good, *foreign))
        found = leases.decode_lease(node, record, 7)
        assert node == leases.held_znode(found.name, found.range_id)
        assert found.owner and 0 < found.range_id < 1 << 31
        return found

    return Reader(read, owners, (ValueError,))


def permit_ledgers() -> Reader:
    share = permits.Share(2, 3, 4)
    good = [
        permits.PermitLedger({}, 3),
        permits.PermitLedger({"a": permits.Holding(7, {"": share, "k": share}, True)}, 9),
        permits.PermitLedger({"b": permits.Holding(7, {"k": share})}, 9, True),
    ]

    def read(record: bytes) -> object:
        ledger = permits.decode(record)
        for steps in (
            sharded_permits.held_permits(),
            _round(sharded_permits.Permits("me", 30.0)),
            _round(sharded_permits.Permits("a", 30.0)),
        ):
            _follow(steps, record)
        held = sum(s.held for holding in ledger.nodes.values() for s in holding.shares.values())
        assert held >= 0
        return permits.encode(ledger)

    return Reader(read, [permits.encode(each) for each in good], (msgspec.DecodeError,))


def _round(mine: Any) -> Any:
    mine.take("k", 5, 0.0)
    return mine.round("", lambda: 1.0)


def _follow(steps: Any, record: bytes) -> None:
    """Carry out steps on a ledger of which every shard has this record at first."""
    shards: dict[str, bytes] = {}
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except (StopIteration, sharded_permits.LedgerFull):
            return
        if isinstance(step, sharded_permits.ReadShard):
            result = shards.get(step.shard, b"" if step.shard else record), 1
        elif isinstance(step, sharded_permits.WriteShard):
            assert permits.decode(step.ledger) is not None
            shards[step.shard] = step.ledger
            result = True
        else:
            result = set()


def task_logs() -> Reader:
    from fairlead.backends.sql.schedule import attempt_row
    from fairlead.model import RunEnd, ScheduledTask
    from fairlead.ordered.accept import check

    good = [
        task_log.Submit(TASK),
        task_log.Drop("mail", 2, TaskKey(5, "k", "u"), "me", 17),
    ]

    def read(record: bytes) -> object:
        found = task_log.decode(record)
        task_log.decode(record.decode(errors="surrogateescape"))
        if found is None:
            return None
        try:
            check(found, PartitionKey("mail", 2))
        except InvalidTask:
            return None
        assert task_log.partition_of(found) == ("mail", 2)
        if isinstance(found, task_log.Submit):
            end = RunEnd(ScheduledTask.of(found.task), 1, 1, "DONE", "DONE", 5)
            for value in attempt_row(end):
                assert not isinstance(value, int) or -(1 << 63) <= value < 1 << 63
                assert not isinstance(value, str) or "\x00" not in value
        return task_log.encode(found)

    return Reader(read, [task_log.encode(each) for each in good], ())


def lane_records() -> Reader:
    good = [
        LaneRecord(),
        LaneRecord(Level(5, 1), Level(6, 2), Level(7, 3), 8, 1, [("a", 6)]),
    ]

    def read(record: bytes) -> object:
        text = record.decode(errors="surrogateescape")
        lanes = read_lanes([(1, text)], "a table", PartitionKey("q", 0))
        return [_serve(lane) for lane in lanes.values()], msgspec.json.encode(lanes)

    return Reader(read, [msgspec.json.encode(each) for each in good], ())


def _serve(record: LaneRecord) -> object:
    """Give levels to some triggers in a backlog that continues from the record."""
    backlog = Backlog(3, record, 100, Timing())
    if backlog.can_add:
        backlog.add([msgspec.structs.replace(TRIGGER, seq=seq) for seq in (1, 900)])
        assert backlog.write is not None
        for entry in backlog.write.entries:
            assert entry.level is not None and max(entry.level) < 1 << 63
        backlog.written(0.0)
    backlog.next_read()
    return msgspec.json.encode(backlog.record())


def owner_records() -> Reader:
    good = owner_record.encode(owner_record.OwnerRecord("id", "SQLite"))
    return Reader(owner_record.decode, [good], ())


def arguments() -> Reader:
    def handler(name: str, count: int = 1, tags: list[str] | None = None) -> None:
        """Do nothing."""

    types = Arguments(handler, "send")
    good = [b'{"name":"a","count":3,"tags":["x"]}']

    def read(record: bytes) -> object:
        for form in ("json", "json+zlib", "other"):
            try:
                types.decode(unpack(record, form))
            except InvalidTask:
                if form == "json":
                    raise
        return None

    return Reader(read, good, (InvalidTask,))


def schedules() -> Reader:
    """Return a reader of the tasks and records of ordered queues in a store."""
    from fairlead.backends.sql import schedule_rows
    from fairlead.backends.sql.schedule import attempt_row
    from fairlead.model import RunEnd, ScheduleRecord

    partition, key = PartitionKey("mail", 2), TaskKey(5, "k", "u")
    good = [msgspec.json.encode(TASK), msgspec.json.encode(ScheduleRecord())]

    def read(record: bytes) -> object:
        text = record.decode(errors="surrogateescape")
        found = schedule_rows.decode_task(partition, key, text[:36], text, lambda: (1, 1, 5))
        assert found.key == key
        for value in attempt_row(RunEnd(found, 1, 1, "DONE", "DONE", 5)):
            assert not isinstance(value, int) or -(1 << 63) <= value < 1 << 63
        return msgspec.json.encode(schedule_rows.decode_record(partition, text))

    return Reader(read, good, ())


def cassandra_rows() -> Reader:
    """Return a reader of the tasks and counts of ordered queues in Cassandra."""
    pytest.importorskip("cassandra", reason="needs the extra cassandra")
    from fairlead.backends.cassandra.schedule_scans import has_run, scheduled_of

    good = [msgspec.json.encode((ID, 3, 2, 5)), msgspec.json.encode(TASK)]

    def read(record: bytes) -> object:
        text = record.decode(errors="surrogateescape")
        for row in ((5, "k", "u", ID, text, text, False), (5, "k", "u", ID, good[1], text, False)):
            scheduled_of(PartitionKey("mail", 2), row)
        return has_run(ID, text)

    return Reader(read, good, ())


def run_histories() -> Reader:
    """Return a reader of runs in Cassandra on their way to the lake."""
    history = pytest.importorskip(
        "fairlead.backends.cassandra.run_history", reason="needs the extra cassandra"
    )
    rows = pytest.importorskip("fairlead.pipeline.history_rows", reason="needs the extra pipeline")
    from fairlead.backends.sql.schedule import attempt_row
    from fairlead.model import RunEnd, ScheduledTask

    end = RunEnd(ScheduledTask.of(TASK), 1, 1, "DONE", "DONE", 5)
    good = [msgspec.json.encode(attempt_row(end))]
    assert history.read_run(PartitionKey("mail", 2), (5, ID, 1), good[0].decode()) is not None

    def read(record: bytes) -> object:
        text = record.decode(errors="surrogateescape")
        found = history.read_run(PartitionKey("mail", 2), (5, ID, 1), text)
        return None if found is None else rows.attempts_table("store", [(0, 5, *found)], 1)

    return Reader(read, good, ())


def run_cursors() -> Reader:
    """Return a reader of the cursors of a lake in the history in Cassandra."""
    cursor = RunCursor(5, 9, RunPosition(0, 0, 7, ID, 1))
    return Reader(read_cursor, [str(cursor).encode()], (msgspec.DecodeError,))


READERS = [
    schedules,
    cassandra_rows,
    run_histories,
    run_cursors,
    arguments,
    kafka_triggers,
    sharded_messages,
    notifications,
    leases,
    permit_ledgers,
    task_logs,
    lane_records,
    owner_records,
]


@pytest.mark.fuzz
@pytest.mark.parametrize("make", READERS)
def test_a_damaged_record_raises_nothing_but_the_documented_error(
    make: Callable[[], Reader],
) -> None:
    try_damaged(make(), make.__name__)


def test_json_of_the_generator_reaches_deep_values() -> None:
    good = [json.dumps({"a": [1, {"b": "c"}]}).encode()]
    found = set(damaged(good, 1000, 7))
    assert len(found) > 500 and b'{"a": [1, {"b": -1}]}' in found


def test_a_small_payload_that_expands_without_end_is_refused() -> None:
    whole, bomb = zlib.compress(bytes(1 << 20)), zlib.compress(bytes((1 << 20) + 1))
    assert len(unpack(whole, "json+zlib", 1 << 20)) == 1 << 20
    with pytest.raises(InvalidTask, match="more than 1,048,576 bytes"):
        unpack(bomb, "json+zlib", 1 << 20)
    for cut in (b"", whole[:5], whole[:-1]):
        with pytest.raises(InvalidTask, match="cannot be decompressed"):
            unpack(cut, "json+zlib")
