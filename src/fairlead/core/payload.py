"""Payloads as stored bytes: JSON, compressed if that makes it smaller."""

from __future__ import annotations

import zlib

from fairlead.errors import InvalidTask
from fairlead.model import PayloadFormat

COMPRESS_ABOVE = 1024
"""Size in bytes up to which compressing a payload is not worth the CPU time."""

MOST_BYTES = 1 << 28
"""Maximum number of bytes of JSON of one payload, whatever limit an application sets. A stored
payload may expand to a thousand times its size."""


def pack(encoded: bytes) -> tuple[bytes, str]:
    """Return the bytes to store and their format: compressed above COMPRESS_ABOVE bytes if that
    makes them smaller."""
    if len(encoded) > COMPRESS_ABOVE:
        smaller = zlib.compress(encoded, 6)
        if len(smaller) < len(encoded):
            return smaller, PayloadFormat.JSON_ZLIB
    return encoded, PayloadFormat.JSON


def unpack(stored: bytes, payload_format: str, most: int = MOST_BYTES) -> bytes:
    """Return the JSON bytes of a stored payload. Raises InvalidTask for an unknown format, corrupt
    bytes, or compressed ones of which there are more than `most`."""
    if payload_format == PayloadFormat.JSON:
        return stored
    if payload_format == PayloadFormat.JSON_ZLIB:
        stream = zlib.decompressobj()
        try:
            unpacked = stream.decompress(stored, most + 1)
        except zlib.error as error:
            raise InvalidTask(
                f"payload marked {payload_format} cannot be decompressed: {error}"
            ) from error
        if len(unpacked) > most:
            raise InvalidTask(f"payload marked {payload_format} has more than {most:,} bytes")
        if not stream.eof:
            raise InvalidTask(f"payload marked {payload_format} cannot be decompressed: it is cut")
        return unpacked
    raise InvalidTask(
        f"payload format {payload_format!r} is unknown to this version; known: json, json+zlib"
    )
