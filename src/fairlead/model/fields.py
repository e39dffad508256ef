"""The shapes and ranges of the fields of messages and records that another process may have
written. msgspec checks them where such a message is decoded, so that no reader meets a value that
no store or algorithm can take."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
PRIORITIES = range(10)
MOST_PARTITIONS = 32767
"""Greatest number of partitions of a queue: all stores keep numbers of partitions in 16 bits."""

_HEX = "[0-9a-f]"
TaskId = Annotated[
    str, Meta(pattern=rf"\A{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}\Z")
]
"""The text of a UUID."""
Version = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
Partition = Annotated[int, Meta(ge=0, le=MOST_PARTITIONS)]
Priority = Annotated[int, Meta(ge=PRIORITIES[0], le=PRIORITIES[-1])]
Weight = Annotated[float, Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)]
Seq = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Position of a task in a lane."""
Micros = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Microseconds since the epoch."""
Key = Annotated[str, Meta(pattern=r"\A[^\x00]*\Z")]
"""Text that PostgreSQL can store."""
