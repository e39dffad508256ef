"""Requests to a real Kafka for the offsets of a topic with many partitions, and waits for its
messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
from confluent_kafka import Consumer  # noqa: E402

from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402
from fairlead.pipeline.stream.topic import AttemptsTopic  # noqa: E402
from services.kafka import KafkaServer  # noqa: E402

PARTITIONS = 100


class CountingEndpoint(KafkaEndpoint):
    """An endpoint whose clients report their statistics to `on_statistics`."""

    def settings(self, own: Any) -> dict[str, Any]:
        more = {"statistics.interval.ms": 50, "stats_cb": self.on_statistics}
        return super().settings({**own, **more}) if "group.id" in own else super().settings(own)

    def on_statistics(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        sent = [broker["req"].get("ListOffsets", 0) for broker in brokers]
        reports.append(sum(sent))


reports: list[int] = []
"""Requests for offsets that a client had sent until each of its reports."""


class CountingTopic(AttemptsTopic):
    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        with super()._consumer() as consumer:
            yield consumer
            reports.clear()
            while not reports:
                consumer.poll(0.1)  # calls `on_statistics`


def test_the_offsets_of_100_partitions_take_two_requests(kafka_server: KafkaServer) -> None:
    topic = CountingTopic(CountingEndpoint.of(kafka_server.create_prefix()))
    assert topic.ensure(PARTITIONS) == PARTITIONS
    topic.extents()  # asks again until the broker knows the new topic
    assert topic.extents() == dict.fromkeys(range(PARTITIONS), (0, 0))
    assert reports[-1] == 2


class SlowTopic(AttemptsTopic):
    """A topic with two messages, which come one by one with an empty response between them."""

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        message = SimpleNamespace(error=lambda: None, value=lambda: b"{}")
        first, second = (SimpleNamespace(**vars(message), offset=lambda n=n: n) for n in (0, 1))
        responses = iter([[first], [], [second]])
        yield SimpleNamespace(assign=lambda _: None, consume=lambda *_: next(responses))


def test_the_time_that_a_reader_spends_on_a_page_is_no_silence_of_kafka(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "fairlead.pipeline.stream.topic.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    pages = SlowTopic(KafkaEndpoint.of("kafka://127.0.0.1:1")).read(0, 0, 2)
    assert next(pages) == [(0, b"{}")]
    now[0] += 3600
    assert list(pages) == [[(1, b"{}")]]
