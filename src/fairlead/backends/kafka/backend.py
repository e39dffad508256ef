"""The backend of `kafka://host:9092`: a trigger channel, and the log of ordered queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fairlead.ports.backend import Backend, BackendContext, Kind
from fairlead.ports.task_log import TaskLog
from fairlead.ports.trigger_channel import TriggerChannel

_EXAMPLE = "kafka://host:9092"


class KafkaBackend(Backend):
    """Triggers and the task log through Kafka."""

    offers: ClassVar[Mapping[Kind, str]] = {"channel": _EXAMPLE, "log": _EXAMPLE}
    modules = ("confluent_kafka",)
    install = "fairlead[kafka]"

    def channel(self, url: str | None, context: BackendContext) -> TriggerChannel:
        from fairlead.backends.kafka.channel import KafkaChannel

        tasks = context.store.with_tables()
        assert url is not None and tasks is not None
        return KafkaChannel(
            url,
            tasks,
            context.notifier,
            context.partitions,
            context.counted,
            context.clock,
        )

    def log(self, url: str | None, context: BackendContext) -> TaskLog:
        from fairlead.backends.kafka.task_log import KafkaTaskLog

        assert url is not None
        return KafkaTaskLog(url, context.partitions, context.counted, context.clock, context.store)
