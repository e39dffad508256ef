"""The registry of an application without a SQL database: its id, its queues and its nodes, in
tables of one partition each."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead.model.reading import json_reader
from fairlead.ports.cluster_state import NodeFacts, NodeRecord, QueueSettings
from fairlead.ports.statements import Statement, Steps

APP = "fairlead"
"""Partition of each table."""

_encode = msgspec.json.encode
_read = json_reader(NodeRecord)
log = logging.getLogger("fairlead.cassandra")


def make_store_id() -> Steps[None]:
    """Make the id of the store, unless there is one."""
    yield Statement("make_store_id", (APP, uuid.uuid4().hex))


def store_id() -> Steps[str | None]:
    """Return the id of the store; None before its migration."""
    rows = yield Statement("store_id", (APP,))
    return rows[0][0] if rows else None


def register_part(kind: str, part: str) -> Steps[str]:
    """Record the id of the application's prefix or folder, unless there is one; return the recorded
    one."""
    while True:
        rows = yield Statement("part", (APP, kind))
        if rows:
            return str(rows[0][0])
        yield Statement("add_part", (APP, kind, part))


# queues -------------------------------------------------------------------------------------------


def queue_settings() -> Steps[dict[str, QueueSettings]]:
    """Return the settings of every registered queue."""
    rows = yield Statement("queues", (APP,))
    return {queue: QueueSettings(*settings) for queue, *settings in rows if None not in settings}


def register(partitions: Mapping[str, int]) -> Steps[dict[str, QueueSettings]]:
    """Register queues, with the greatest numbers of partitions ever registered."""
    while True:
        known = yield from queue_settings()
        low = {
            queue: count
            for queue, count in partitions.items()
            if queue not in known or known[queue].partitions < count
        }
        if not low:
            return {queue: known[queue] for queue in partitions}
        for queue, count in low.items():
            if queue in known:
                yield from resize(queue, count, known[queue].version)
            else:
                yield Statement("add_queue", (APP, queue, count))


def resize(queue: str, partitions: int, version: int) -> Steps[bool]:
    """Set the number of partitions of a queue that has this version; return whether it has."""
    return _applied(
        (yield Statement("resize_queue", (partitions, version + 1, APP, queue, version)))
    )


def pause(queue: str, paused: bool) -> Steps[bool]:
    """Pause or resume a queue. Return False if the queue is not registered."""
    while True:
        known = (yield from queue_settings()).get(queue)
        if known is None:
            return False
        change = (paused, known.version + 1, APP, queue, known.version)
        if known.paused == paused or _applied((yield Statement("pause_queue", change))):
            return True


# nodes --------------------------------------------------------------------------------------------


def nodes() -> Steps[list[NodeRecord]]:
    """Return all nodes that have not left and have a readable record."""
    found = []
    for text, heartbeat_at in (yield Statement("nodes", (APP,))):
        try:
            record = _read(text or "")
            found.append(msgspec.structs.replace(record, heartbeat_at=heartbeat_at or 0))
        except msgspec.DecodeError as error:
            log.error("the record of a node cannot be read", extra={"error": str(error)})
    return found


def register_node(
    node: str, queues: Sequence[str], names: Sequence[str], now: int, facts: NodeFacts
) -> Steps[None]:
    """Record the queues and facts of the node, and its heartbeat (microseconds since the epoch)."""
    known = {record.node: record for record in (yield from nodes())}.get(node)
    started = now if known is None else known.started_at
    record = NodeRecord(node, started, now, list(queues), list(names), facts)
    text = _encode(record).decode()
    while not _applied((yield Statement("change_node", (text, now, APP, node)))):
        if _applied((yield Statement("add_node", (APP, node, text, now)))):
            return


def beat(node: str, now: int) -> Steps[bool]:
    """Record that the node lives; return False for a node without a record."""
    return _applied((yield Statement("heartbeat", (now, APP, node))))


def remove(node: str) -> Steps[None]:
    """Remove a node that has left or died."""
    yield Statement("drop_node", (APP, node))


def _applied(rows: Sequence[Any]) -> bool:
    """Return whether a lightweight transaction has changed its row."""
    return bool(rows[0][0])
