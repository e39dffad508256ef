"""Messages of a sharded queue: to be written, read, or removed from delivery."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from fairlead.clock import to_datetime, to_micros
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT
from fairlead.model.reading import json_reader
from fairlead.sharded.errors import InvalidMessage

Value = bytes | str | int | float
"""Content of a field; readers get bytes, as Redis keeps them."""

Field = bytes | str | int | float

LATER = "later"
"""The stream in the id of a message whose time has not come."""

MOST_FIELDS = 1000

MOST_MESSAGE_BYTES = 100_000_000
"""Bytes of the fields of one message. By default, Redis takes 512 MB in one argument."""

RESERVED = "fairlead:"
"""The beginning of the names of fields that belong to the queue itself."""

_read_context = json_reader(dict[str, str])

_ID = re.compile(
    r"(default|0|[1-9][0-9]{0,5})/([0-9]{1,20}-[0-9]{1,20})|(later)/([0-9a-zA-Z_.:-]{1,200})"
)


class Message(msgspec.Struct, frozen=True):
    """One message, claimed by the consumer that has read or reclaimed it."""

    id: str
    """Stream and entry, such as `12/1767225600000-0`. Messages of the plain stream have the
    stream `default`."""
    values: Mapping[str, bytes]
    shard_key: str
    deliveries: int
    """Number of deliveries, this one included."""
    waited: float
    """Seconds from the write to this delivery, by the server's clock."""
    deadline: datetime | None
    context: Mapping[str, str] = {}
    """A map given by the writer, such as the trace of the message."""

    @property
    def stream(self) -> str:
        """The stream of the message, for `prefer_stream`."""
        return self.id.partition("/")[0]


class NewMessage(msgspec.Struct, frozen=True):
    """A message to be written with others."""

    values: Mapping[str, Value]
    shard_key: str = ""
    deadline: datetime | None = None
    weight: float = 1.0
    at: datetime | None = None
    """Time before which no reader gets the message; None means at once."""
    context: Mapping[str, str] | None = None


class Entry(NamedTuple):
    """A message in the form that the scripts take."""

    fields: Sequence[bytes | str]
    """Fields and values, alternating."""
    shard_key: str
    at: int | str = ""
    """Milliseconds since 1970, or '' for now."""
    ticket: str = ""
    """A name that no other message has, if the message is for later."""


class RemovedMessage(msgspec.Struct, frozen=True):
    """A message removed from delivery: a dead letter, or a cordoned message whose deadline had
    passed."""

    id: str
    """The id that the message had in the queue."""
    values: Mapping[str, bytes]
    shard_key: str
    deliveries: int
    """Number of deliveries; 0 if there was none."""
    at: datetime
    """Time of the removal."""
    deadline: datetime | None
    position: str = ""
    """Position among the dead letters or cordoned messages of the queue, for the next page."""


class DeadLetterHead(RemovedMessage, frozen=True):
    """A dead letter without its large fields: `values` has only fields of at most 1000 bytes, 3000
    bytes in all."""

    size: int = 0
    """Bytes of all fields of the dead letter."""


def entry(message: NewMessage) -> Entry:
    """Return the message in the form that the scripts take. Raise InvalidMessage if it cannot be
    written."""
    if not message.values:
        raise InvalidMessage("a message needs at least one field")
    if len(message.values) > MOST_FIELDS:
        raise InvalidMessage(
            f"{len(message.values)} fields: at most {MOST_FIELDS}; put them into one, as JSON for"
            " example"
        )
    for name in message.values:
        if name.startswith(RESERVED):
            raise InvalidMessage(
                f"field {name!r}: names that begin with {RESERVED!r} are reserved for the queue"
            )
    check_weight(message.weight)
    fields: list[bytes | str] = [f"{RESERVED}key", message.shard_key]
    if message.weight != 1.0:
        fields += [f"{RESERVED}weight", repr(float(message.weight))]
    if message.deadline is not None:
        fields += [f"{RESERVED}deadline", str(millis("deadline", message.deadline))]
    if message.context:
        fields += [f"{RESERVED}context", msgspec.json.encode(message.context)]
    for name, value in message.values.items():
        fields += (name, text_of(value))
    if sum(map(len, fields)) > MOST_MESSAGE_BYTES:
        raise InvalidMessage(
            f"a message of more than {MOST_MESSAGE_BYTES:,} bytes; store large data elsewhere"
        )
    if message.at is None:
        return Entry(fields, message.shard_key)
    return Entry(fields, message.shard_key, millis("at", message.at), uuid.uuid4().hex)


def text_of(value: object) -> bytes | str:
    """Return a value as Redis keeps it. Raise InvalidMessage if it cannot keep the value."""
    if type(value) in (bytes, str):
        return value  # type: ignore[return-value]
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value) if isinstance(value, float) else str(value)
    raise InvalidMessage(
        f"a value of type {type(value).__name__}: give bytes, text or a number, or encode it"
    )


def check_weight(weight: float) -> None:
    """Raise InvalidMessage if the weight is out of range."""
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise InvalidMessage(f"weight {weight!r}: use {MIN_WEIGHT} to {MAX_WEIGHT}")


def millis(what: str, instant: datetime) -> int:
    """Return milliseconds since 1970. `what`: the field, for the error. Raise InvalidMessage for a
    naive datetime, or one before 1970."""
    try:
        found = to_micros(instant) // 1000
    except ValueError as error:
        raise InvalidMessage(f"{what}: {error}") from error
    if found < 0:
        raise InvalidMessage(f"{what} {instant.isoformat()} is before 1970")
    return found


def position(id: str) -> tuple[str, str]:
    """Return stream and entry of a message's id. Raise InvalidMessage if the id is malformed."""
    found = _ID.fullmatch(id)
    if found is None:
        raise InvalidMessage(
            f"{id!r} is no id of a message: give an id that write() or read() returned"
        )
    return found[1] or found[3], found[2] or found[4]


def id_of(stream: bytes, at: bytes) -> str:
    """Return the id of a written message. A message for later has no stream."""
    return f"{stream.decode() if stream else LATER}/{at.decode()}"


def message(found: Sequence[object]) -> Message:
    """Return the message that a script has returned as stream, entry, deliveries, now in
    milliseconds, and alternating fields and values."""
    stream, entry_id, deliveries, now, flat = found
    values, own = _split(flat)
    at = _text(entry_id)
    return Message(
        f"{_text(stream)}/{at}",
        values,
        own.get("key", b"").decode(errors="replace"),
        int(_text(deliveries)),
        max(0, int(_text(now)) - int(at.partition("-")[0])) / 1000,
        _instant(own.get("deadline")),
        _context(own.get("context")),
    )


def removed_message(found: Sequence[object]) -> RemovedMessage:
    """Return the removed message of an entry of the dead-letter stream, or of the stream of
    cordoned messages."""
    return RemovedMessage(**_removed(found))


def letter_head(found: Sequence[object]) -> DeadLetterHead:
    """Return the head of an entry of the stream of heads."""
    _, flat = found
    assert isinstance(flat, list)
    return DeadLetterHead(**_removed(found), size=int(flat[5]))


def _removed(found: Sequence[object]) -> dict[str, Any]:
    entry_id, flat = found
    assert isinstance(flat, list)
    values, own = _split(flat)
    position = _text(entry_id)
    return {
        # The script puts id and deliveries first, since other writers may use the same field names.
        "id": flat[1].decode(),
        "values": values,
        "shard_key": own.get("key", b"").decode(errors="replace"),
        "deliveries": int(flat[3]),
        "at": to_datetime(int(position.partition("-")[0]) * 1000),
        "deadline": _instant(own.get("deadline")),
        "position": position,
    }


def _split(flat: object) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the user's fields, and the queue's own fields without their prefix."""
    assert isinstance(flat, list)
    values: dict[str, bytes] = {}
    own: dict[str, bytes] = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        text = name.decode(errors="surrogateescape")
        if text.startswith(RESERVED):
            own[text.removeprefix(RESERVED)] = value
        else:
            values[text] = value
    return values, own


def _instant(deadline: bytes | None) -> datetime | None:
    # Another writer may have put something else there, which the scripts ignore too.
    return (
        to_datetime(int(deadline) * 1000)
        if deadline and re.fullmatch(rb"[0-9]{1,14}", deadline)
        else None
    )


def _context(found: bytes | None) -> dict[str, str]:
    if found is None:
        return {}
    try:
        return _read_context(found)
    except msgspec.DecodeError:
        return {}  # another writer may have put something else there


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
