"""Triggers as messages of the sharded queue."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model import NewTask, Submitted, Trigger, TriggerPath
from fairlead.ports.notification import Lane, Notification, with_triggers
from tests.ids import id_of

messages = pytest.importorskip(
    "fairlead.backends.redis.trigger_messages", reason="needs the extra redis"
)
from fairlead.backends.redis.sharded.message import Entry, Message, message  # noqa: E402

KEYS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
ID = "01977420-e271-7173-b85e-7c76d9bd202d"
TRIGGER = Trigger(ID, 3, "mail", 2, "send", 1, "acme", 0.5, "order-7", seq=881, order_at=17)


def read(entry: Entry, deliveries: int = 1) -> Message:
    """Return the message as Redis returns it, with all values as bytes."""
    flat = [part if isinstance(part, bytes) else str(part).encode() for part in entry.fields]
    return message((b"3", b"1767225600000-0", deliveries, 1767225600000, flat))


@given(
    st.builds(
        Trigger,
        st.integers(0, (1 << 128) - 1).map(id_of),
        st.integers(1, (1 << 31) - 1),
        st.just("mail"),
        st.integers(0, (1 << 15) - 1),
        st.text(),
        st.just(1),
        KEYS,
        st.floats(0.001, 1000),
        st.none() | KEYS,
        st.sampled_from(TriggerPath),
        seq=st.integers(0, 1 << 60),
        order_at=st.integers(0, 1 << 60),
    )
)
def test_a_trigger_survives_encoding(trigger: Trigger) -> None:
    entry = messages.encode(trigger)
    found = read(entry)
    assert messages.decode("mail", 1, found) == trigger
    assert entry.shard_key == found.shard_key == trigger.fairness_key


def test_a_message_is_marked_with_task_and_version() -> None:
    entry = messages.encode(TRIGGER)
    fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    assert entry.once == fields["fairlead:once"] == f"{ID}:3" and fields["fairlead:weight"] == "0.5"
    assert messages.encode(msgspec.structs.replace(TRIGGER, version=4)).once != entry.once


def test_a_message_delivered_before_has_the_heal_path() -> None:
    assert (
        messages.decode("mail", 1, read(messages.encode(TRIGGER), deliveries=2)).path
        == TriggerPath.HEAL
    )


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    found = read(messages.encode(TRIGGER))
    longer = msgspec.structs.replace(
        found, values={"trigger": found.values["trigger"][:-1] + b',"new"]', "x": b"y"}
    )
    assert messages.decode("mail", 1, longer) == TRIGGER


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b'["t9","x"]', b'["t1","id"]', b"null", b'["t1",1]']
)
def test_a_foreign_message_raises_a_decode_error(value: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode("mail", 1, Message("3/1-0", {"trigger": value}, "acme", 1, 0.0, None))


def test_a_submit_without_partitions_carries_the_due_tasks() -> None:
    def task(number: int, run_at: int) -> NewTask:
        return NewTask(
            id_of(number),
            "mail",
            0,
            "send",
            b"{}",
            "json",
            5,
            "acme",
            1.0,
            None,
            None,
            run_at,
            5,
            False,
            None,
        )

    tasks = [task(1, 5), task(2, 9), task(3, 5)]
    answers = [Submitted(id_of(1), True), Submitted(id_of(2), True), Submitted("old", False)]
    notification = Notification(ready=[Lane("mail", 0, 5, 11)])
    assert [
        t.id for t in with_triggers(notification, tasks, answers, known_seq_only=False).triggers
    ] == [id_of(1)]
    assert with_triggers(notification, tasks, answers).triggers == []
