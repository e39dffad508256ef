"""Triggers as messages of the sharded queue: queue and priority choose the lane, and the fairness
key is the shard key."""

from __future__ import annotations

import msgspec

from fairlead.backends.redis.sharded.message import RESERVED, Entry, Message
from fairlead.model import DEFAULT_WEIGHT, Trigger, TriggerPath
from fairlead.model.fields import Key, Micros, Partition, Seq, TaskId, Version, Weight
from fairlead.model.reading import json_reader

FIELD = "trigger"


class _TriggerBody(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="t1"):
    """The stored form of a trigger. The tag is kind and format: a field may be added at the end;
    any other change needs another tag."""

    id: TaskId
    version: Version
    partition: Partition
    name: str
    fairness_key: Key
    weight: Weight
    ordering_key: Key | None
    path: str
    seq: Seq
    order_at: Micros


_read = json_reader(_TriggerBody)
_encode = msgspec.json.Encoder().encode


def encode(trigger: Trigger) -> Entry:
    """Return a trigger as a message. Redis refuses a second write of the message while the first
    one is in the queue, waiting or claimed."""
    t = trigger
    mark = f"{t.id}:{t.version}"
    carried = _TriggerBody(
        t.id,
        t.version,
        t.partition,
        t.name,
        t.fairness_key,
        t.weight,
        t.ordering_key,
        t.path,
        t.seq,
        t.order_at,
    )
    fields: list[bytes | str] = [
        f"{RESERVED}key",
        t.fairness_key,
        f"{RESERVED}once",
        mark,
        FIELD,
        _encode(carried),
    ]
    if t.weight != DEFAULT_WEIGHT:
        fields += [f"{RESERVED}weight", repr(t.weight)]
    return Entry(fields, t.fairness_key, once=mark)


def decode(queue: str, priority: int, message: Message) -> Trigger:
    """Return the trigger of a message; a message delivered again has the path HEAL. Raise
    msgspec.DecodeError for a foreign message."""
    f = _read(message.values.get(FIELD, b""))
    path = f.path if message.deliveries == 1 else TriggerPath.HEAL
    return Trigger(
        f.id,
        f.version,
        queue,
        f.partition,
        f.name,
        priority,
        f.fairness_key,
        f.weight,
        f.ordering_key,
        path,
        f.seq,
        None,
        f.order_at,
    )
