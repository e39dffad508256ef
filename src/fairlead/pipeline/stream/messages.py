"""What the topic of attempts holds: one JSON object a message, an attempt or a mark; other programs
may read it too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fairlead.core.sharding.partitions import partition_of
from fairlead.errors import ConfigurationError
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.history_rows import RECORDED_FIELDS, recorded
from fairlead.pipeline.schema import SCHEMA_VERSION
from fairlead.ports.history import Position
from fairlead.ports.statements import Row


class Attempt(msgspec.Struct, frozen=True, tag_field="kind", tag="attempt"):
    """One attempt: what bronze.attempts has, under the same names, as far as a store can tell.
    Instants are microseconds since 1970 UTC. The message's key is the task's id."""

    store_id: str
    after: str
    """A place: every attempt of this store that belongs to this partition and stands up to there
    came before."""
    partitions: int
    """Of the topic: which one a task belongs to depends on it."""
    schema_version: int
    xid: int
    seq: int
    task_id: str
    attempt: int
    tries: int
    queue: str
    name: str
    partition: int
    """Of the queue."""
    priority: int
    fairness_key: str
    weight: float
    ordering_key: str | None
    submitted_at: int
    run_at: int
    ready_at: int | None
    triggered_at: int | None
    claimed_at: int | None
    started_at: int | None
    finished_at: int
    outcome: str
    next_state: str
    error_type: str | None
    error_text: str | None
    node: str | None
    version: int
    payload_bytes: int
    trigger_path: str
    unique_key_hash: int | None
    error_fp: int | None

    @property
    def place(self) -> Position:
        """Where it stands in its store."""
        return Position(self.xid, self.seq)


class Mark(msgspec.Struct, frozen=True, tag_field="kind", tag="mark"):
    """Everything of this store up to a place is in the topic; one such message goes into every
    partition."""

    store_id: str
    after: str
    """As of an attempt."""
    partitions: int
    schema_version: int
    through: str

    @property
    def place(self) -> Position:
        """Up to there everything is in the topic."""
        return Position.of(self.through)


Message = Attempt | Mark

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


class Sent(msgspec.Struct, frozen=True):
    """One message as it is given to Kafka."""

    partition: int
    key: str
    value: bytes


def topic_partition(task_id: str, partitions: int) -> int:
    """Which partition of the topic a task's attempts are in."""
    return partition_of(task_id, 0, partitions)


class Batch:
    """Rows of a store that follow each other, as messages: in each partition, each names the one
    before."""

    def __init__(self, store_id: str, after: Position, partitions: int) -> None:
        """`after`: everything up to there is in the topic already, and marked."""
        self._store_id = store_id
        self._last = [str(after)] * partitions

    def attempts(self, rows: Sequence[Row]) -> Iterator[Sent]:
        """The next ones: rows of ATTEMPT_FIELDS, in order."""
        count = len(self._last)
        for values in zip(*recorded(rows).values(), strict=True):
            task_id = values[_TASK_ID]
            n = topic_partition(task_id, count)
            message = Attempt(self._store_id, self._last[n], count, SCHEMA_VERSION, *values)
            self._last[n] = f"{message.xid}.{message.seq}"
            yield Sent(n, task_id, _encoder.encode(message))

    def marks(self, through: Position) -> Iterator[Sent]:
        """That everything up to there is in the topic; to be sent when that is so."""
        for n, after in enumerate(self._last):
            mark = Mark(self._store_id, after, len(self._last), SCHEMA_VERSION, str(through))
            yield Sent(n, self._store_id, _encoder.encode(mark))
            self._last[n] = str(through)


def told_of(attempts: Sequence[Attempt]) -> dict[str, Sequence[object]]:
    """TOLD_FIELDS of these, column by column."""
    rows = [msgspec.structs.astuple(attempt)[_BEFORE:] for attempt in attempts]
    return dict(zip(RECORDED_FIELDS, zip(*rows, strict=True), strict=True))


def read(value: bytes, where: str) -> Message:
    """Raises CheckFailed for what no relay has sent, and ConfigurationError when a newer Fairlead
    has; `where` is for people."""
    try:
        message: Message = _decoder.decode(value)
    except msgspec.DecodeError as error:
        raise CheckFailed(
            f"{where}: this is no message of `fairlead pipeline relay` ({error}): the topic is for"
            " its messages alone, give the relay another prefix"
        ) from None
    if message.schema_version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"{where} was written under schema version {message.schema_version}; this Fairlead"
            f" knows up to {SCHEMA_VERSION}: upgrade it"
        )
    return message


_BEFORE = 4
"""Fields of a message before the recorded fields of an attempt."""
_TASK_ID = RECORDED_FIELDS.index("task_id")

assert (
    Attempt.__struct_fields__[_BEFORE:] == RECORDED_FIELDS
)  # messages are made and taken apart by position
