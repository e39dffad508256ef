"""A message as it is written, read, and listed when it was set aside."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Literal, NamedTuple

import msgspec

from fairlead.backends.redis.sharded.errors import InvalidMessage
from fairlead.clock import to_datetime, to_micros
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

Value = bytes | str | int | float
"""What a field may hold; it is read as bytes, as Redis keeps it."""

Field = bytes | str | int | float

LATER = "later"
"""Stands for the stream in the id of a message whose time has not come."""

MOST_FIELDS = 1000

RESERVED = "fairlead:"
"""Fields of an entry that begin so are the queue's own."""

_ID = re.compile(
    r"(default|0|[1-9][0-9]{0,5})/([0-9]{1,20}-[0-9]{1,20})|(later)/([0-9a-zA-Z_.:-]{1,200})"
)


class Message(msgspec.Struct, frozen=True):
    """One message, claimed by the consumer that has read or reclaimed it."""

    id: str
    """Stream and entry, such as `12/1767225600000-0`; the stream of what old producers wrote is
    `default`."""
    values: Mapping[str, bytes]
    shard_key: str
    deliveries: int
    """How often it was handed out, this time included."""
    waited: float
    """Seconds from its write to this delivery, by the server's clock."""
    deadline: datetime | None
    context: Mapping[str, str] = {}
    """What the writer gave along, such as the trace it belongs to."""

    @property
    def stream(self) -> str:
        """Where it lies, for `prefer_stream`."""
        return self.id.partition("/")[0]


class NewMessage(msgspec.Struct, frozen=True):
    """A message to be written with others."""

    values: Mapping[str, Value]
    shard_key: str = ""
    deadline: datetime | None = None
    weight: float = 1.0
    at: datetime | None = None
    """Nobody gets it before; None: at once."""
    context: Mapping[str, str] | None = None


class Entry(NamedTuple):
    """A message as the scripts take it."""

    fields: Sequence[Field]
    """Fields and values in turn."""
    shard_key: str
    at: int | str = ""
    """Milliseconds since 1970, or '' for now."""
    ticket: str = ""
    """A name that no other message has, if it is for later."""
    once: str = ""
    """It is not written while a message with the same mark is there."""
    unique: str = ""
    """It is not written if one with the same key was, `window` milliseconds ago or less."""
    window: int = 0
    name: str = ""
    """What the answer says if a later one has the same unique key."""


class Finish(NamedTuple):
    """How a claim ends. `how`: done; again, later or dead, with fields."""

    id: str
    how: Literal["done", "again", "later", "dead"]
    entry: Entry = Entry((), "")


class SetAside(msgspec.Struct, frozen=True):
    """A message that nobody gets any more: in the dead-letter stream, or cordoned because its
    deadline had passed."""

    id: str
    """As it was in the queue."""
    values: Mapping[str, bytes]
    shard_key: str
    deliveries: int
    """How often it was handed out; 0 if never."""
    at: datetime
    """When it was set aside."""
    deadline: datetime | None


def entry(message: NewMessage) -> Entry:
    """As the scripts take it. Raises InvalidMessage."""
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
                f"field {name!r}: names that begin with {RESERVED!r} are the queue's own"
            )
    check_weight(message.weight)
    fields: list[Field] = [f"{RESERVED}key", message.shard_key]
    if message.weight != 1.0:
        fields += [f"{RESERVED}weight", float(message.weight)]
    if message.deadline is not None:
        fields += [f"{RESERVED}deadline", millis("deadline", message.deadline)]
    if message.context:
        fields += [f"{RESERVED}context", msgspec.json.encode(message.context)]
    fields += chain.from_iterable(message.values.items())
    if message.at is None:
        return Entry(fields, message.shard_key)
    return Entry(fields, message.shard_key, millis("at", message.at), uuid.uuid4().hex)


def check_weight(weight: float) -> None:
    """Raises InvalidMessage."""
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise InvalidMessage(f"weight {weight!r}: {MIN_WEIGHT} to {MAX_WEIGHT}")


def millis(what: str, instant: datetime) -> int:
    """Milliseconds since 1970. Raises InvalidMessage for a naive datetime, or one before 1970."""
    try:
        found = to_micros(instant) // 1000
    except ValueError as error:
        raise InvalidMessage(f"{what}: {error}") from error
    if found < 0:
        raise InvalidMessage(f"{what} {instant.isoformat()}: it lies before 1970")
    return found


def position(id: str) -> tuple[str, str]:
    """The stream and the entry of a message's id. Raises InvalidMessage."""
    found = _ID.fullmatch(id)
    if found is None:
        raise InvalidMessage(
            f"{id!r} is no id of a message: give one as write() and read() answer it"
        )
    return found[1] or found[3], found[2] or found[4]


def id_of(stream: bytes | None, at: bytes) -> str:
    """The id of what was written; of a message for later the stream is empty."""
    return f"{stream.decode() if stream else LATER}/{at.decode()}"


def message(found: Sequence[object]) -> Message:
    """From what the scripts answer: stream, entry, deliveries, now in milliseconds, fields and
    values in turn."""
    stream, entry_id, deliveries, now, flat = found
    values, own = _apart(flat)
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


def set_aside(found: Sequence[object]) -> SetAside:
    """From an entry of the dead-letter stream, or of the stream of what was cordoned."""
    entry_id, flat = found
    assert isinstance(flat, list)
    values, own = _apart(flat)
    return SetAside(
        # The script puts id and deliveries first: other writers may use the same field names.
        flat[1].decode(),
        values,
        own.get("key", b"").decode(errors="replace"),
        int(flat[3]),
        to_datetime(int(_text(entry_id).partition("-")[0]) * 1000),
        _instant(own.get("deadline")),
    )


def _apart(flat: object) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The user's fields, and the queue's own without their beginning."""
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
    # Others may have written it, in a way that the scripts do not take for an instant either.
    return (
        to_datetime(int(deadline) * 1000)
        if deadline and re.fullmatch(rb"[0-9]{1,14}", deadline)
        else None
    )


def _context(found: bytes | None) -> dict[str, str]:
    if found is None:
        return {}
    try:
        return msgspec.json.decode(found, type=dict[str, str])
    except msgspec.DecodeError:
        return {}  # others may have written it


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
