"""The messages of the topic of attempts: one JSON object each, an attempt or a mark. Other programs
may read them. Pure.

Relays send the attempts of a store in order, and repeat those without confirmation; several relays
may run at once and crash. Each message names the position `after`, up to which all attempts of its
partition were sent before. A message is new if the reader has reached `after` but not the message's
own position. A repeated message is dropped. An early message is dropped too, because its relay will
send it again. A relay also sends marks: a mark is a message that names a position up to which the
topic has all attempts, so the next mark detects a lost message. tests/unit/test_high_water.py tries
all ways in which relays may crash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from fairlead.core.sharding.partitions import partition_of
from fairlead.errors import ConfigurationError
from fairlead.model.fields import BigInt, Int, PositionText, Small
from fairlead.model.reading import Reader, json_reader
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.history_rows import RECORDED_FIELDS, by_column, recorded
from fairlead.ports.history import START, Position
from fairlead.ports.statements import Row


class Attempt(msgspec.Struct, frozen=True, tag_field="kind", tag="attempt"):
    """One attempt with the columns of bronze.attempts that a store records. Instants are
    microseconds since the epoch. The key of the message is the id of the task."""

    store_id: str
    after: PositionText
    """Position up to which all attempts of this store in this partition were sent before."""
    partitions: int
    """Number of partitions of the topic, which decides the partition of a task."""
    xid: BigInt
    seq: BigInt
    task_id: str
    attempt: Int
    tries: Int
    queue: str
    name: str
    partition: Int
    """Partition of the queue."""
    priority: Small
    fairness_key: str
    weight: float
    ordering_key: str | None
    submitted_at: BigInt
    run_at: BigInt
    ready_at: BigInt | None
    triggered_at: BigInt | None
    claimed_at: BigInt | None
    started_at: BigInt | None
    finished_at: BigInt
    outcome: str
    next_state: str
    error_type: str | None
    error_text: str | None
    node: str | None
    version: Int
    payload_bytes: Int
    trigger_path: str
    unique_key_hash: BigInt | None
    error_fp: BigInt | None

    @property
    def position(self) -> Position:
        """Position in the store."""
        return Position(self.xid, self.seq)


class Mark(msgspec.Struct, frozen=True, tag_field="kind", tag="mark"):
    """Mark that the topic has all attempts of this store up to a position; sent to every
    partition."""

    store_id: str
    after: PositionText
    """Position up to which all attempts of this store in this partition were sent before."""
    partitions: int
    through: PositionText

    @property
    def position(self) -> Position:
        """Position up to which all attempts are in the topic."""
        return Position.of(self.through)


Message = Attempt | Mark

_encoder = msgspec.json.Encoder()
_decode: Reader[Message] = json_reader(Message)  # type: ignore[arg-type]


class Sent(msgspec.Struct, frozen=True):
    """One message for Kafka."""

    partition: int
    key: str
    value: bytes


def topic_partition(task_id: str, partitions: int) -> int:
    """Return the partition of the topic for the attempts of a task."""
    return partition_of(task_id, 0, partitions)


class MessageBatch:
    """Consecutive rows of a store as messages; each message names the position of the message
    before it in its partition."""

    def __init__(self, store_id: str, after: Position, partitions: int) -> None:
        """`after`: position up to which all attempts are in the topic and marked."""
        self._store_id = store_id
        self._last = [str(after)] * partitions

    def attempts(self, rows: Sequence[Row]) -> Iterator[Sent]:
        """Yield messages of the next rows of ATTEMPT_FIELDS, in order."""
        count = len(self._last)
        for values in zip(*recorded(rows).values(), strict=True):
            task_id = values[_TASK_ID]
            n = topic_partition(task_id, count)
            message = Attempt(self._store_id, self._last[n], count, *values)
            self._last[n] = f"{message.xid}.{message.seq}"
            yield Sent(n, task_id, _encoder.encode(message))

    def marks(self, through: Position) -> Iterator[Sent]:
        """Yield a mark for each partition, to send when Kafka has confirmed all attempts up to
        `through`."""
        for n, after in enumerate(self._last):
            mark = Mark(self._store_id, after, len(self._last), str(through))
            yield Sent(n, self._store_id, _encoder.encode(mark))
            self._last[n] = str(through)


def recorded_of(attempts: Sequence[Attempt]) -> dict[str, Sequence[object]]:
    """Return the RECORDED_FIELDS of the attempts, column by column."""
    rows = [msgspec.structs.astuple(attempt)[_BEFORE:] for attempt in attempts]
    return by_column(RECORDED_FIELDS, rows)


def read(value: bytes, where: str, partitions: int | None = None) -> Message:
    """Return the content of a message. `where`: location of the message, for errors. `partitions`:
    number of partitions that the topic now has.

    Raise CheckFailed if no relay sent the message, and ConfigurationError if a relay
    that knew another number of partitions sent it.
    """
    try:
        message = _decode(value)
    except msgspec.DecodeError as error:
        raise CheckFailed(
            f"{where}: this is no message of `fairlead pipeline relay` ({error}): the topic is for"
            " its messages alone, give the relay another prefix"
        ) from None
    if partitions not in (None, message.partitions):
        raise ConfigurationError(
            f"{where}: the topic had {message.partitions} partitions and now has {partitions}, so"
            " the attempts of one task are no longer in one partition; relay to another prefix, or"
            " delete the topic and create it again"
        )
    return message


class HighWater:
    """High-water marks of one partition, by store."""

    def __init__(self, read: Mapping[str, Position]) -> None:
        self.positions: defaultdict[str, Position] = defaultdict(lambda: START, read)
        self.doubles = 0
        """Number of repeated attempts."""
        self.early = 0
        """Number of attempts that came before an earlier attempt. The relay has got an error for
        the earlier attempt, and will send both again."""

    def takes(self, store_id: str, position: Position, after: Position) -> bool:
        """Return whether this attempt is new, and count it as read."""
        reached = self.positions[store_id]
        if position <= reached:
            self.doubles += 1
            return False
        if after > reached:
            self.early += 1
            return False
        self.positions[store_id] = position
        return True

    def passes(self, store_id: str, through: Position, after: Position) -> None:
        """Record a mark. Raise CheckFailed when attempts up to `through` are missing."""
        reached = self.positions[store_id]
        if through <= reached:
            return
        if after > reached:
            raise CheckFailed(
                f"attempts of store {store_id} after {reached} and up to {after} were sent, but the"
                " topic does not have them"
            )
        self.positions[store_id] = through


_BEFORE = 3
"""Fields of a message before the recorded fields of an attempt."""
_TASK_ID = RECORDED_FIELDS.index("task_id")

assert (
    Attempt.__struct_fields__[_BEFORE:] == RECORDED_FIELDS
)  # messages are made and taken apart by position
