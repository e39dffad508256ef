"""Extents of partitions of Kafka: how many requests they take. Their values are tested against a
real server."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from fairlead.backends.kafka.endpoint import extents


class CountingConsumer:
    """Returns the same for any partition: 3 is the first kept message, 9 the end, 5 committed."""

    requests = 0

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return self._offsets(partitions, lambda at: 5)

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float
    ) -> list[TopicPartition]:
        return self._offsets(partitions, lambda at: 3 if at.offset == OFFSET_BEGINNING else 9)

    def _offsets(self, partitions: list[TopicPartition], offset: Any) -> list[TopicPartition]:
        self.requests += 1
        return [TopicPartition(at.topic, at.partition, offset(at)) for at in partitions]


@pytest.mark.parametrize("count", [1, 120, 1000])
def test_the_extents_of_any_number_of_partitions_take_three_requests(count: int) -> None:
    """A request waits behind the consumer's fetch for up to half a second: one for each of 120
    partitions took a minute."""
    consumer: Any = CountingConsumer()
    found = extents(consumer, [("log", number) for number in range(count)])
    assert found == {("log", number): (5, 9) for number in range(count)}
    assert consumer.requests == 3
