"""The messages of the topic of attempts: one JSON object each, an attempt or a mark. Other programs
may read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fairlead.core.sharding.partitions import partition_of
from fairlead.errors import ConfigurationError
from fairlead.model.fields import BigInt, Int, PositionText, Small
from fairlead.model.reading import Reader, json_reader
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.history_rows import RECORDED_FIELDS, recorded
from fairlead.pipeline.schema import SCHEMA_VERSION
from fairlead.ports.history import Position
from fairlead.ports.statements import Row


class Attempt(msgspec.Struct, frozen=True, tag_field="kind", tag="attempt"):
    """One attempt with the columns of bronze.attempts that a store records. Instants are
    microseconds since the epoch. The key of the message is the id of the task."""

    store_id: str
    after: PositionText
    """Position up to which all attempts of this store in this partition were sent before."""
    partitions: int
    """Number of partitions of the topic, which decides the partition of a task."""
    schema_version: int
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
    schema_version: int
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
            message = Attempt(self._store_id, self._last[n], count, SCHEMA_VERSION, *values)
            self._last[n] = f"{message.xid}.{message.seq}"
            yield Sent(n, task_id, _encoder.encode(message))

    def marks(self, through: Position) -> Iterator[Sent]:
        """Yield a mark for each partition, to send when Kafka has confirmed all attempts up to
        `through`."""
        for n, after in enumerate(self._last):
            mark = Mark(self._store_id, after, len(self._last), SCHEMA_VERSION, str(through))
            yield Sent(n, self._store_id, _encoder.encode(mark))
            self._last[n] = str(through)


def recorded_of(attempts: Sequence[Attempt]) -> dict[str, Sequence[object]]:
    """Return the RECORDED_FIELDS of the attempts, column by column."""
    rows = [msgspec.structs.astuple(attempt)[_BEFORE:] for attempt in attempts]
    columns = zip(*rows, strict=True) if rows else ((),) * len(RECORDED_FIELDS)
    return dict(zip(RECORDED_FIELDS, columns, strict=True))


def read(value: bytes, where: str) -> Message:
    """Return the content of a message. Raise CheckFailed if no relay sent the message, and
    ConfigurationError if a newer Fairlead sent it. `where`: location of the message, for errors."""
    try:
        message = _decode(value)
    except msgspec.DecodeError as error:
        raise CheckFailed(
            f"{where}: this is no message of `fairlead pipeline relay` ({error}): the topic is for"
            " its messages alone, give the relay another prefix"
        ) from None
    if message.schema_version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"{where} was written under schema version {message.schema_version}; this Fairlead"
            f" knows up to {SCHEMA_VERSION}: upgrade Fairlead"
        )
    return message


_BEFORE = 4
"""Fields of a message before the recorded fields of an attempt."""
_TASK_ID = RECORDED_FIELDS.index("task_id")

assert (
    Attempt.__struct_fields__[_BEFORE:] == RECORDED_FIELDS
)  # messages are made and taken apart by position
