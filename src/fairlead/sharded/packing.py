"""Many values in one argument of a script, packed by MessagePack. One argument is much cheaper for
the client and for the server than one for each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fairlead.sharded.message import Entry, text_of

_encode = msgspec.msgpack.Encoder(enc_hook=text_of).encode

_HEADS = tuple(bytes([0xA0 | size] if size < 32 else [0xD9, size]) for size in range(256))
"""Heads of short texts, by their bytes."""


def packed_for(shards: Mapping[str, Sequence[int]], things: Sequence[object]) -> bytes:
    """Return things for a script, and the streams of their shard keys."""
    streams = [part for key, found in shards.items() for part in (key, [*map(str, found)])]
    return _encode((streams, things))


def packable(entry: Entry) -> tuple[object, ...]:
    """Return an entry in a form that `packed_for` takes."""
    fields = [_text(each) if isinstance(each, bytes) else each for each in entry.fields]
    return fields, *entry[1:]


def _text(value: bytes) -> msgspec.Raw:
    """Return bytes as a packed text, since Redis cannot read the type of MessagePack for bytes."""
    size = len(value)
    return msgspec.Raw((_HEADS[size] if size < 256 else b"\xdb" + size.to_bytes(4, "big")) + value)
