"""The messages of a topic: small, versioned forms of triggers. Queue and partition are those of the
topic."""

from __future__ import annotations

import msgspec

from fairlead.model import PartitionKey, Trigger
from fairlead.model.fields import Key, Micros, Priority, Seq, TaskId, Version, Weight
from fairlead.model.reading import Reader
from fairlead.ports.notification import Lane


class _StoredTrigger(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="t1"):
    """A stored trigger. The tag is kind and format: a field may be added at the end; any other
    change needs another tag."""

    id: TaskId
    version: Version
    name: str
    priority: Priority
    fairness_key: Key
    weight: Weight
    ordering_key: Key | None
    seq: Seq
    order_at: Micros


class _Hint(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="l1"):
    """A hint: new triggers are in the rows of this priority, from `first_seq` up."""

    priority: Priority
    first_seq: Seq


_read: Reader[_StoredTrigger | _Hint] = Reader(msgspec.json.Decoder(_StoredTrigger | _Hint).decode)
_encode = msgspec.json.Encoder().encode


def key_of(trigger: Trigger) -> bytes | None:
    """Return the message's key: the ordering key, or None. A message goes to the partition of its
    task, whatever its key."""
    return None if trigger.ordering_key is None else trigger.ordering_key.encode()


def encode_trigger(trigger: Trigger) -> bytes:
    """Return the message of a trigger."""
    t = trigger
    return _encode(
        _StoredTrigger(
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


def encode_hint(lane: Lane) -> bytes:
    """Return the message that names the lane and the first number of new rows."""
    return _encode(_Hint(lane.priority, lane.first_seq))


def decode(key: PartitionKey, message: bytes | None) -> Trigger | Lane:
    """Return the trigger or the lane of a message of this partition. Raise msgspec.DecodeError for
    any other message."""
    found = _read(message or b"")
    if isinstance(found, _Hint):
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
