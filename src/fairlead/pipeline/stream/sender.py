"""A producer for one thread that sends messages to Kafka and confirms them; it is idempotent."""

from __future__ import annotations

import threading
import time

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fairlead.backends.kafka.endpoint import KafkaEndpoint, ignore_error
from fairlead.errors import StoreUnavailable

SECONDS = 30.0
"""Seconds after which an unconfirmed message has failed; it may still arrive."""

_POLL_SECONDS = 0.1
_STOP_SECONDS = 2.0
"""Seconds for messages in flight after a stop."""


class Sender:
    """Sender of messages; those of one partition arrive in the order of the calls, if they
    arrive."""

    def __init__(self, endpoint: KafkaEndpoint, seconds: float = SECONDS) -> None:
        self._endpoint = endpoint
        self._seconds = seconds
        self._producer: Producer | None = None
        self._error: KafkaError | None = None
        self._stops = threading.Event()

    def send(self, topic: str, partition: int, key: str, value: bytes) -> None:
        """Send a message. Raise StoreUnavailable when it cannot be sent; then send all messages
        since the last `confirm` again."""
        until = time.monotonic() + self._seconds
        while True:
            try:
                self._client().produce(topic, value, key, partition)
            except BufferError:
                self._client().poll(_POLL_SECONDS)
                self._look(until)
            except KafkaException as error:
                self._fail(error.args[0].str())
            else:
                return

    def confirm(self) -> None:
        """Wait until every broker in sync has all messages. Raise StoreUnavailable otherwise."""
        if self._producer is None:
            return
        until = time.monotonic() + self._seconds
        while self._producer.flush(_POLL_SECONDS):
            self._look(until)
        self._look(until)

    def stop(self) -> None:
        """Drop unsent messages soon; callable from another thread or a signal handler."""
        self._stops.set()

    def close(self) -> None:
        """Close the producer; unconfirmed messages may not arrive."""
        producer, self._producer, self._error = self._producer, None, None
        if producer is not None:
            producer.purge()
            producer.flush(_POLL_SECONDS)

    def _client(self) -> Producer:
        if self._producer is None:
            self._error = None
            self._producer = Producer(
                self._endpoint.settings(
                    {
                        # nothing comes twice, or out of order, by retries
                        "enable.idempotence": True,
                        "acks": "all",
                        # or a message in the middle might be left out; we give up as a whole
                        "message.timeout.ms": 0,
                        "linger.ms": 5,
                        "compression.type": "lz4",
                        "delivery.report.only.error": True,
                        "on_delivery": self._reported,
                        "error_cb": ignore_error,
                    }
                )
            )
        return self._producer

    def _reported(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._error = error

    def _look(self, until: float) -> None:
        """Raise when a message has failed, or the time is over."""
        if self._error is not None:
            self._fail(self._error.str())
        if self._producer is not None and len(self._producer):
            now = time.monotonic()
            if now > until or (
                self._stops.is_set() and now > until - self._seconds + _STOP_SECONDS
            ):
                self._fail(
                    f"some messages were not sent within {self._seconds:g} s or before the stop"
                )

    def _fail(self, why: str) -> None:
        self.close()
        raise StoreUnavailable(f"{self._endpoint.location}: {why}")
