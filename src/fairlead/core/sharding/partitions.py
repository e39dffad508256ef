"""Partitions of tasks within their queue."""

from __future__ import annotations

import zlib


def partition_of(ordering_key: str | None, task_id: int, partitions: int) -> int:
    """Return the partition of a task: by CRC-32 of its ordering key, the hash that the pipeline
    uses too, or by its id without one. Tasks of one ordering key share a partition."""
    if ordering_key is None:
        return task_id % partitions
    return zlib.crc32(ordering_key.encode()) % partitions
