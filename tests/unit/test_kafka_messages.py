"""The messages of Kafka topics, and the URLs of Kafka."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConfigurationError
from fairlead.model import PartitionKey, Submitted, Trigger
from fairlead.ports.notification import Lane, Notification, with_triggers
from tests.builders import task
from tests.ids import id_of

kafka = pytest.importorskip("fairlead.backends.kafka.channel", reason="needs the extra kafka")
client = pytest.importorskip("fairlead.backends.kafka.endpoint")
messages = pytest.importorskip("fairlead.backends.kafka.messages")

ID = "01977420-e271-7173-b85e-7c76d9bd202d"
TRIGGER = Trigger(ID, 3, "mail", 2, "send", 1, "acme", 0.5, "order-7", seq=881, order_at=17)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff\x00",
        b"{}",
        b"[]",
        b'["t9","x"]',
        b'["t1","id"]',
        b'["l1","high",3]',
        b"null",
    ],
)
def test_a_foreign_message_raises_a_decode_error(value: bytes | None) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode(PartitionKey("mail", 2), value)


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    longer = messages.encode_trigger(TRIGGER)[:-1] + b',"new"]'
    assert messages.decode(PartitionKey("mail", 2), longer) == TRIGGER


def test_a_submit_sends_a_message_for_each_task_that_may_run_now() -> None:
    tasks = [
        task(id_of(n), queue="mail", partition=n % 4, submitted_at=5, **fields)
        for n, fields in enumerate([{}, {"ordering_key": "k"}, {"run_at": 9}, {}], start=1)
    ]
    answers = [
        Submitted(id_of(1), True, 11),
        Submitted(id_of(2), True, 12),
        Submitted(id_of(3), True),
        Submitted("old", False),
    ]
    notification = Notification(ready=[Lane("mail", 1, 5, 11), Lane("mail", 2, 5, 12)], due=9)
    sent = kafka._messages(with_triggers(notification, tasks, answers))
    assert [(m.queue, m.partition, m.key) for m in sent] == [("mail", 1, None), ("mail", 2, b"k")]
    found = [messages.decode(PartitionKey(m.queue, m.partition), m.value) for m in sent]
    assert [(t.id, t.version, t.seq, t.order_at) for t in found] == [
        (id_of(1), 1, 11, 0),
        (id_of(2), 1, 12, 5),
    ]


def test_lanes_with_unknown_or_too_many_triggers_get_a_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes = [Lane("mail", 1, 5, 11), Lane("mail", 2, 5, 12)]
    notification = with_triggers(
        Notification(ready=lanes),
        [task(id_of(1), queue="mail", partition=1)],
        [Submitted(id_of(1), True, 11)],
    )
    assert [m.value[:4] for m in kafka._messages(notification)] == [b'["t1', b'["l1']
    monkeypatch.setattr(kafka, "MOST_CARRIED", 0)
    assert [
        messages.decode(PartitionKey("mail", n), m.value)
        for n, m in zip([1, 2], kafka._messages(notification))
    ] == lanes


@given(st.text(min_size=1, max_size=60))
def test_every_queue_has_its_own_topic(queue: str) -> None:
    endpoint = client.KafkaEndpoint("host")
    try:
        queue.encode()
    except UnicodeEncodeError:
        return
    try:
        topic = endpoint.topic(queue)
    except ConfigurationError:
        assert len(queue.encode()) > 70
        return
    assert endpoint.queue(topic) == queue
    assert len(topic) <= 249 and all(c.isascii() and (c.isalnum() or c in "._-") for c in topic)


def test_a_url_holds_all_settings() -> None:
    endpoint = client.KafkaEndpoint.of(
        "kafka://me:p%40ss@a:1,b:2/?prefix=pay.&reset=-4d&replication=3&client.rack=r1&security.protocol=SASL_PLAINTEXT"
    )
    assert (endpoint.brokers, endpoint.prefix, endpoint.group, endpoint.replication) == (
        "a:1,b:2",
        "pay.",
        "pay",
        3,
    )
    assert endpoint.reset == 4 * 86_400
    settings = endpoint.settings({})
    assert settings["sasl.password"] == "p@ss" and settings["security.protocol"] == "SASL_PLAINTEXT"
    assert (settings["sasl.mechanism"], settings["client.rack"]) == (
        "SCRAM-SHA-512",
        "r1",
    ) and "p@ss" not in endpoint.location


@pytest.mark.parametrize(
    "text, seconds",
    [("4d", 345_600), ("-4d", 345_600), ("+90s", 90), ("1.5h", 5400), ("2w", 1_209_600)],
)
def test_the_sign_of_a_time_to_go_back_is_ignored(text: str, seconds: float) -> None:
    assert client.KafkaEndpoint.of(f"kafka://a/?reset={text.replace('+', '%2B')}").reset == seconds


@pytest.mark.parametrize(
    "url, why",
    [
        ("kafka://", "names no broker"),
        ("kafka://a/topic", "a path"),
        ("kafka://u:secret@a/?color=red", "unknown parameter color; use kafka://"),
        ("kafka://a/?reset=soon", "earliest, latest, or a time"),
        ("kafka://a/?prefix=white%20space", "prefix 'white space'"),
        ("kafka://a/?replication=0", "number of copies"),
        ("kafka://a/?socket.colour=red", 'No such configuration property: "socket.colour"'),
    ],
)
def test_a_wrong_url_is_refused_with_its_fault_and_without_the_password(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        client.KafkaEndpoint.of(url)
    assert why in str(error.value) and "secret" not in str(error.value)


def test_partitions_assigned_during_a_pause_are_paused_and_all_resume_together() -> None:
    """A Kafka consumer stores the pause of each partition."""
    receiving = pytest.importorskip("fairlead.backends.kafka.receiver")
    confluent = pytest.importorskip("confluent_kafka")
    calls: list[tuple[str, list[int]]] = []

    class Consuming:
        def incremental_assign(self, partitions: list[Any]) -> None:
            calls.append(("assign", [partition.partition for partition in partitions]))

        def pause(self, partitions: list[Any]) -> None:
            calls.append(("pause", [partition.partition for partition in partitions]))

    listener = SimpleNamespace(on_assigned=lambda keys: None)
    endpoint = client.KafkaEndpoint("127.0.0.1:1")
    owner = receiving.PrefixOwner(endpoint, None)
    receiver = receiving.Receiver(endpoint, owner, "node", 10.0, listener)
    partition = confluent.TopicPartition(client.KafkaEndpoint("a").topic("mail"), 3)
    receiver._assigned(Consuming(), [partition])
    assert calls == [("assign", [3])]
    receiver._is_paused = True
    receiver._assigned(Consuming(), [partition])
    assert calls[1:] == [("assign", [3]), ("pause", [3])] and receiver._is_paused
    receiver.close()
