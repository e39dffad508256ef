"""Idempotent Kafka producer for one thread: send messages, and wait for their confirmation."""

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
"""Longest wait of a call for messages in flight after a stop, in seconds."""


class Sender:
    """Sender of messages. Messages of one partition arrive in the order of the calls, if they
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
                self._check(until)
            except KafkaException as error:
                self._fail(error.args[0].str())
            else:
                return

    def confirm(self) -> None:
        """Wait until every in-sync replica has all messages. Raise StoreUnavailable after the
        timeout, or if a message has failed."""
        if self._producer is None:
            return
        until = time.monotonic() + self._seconds
        while self._producer.flush(_POLL_SECONDS):
            self._check(until)
        self._check(until)

    def stop(self) -> None:
        """Let `send` and `confirm` wait at most 2 s from now on, and then drop unsent messages;
        callable from another thread or a signal handler."""
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
                self._endpoint.producer_settings(
                    {
                        # Retries neither repeat nor reorder messages.
                        "enable.idempotence": True,
                        "acks": "all",
                        # No timeout for single messages, because one expired message would leave
                        # a gap. `_check` gives up all of them together.
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

    def _check(self, until: float) -> None:
        """Raise StoreUnavailable when a message has failed, or at the time `until`."""
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
