"""The registry of an application on Redis: its queues, which of them are paused, and its nodes."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from fairlead.backends.redis.sharded.steps import RedisCall
from fairlead.clock import MICROS
from fairlead.model.reading import json_reader
from fairlead.ports.cluster_state import NodeFacts, NodeRecord, QueueSettings

T = TypeVar("T")
RedisSteps = Generator[Any, Any, T]
"""Steps that yield commands for Redis and receive the responses."""

_encode = msgspec.json.Encoder().encode
_read = json_reader(NodeRecord)
log = logging.getLogger("fairlead.redis")


class Registry:
    """The queues and nodes of the applications that share a prefix."""

    def __init__(self, prefix: str) -> None:
        self._nodes = f"{{{prefix}}}:nodes"
        self._queues = f"{{{prefix}}}:queues"
        self._paused = f"{{{prefix}}}:paused"

    def register(self, queues: Iterable[str]) -> RedisSteps[dict[str, QueueSettings]]:
        """Register queues, and return all registered ones."""
        yield RedisCall(("SADD", self._queues, *queues))
        return (yield from self.settings())

    def settings(self) -> RedisSteps[dict[str, QueueSettings]]:
        """Return the settings of every registered queue. The settings name no partitions, and no
        version of weights, since readers get weights from Redis itself."""
        names = sorted(name.decode() for name in (yield RedisCall(("SMEMBERS", self._queues))))
        paused = {name.decode() for name in (yield RedisCall(("SMEMBERS", self._paused)))}
        return {name: QueueSettings(0, name in paused, 0) for name in names}

    def pause(self, queue: str, paused: bool) -> RedisSteps[bool]:
        """Pause or resume a queue. Return False if the queue is not registered."""
        if queue not in (yield from self.settings()):
            return False
        yield RedisCall(("SADD" if paused else "SREM", self._paused, queue), is_relied_on=True)
        return True

    def register_node(
        self, node: str, queues: Sequence[str], names: Sequence[str], facts: NodeFacts
    ) -> RedisSteps[None]:
        """Record the queues and facts of the node, and its heartbeat."""
        now = yield from self.clock()
        known = yield from self._node(node)
        started = now if known is None else known.started_at
        record = NodeRecord(node, started, now, list(queues), list(names), facts)
        yield RedisCall(("HSET", self._nodes, node, _encode(record)))

    def beat(self, node: str) -> RedisSteps[bool]:
        """Record that the node lives; return False for a node without a readable record."""
        now = yield from self.clock()
        known = yield from self._node(node)
        if known is None:
            return False
        record = msgspec.structs.replace(known, heartbeat_at=now)
        yield RedisCall(("HSET", self._nodes, node, _encode(record)))
        return True

    def nodes(self) -> RedisSteps[list[NodeRecord]]:
        """Return all nodes that have not left and have a readable record."""
        found = [_readable(record) for record in (yield RedisCall(("HVALS", self._nodes)))]
        return [record for record in found if record is not None]

    def _node(self, node: str) -> RedisSteps[NodeRecord | None]:
        record = yield RedisCall(("HGET", self._nodes, node))
        return None if record is None else _readable(record)

    def silent(self, silent_for: int) -> RedisSteps[list[str]]:
        """Return the nodes without a heartbeat for `silent_for` microseconds."""
        now = yield from self.clock()
        return [
            found.node
            for found in (yield from self.nodes())
            if found.heartbeat_at < now - silent_for
        ]

    def remove(self, node: str) -> RedisSteps[None]:
        """Remove a node that has left or died."""
        yield RedisCall(("HDEL", self._nodes, node))

    def clock(self) -> RedisSteps[int]:
        """Return microseconds since the epoch, by the server's clock, which all nodes share."""
        # The key chooses the same server of a cluster for every node.
        seconds, micros = yield RedisCall(("EVAL", "return redis.call('TIME')", 1, self._nodes))
        return int(seconds) * MICROS + int(micros)


def _readable(record: bytes) -> NodeRecord | None:
    """Return the record of a node; None if the record cannot be read. A living node writes its
    record again."""
    try:
        return _read(record)
    except msgspec.DecodeError as error:
        log.error("the record of a node cannot be read", extra={"error": str(error)})
        return None
