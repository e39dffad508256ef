"""Sends messages to Kafka and says when all of them are there for good: a producer that is
idempotent, for one thread."""

from __future__ import annotations

import threading
import time

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fairlead.backends.kafka.endpoint import KafkaEndpoint, silent
from fairlead.errors import StoreUnavailable

SECONDS = 30.0
"""What is not there after so long has failed; what was sent may still arrive."""

_POLL_SECONDS = 0.1
_STOP_SECONDS = 2.0
"""For what is on its way when it is told to stop."""


class Sender:
    """Messages of one partition arrive in the order of the calls, if they arrive."""

    def __init__(self, place: KafkaEndpoint, seconds: float = SECONDS) -> None:
        self._place = place
        self._seconds = seconds
        self._producer: Producer | None = None
        self._error: KafkaError | None = None
        self._stops = threading.Event()

    def send(self, topic: str, partition: int, key: str, value: bytes) -> None:
        """Give a message to the producer. Raises StoreUnavailable when it could not be sent; then
        none that was sent since the last `confirm` may be taken for sent."""
        until = time.monotonic() + self._seconds
        while True:
            try:
                self._client().produce(topic, value, key, partition)
            except BufferError:
                self._client().poll(_POLL_SECONDS)
                self._look(until)
            except KafkaException as error:
                self._give_up(error.args[0].str())
            else:
                return

    def confirm(self) -> None:
        """Wait until all that was sent is there for good, with every broker in sync. Raises
        StoreUnavailable otherwise."""
        if self._producer is None:
            return
        until = time.monotonic() + self._seconds
        while self._producer.flush(_POLL_SECONDS):
            self._look(until)
        self._look(until)

    def stop(self) -> None:
        """From another thread, or a signal's handler: give up soon what cannot be sent."""
        self._stops.set()

    def close(self) -> None:
        """What is not confirmed may not arrive."""
        producer, self._producer, self._error = self._producer, None, None
        if producer is not None:
            producer.purge()
            producer.flush(_POLL_SECONDS)

    def _client(self) -> Producer:
        if self._producer is None:
            self._error = None
            self._producer = Producer(
                self._place.settings(
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
                        "error_cb": silent,
                    }
                )
            )
        return self._producer

    def _reported(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._error = error

    def _look(self, until: float) -> None:
        """Give up when a message has failed, or it takes too long."""
        if self._error is not None:
            self._give_up(self._error.str())
        if self._producer is not None and len(self._producer):
            now = time.monotonic()
            if now > until or (
                self._stops.is_set() and now > until - self._seconds + _STOP_SECONDS
            ):
                self._give_up(
                    f"not all was sent in {self._seconds:g} s, or before it was told to stop"
                )

    def _give_up(self, why: str) -> None:
        self.close()
        raise StoreUnavailable(f"{self._place.location}: {why}")
