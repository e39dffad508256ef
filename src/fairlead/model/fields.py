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
Runs = Annotated[int, Meta(ge=0, le=(1 << 30) - 1)]
"""Number of runs, of which two make a version at most."""
Partition = Annotated[int, Meta(ge=0, le=MOST_PARTITIONS)]
Priority = Annotated[int, Meta(ge=PRIORITIES[0], le=PRIORITIES[-1])]
Weight = Annotated[float, Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)]
Seq = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Position of a task in a lane."""
ReadThrough = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
"""Position through which a lane was read; -1 before the first task."""
Pass = Annotated[int, Meta(ge=0, le=1 << 62)]
"""Virtual time of a task in a fair backlog, which leaves room for later tasks in 64 bits."""
Micros = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Microseconds since the epoch."""
Time = Annotated[int, Meta(ge=-62_135_596_800_000_000, le=253_402_300_799_999_999)]
"""Microseconds since the epoch, of an instant in the years 1 to 9999."""
Count = Annotated[int, Meta(ge=0, le=1 << 62)]
"""Number that may be added to or counted up without leaving the 64 bits of the stores."""
Key = Annotated[str, Meta(pattern=r"\A[^\x00]*\Z")]
"""Text that PostgreSQL can store."""
