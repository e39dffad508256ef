"""Values in PostgreSQL's binary COPY format: a field is its length and its bytes, big-endian. See
the documentation of COPY."""

from __future__ import annotations

import struct

COPY_FROM = 50
"""Rows from which COPY is quicker than one INSERT."""

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
NULL = struct.pack(">i", -1)

_SMALLINT = struct.Struct(">ih")
_BIGINT = struct.Struct(">iq")
_LENGTH = struct.Struct(">i")


class Texts(dict[str | None, bytes]):
    """Encoded texts, each made when first asked for."""

    def __missing__(self, value: str | None) -> bytes:
        encoded = self[value] = text(value)
        return encoded


def text(value: str | None) -> bytes:
    """A text field."""
    if value is None:
        return NULL
    encoded = value.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def smallint(value: int) -> bytes:
    """A smallint field."""
    return _SMALLINT.pack(2, value)


def bigint(value: int | None) -> bytes:
    """A bigint field."""
    return NULL if value is None else _BIGINT.pack(8, value)


def uuid(value: str) -> bytes:
    """The 16 bytes of a UUID in canonical text, without their length."""
    return bytes.fromhex(value.replace("-", ""))
