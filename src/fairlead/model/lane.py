"""Records of lanes: the state that an owner saves for the next owner."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from fairlead.model.fields import Count, Pass, ReadThrough
from fairlead.model.keys import PartitionKey
from fairlead.model.reading import json_reader
from fairlead.model.trigger import LOWEST, Level

log = logging.getLogger("fairlead.lanes")


class LaneRecord(msgspec.Struct, frozen=True):
    """State of a lane's fair backlog beside its rows, for the next owner and for people."""

    ack_level: Level = LOWEST
    """Ack level (A): every entry at or below it has been dispatched."""
    read_level: Level = LOWEST
    """Read level (R) at the time of the write; only for people."""
    max_level: Level = LOWEST
    """Maximum level (M): no row is above it."""
    read_seq: ReadThrough = 0
    """Position in the channel up to which every trigger found has been given a level."""
    buffered: Count = 0
    """Triggers in the owner's memory at the time of the write; only for people."""
    next_passes: list[tuple[str, Pass]] = []
    """(tenant, next pass) of the tenants furthest ahead."""


_read = json_reader(LaneRecord)


def read_lanes(
    records: Iterable[tuple[int, str]], table: str, key: PartitionKey
) -> dict[int, LaneRecord]:
    """Decode pairs of (priority, record as JSON) in a table of a partition. Log a record that
    cannot be read. Its lane begins anew with its next owner: the order of its tasks is lost, no
    task is."""
    lanes: dict[int, LaneRecord] = {}
    for priority, record in records:
        try:
            lanes[priority] = _read(record)
        except msgspec.DecodeError as error:
            lanes[priority] = LaneRecord()
            log.error(
                "the record of a lane cannot be read, which begins anew with its next owner:"
                " priority %d of partition %d of queue %r in %s",
                priority,
                key.partition,
                key.queue,
                table,
                extra={"error": str(error)},
            )
    return lanes
