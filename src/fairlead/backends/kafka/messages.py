"""What lies in a topic: the small, versioned messages by which triggers travel. Queue and partition
are the topic's."""

from __future__ import annotations

import msgspec

from fairlead.model import PartitionKey, Trigger
from fairlead.ports.notification import Lane


class _Carried(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="t1"):
    """A trigger. The tag is kind and format: a field may be added at the end, anything else needs
    another tag."""

    id: str
    version: int
    name: str
    priority: int
    fairness_key: str
    weight: float
    ordering_key: str | None
    seq: int
    order_at: int


class _Look(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="l1"):
    """New triggers are in the rows of this priority, from `first_seq` up."""

    priority: int
    first_seq: int


_decoder = msgspec.json.Decoder(_Carried | _Look)
_encode = msgspec.json.Encoder().encode


def key_of(trigger: Trigger) -> bytes | None:
    """The message's key: whatever has one keeps its order in one partition, which is the task's."""
    return None if trigger.ordering_key is None else trigger.ordering_key.encode()


def encode_trigger(trigger: Trigger) -> bytes:
    """As it travels."""
    t = trigger
    return _encode(
        _Carried(
            t.id,
            t.version,
            t.name,
            t.priority,
            t.fairness_key,
            t.weight,
            t.ordering_key,
            t.seq,
            t.order_at,
        )
    )


def encode_look(lane: Lane) -> bytes:
    """As it travels."""
    return _encode(_Look(lane.priority, lane.first_seq))


def decode(key: PartitionKey, message: bytes | None) -> Trigger | Lane:
    """What a message of this partition says. Raises msgspec.DecodeError for anything else than
    these two."""
    found = _decoder.decode(message or b"")
    if isinstance(found, _Look):
        return Lane(*key, found.priority, found.first_seq)
    f = found
    return Trigger(
        f.id,
        f.version,
        *key,
        f.name,
        f.priority,
        f.fairness_key,
        f.weight,
        f.ordering_key,
        seq=f.seq,
        order_at=f.order_at,
    )
