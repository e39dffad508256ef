"""Values in PostgreSQL's binary COPY format: a field is its length and its bytes, big-endian.

Source: the documentation of COPY.
"""

from __future__ import annotations

import struct

COPY_MIN_ROWS = 50
"""Least number of rows for which COPY is faster than one INSERT."""

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
NULL = struct.pack(">i", -1)

_SMALLINT = struct.Struct(">ih")
_DOUBLE = struct.Struct(">id")
_BOOLEAN = struct.Struct(">i?")
_BIGINT = struct.Struct(">iq")
_LENGTH = struct.Struct(">i")


class Texts(dict[str | None, bytes]):
    """Encoded text fields by text; each is made at its first use."""

    def __missing__(self, value: str | None) -> bytes:
        encoded = self[value] = text(value)
        return encoded


def text(value: str | None) -> bytes:
    """Return a text field."""
    if value is None:
        return NULL
    encoded = value.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def smallint(value: int) -> bytes:
    """Return a smallint field."""
    return _SMALLINT.pack(2, value)


def double(value: float) -> bytes:
    """Return a double precision field."""
    return _DOUBLE.pack(8, value)


def boolean(value: bool) -> bytes:
    """Return a boolean field."""
    return _BOOLEAN.pack(1, value)


def bigint(value: int | None) -> bytes:
    """Return a bigint field."""
    return NULL if value is None else _BIGINT.pack(8, value)


def uuid(value: str) -> bytes:
    """Return the 16 bytes of a UUID given as canonical text, without their length."""
    return bytes.fromhex(value.replace("-", ""))
