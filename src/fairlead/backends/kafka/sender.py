"""The sender of triggers to Kafka, which takes them from any thread without blocking it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fairlead.backends.kafka.client import AGAIN_SECONDS, ClientThread
from fairlead.backends.kafka.endpoint import KafkaEndpoint, ignore_error
from fairlead.backends.kafka.outage_log import KafkaOutageLog, ThrottleLog
from fairlead.backends.kafka.prefix_owner import PrefixOwner
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.forks import drop_when_forked

log = logging.getLogger("fairlead.kafka")

SEND_SECONDS = 5.0
"""Seconds after which an unsent message is left to the sweeps."""

MOST_WAITING = 20_000
"""Messages that wait for their topics, at most."""

_FLUSH_SECONDS = 2.0
_POLL_SECONDS = 0.1


class Outgoing(NamedTuple):
    """A message to be sent."""

    queue: str
    partition: int
    key: bytes | None
    value: bytes


class KafkaSender:
    """Send messages from any thread without blocking it. Count messages that cannot be sent: sweeps
    of the rows find the tasks of these messages."""

    def __init__(
        self,
        endpoint: KafkaEndpoint,
        owner: PrefixOwner,
        partitions: Mapping[str, int],
        counted: Callable[[str, int], None],
    ) -> None:
        """`partitions`: number of partitions of each queue, as far as this process knows."""
        self._endpoint = endpoint
        self._owner = owner
        self._partitions = partitions
        self._counted = counted
        self._outages = KafkaOutageLog(
            "triggers were not sent; the sweeps will find their rows",
            {"channel": endpoint.location},
        )
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        # The threads and sockets of librdkafka stay with the parent process.
        self._lock = threading.Lock()
        self._thread: ClientThread[Producer] | None = None
        self._topics: dict[str, int] = {}
        """The least number of partitions of each topic that is known to exist."""
        self._waiting: deque[Outgoing] = deque()
        """Messages for topics that are not known to exist."""

    def send(self, messages: Iterable[Outgoing]) -> None:
        """Send messages of a committed submit."""
        thread = self._thread or self._start()
        producer = thread.client
        for message in messages:
            if message.partition < self._topics.get(message.queue, 0):
                self._produce(producer, message)
            elif len(self._waiting) < MOST_WAITING:
                self._waiting.append(message)
            else:
                self._unsent("its topic is not known to exist yet")
        thread.poke()

    def close(self) -> None:
        """Send what is left, for some seconds at most. The sender may be used again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
            self._topics = {}

    def _start(self) -> ClientThread[Producer]:
        with self._lock:
            if self._thread is None:
                settings = {
                    "acks": 1,  # a message may be lost, since its row is durable
                    "linger.ms": 0,
                    # Under load, messages that come while a few requests are under way are sent
                    # together.
                    "max.in.flight.requests.per.connection": 4,
                    "message.timeout.ms": round(SEND_SECONDS * 1000),
                    "delivery.report.only.error": True,
                    "on_delivery": self._on_delivery,
                    "error_cb": ignore_error,
                    "throttle_cb": ThrottleLog({"channel": self._endpoint.location}),
                }
                producer = Producer(self._endpoint.producer_settings(settings))
                self._thread = ClientThread("sender", producer, self, self._outages)
            return self._thread

    def _produce(self, producer: Producer, message: Outgoing) -> None:
        try:
            producer.produce(
                self._endpoint.topic(message.queue),
                message.value,
                message.key,
                partition=message.partition,
            )
        except (BufferError, KafkaException) as error:
            if isinstance(error, KafkaException):
                # The topic may have been deleted, or created again with fewer partitions.
                self._topics.pop(message.queue, None)
            self._unsent(str(error))

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if error.code() != KafkaError._MSG_TIMED_OUT:
                self._topics.pop(
                    self._endpoint.queue(message.topic() or self._endpoint.prefix), None
                )
            self._unsent(error.str())

    def _unsent(self, why: str, count: int = 1) -> None:
        self._counted("unsent_triggers", count)
        self._outages.report(why)

    # in the thread --------------------------------------------------------------------------------

    def poll(self, thread: ClientThread[Producer]) -> None:
        producer = thread.client
        if not self._waiting and not len(producer):
            thread.wait_for_work()
        elif self._waiting and not self._ensure_topics(producer):
            producer.poll(AGAIN_SECONDS)
        else:
            producer.poll(_POLL_SECONDS)

    def finish(self, thread: ClientThread[Producer]) -> None:
        self._ensure_topics(thread.client)
        if left := thread.client.flush(_FLUSH_SECONDS):
            self._unsent("the application was closed", left)

    def on_failure(self, error: BaseException) -> None:
        log.error("the sender of triggers broke; the sweeps will find their rows", exc_info=error)

    def close_client(self, thread: ClientThread[Producer]) -> None:
        """Let the next send start another thread. A producer ends with its last reference."""
        with self._lock:
            if self._thread is thread:
                self._thread = None

    def _ensure_topics(self, producer: Producer) -> bool:
        """Send the messages that wait for their topics. Return False if Kafka is unavailable, which
        leaves the messages to the sweeps."""
        messages: list[Outgoing] = []
        with suppress(IndexError):  # a sender that is used again has two threads for a moment
            while True:
                messages.append(self._waiting.popleft())
        wanted: dict[str, int] = {}
        for message in messages:
            least = max(message.partition + 1, self._partitions.get(message.queue, 0))
            wanted[message.queue] = max(least, wanted.get(message.queue, 0))
        if not wanted:
            return True
        try:
            self._owner.require()
            self._endpoint.ensure(wanted, SEND_SECONDS)
        except (StoreUnavailable, ConfigurationError) as error:
            self._unsent(str(error), len(messages))
            return False
        self._topics |= wanted
        for message in messages:
            self._produce(producer, message)
        return True
