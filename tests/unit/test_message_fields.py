"""Readers refuse every value in a message that no store or algorithm can take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fairlead.model import PartitionKey, Trigger
from fairlead.model.peer import Grant
from fairlead.ports import notification
from fairlead.ports.notification import ANY_CHANGE, Lane, Notification

kafka = pytest.importorskip("fairlead.backends.kafka.messages", reason="needs the extra kafka")

ID = "01977420-e271-7173-b85e-7c76d9bd202d"
GOOD = Trigger(ID, 3, "mail", 2, "send", 1, "acme", 0.5, "order-7", seq=881, order_at=17)

DAMAGED: list[tuple[str, Any]] = [
    ("id", ""),
    ("id", "0190"),
    ("id", ID.upper()),
    ("id", f"{ID}\n"),
    ("version", 0),
    ("version", -1),
    ("version", 1 << 31),
    ("partition", -1),
    ("partition", 1 << 15),
    ("priority", -1),
    ("priority", 10),
    ("fairness_key", "a\x00b"),
    ("ordering_key", "\x00"),
    ("weight", 0.0),
    ("weight", -1.0),
    ("weight", 1e-9),
    ("weight", 1e9),
    ("seq", -1),
    ("seq", 1 << 63),
    ("order_at", -1),
    ("order_at", 1 << 70),
]


def by_kafka(trigger: Trigger) -> Any:
    key = PartitionKey(trigger.queue, trigger.partition)
    return kafka.decode(key, kafka.encode_trigger(trigger))


def by_notification(sent: Notification) -> Notification:
    found = notification.decode(notification.encode(sent))
    if found == ANY_CHANGE:
        raise msgspec.DecodeError
    return found


def by_grant(trigger: Trigger) -> Any:
    found = by_notification(Notification(peer=Grant("n", "o", [trigger])))
    assert isinstance(found.peer, Grant)
    return found.peer.triggers[0]


def by_submitter(trigger: Trigger) -> Any:
    return by_notification(Notification(triggers=[trigger], due=5)).triggers[0]


@pytest.mark.parametrize("read", [by_kafka, by_grant, by_submitter])
def test_a_good_trigger_is_read(read: Callable[[Trigger], Any]) -> None:
    assert read(GOOD) == GOOD


NOT_CARRIED = {by_kafka: "partition"}
"""Field that a message does not have: the topic has the partition."""

CASES = [
    (read, field, value)
    for read in (by_kafka, by_grant, by_submitter)
    for field, value in DAMAGED
    if field != NOT_CARRIED.get(read)
]


@pytest.mark.parametrize(("read", "field", "value"), CASES)
def test_a_trigger_with_a_value_out_of_range_is_not_read(
    read: Callable[[Trigger], Any], field: str, value: object
) -> None:
    with pytest.raises(msgspec.DecodeError):
        read(msgspec.structs.replace(GOOD, **{field: value}))


@pytest.mark.parametrize("field", ["partition", "priority", "first_seq"])
def test_a_lane_with_a_value_out_of_range_is_not_read(field: str) -> None:
    good = Lane("mail", 2, 7, 99)
    assert by_notification(Notification(ready=[good])).ready == [good]
    damaged = msgspec.structs.replace(good, **{field: -1})
    with pytest.raises(msgspec.DecodeError):
        by_notification(Notification(ready=[damaged]))
    if field != "partition":
        with pytest.raises(msgspec.DecodeError):
            kafka.decode(PartitionKey("mail", 2), kafka.encode_hint(damaged))
