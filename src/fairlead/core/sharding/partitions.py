"""Which partition of its queue a task belongs to."""

from __future__ import annotations

import zlib


def partition_of(ordering_key: str | None, task_id: int, partitions: int) -> int:
    """Tasks of one ordering key share a partition (CRC-32, the hash that the pipeline uses too);
    others spread by id."""
    if ordering_key is None:
        return task_id % partitions
    return zlib.crc32(ordering_key.encode()) % partitions
