"""Sends messages to Kafka from any thread, without blocking it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fairlead.backends.kafka.endpoint import Place, silent
from fairlead.backends.memory.notifier import forget_when_forked
from fairlead.errors import ConfigurationError, StoreUnavailable

log = logging.getLogger("fairlead.kafka")

SEND_SECONDS = 5.0
"""A message that could not be sent for so long is left to the sweeps."""

MOST_WAITING = 20_000
"""Messages that wait for their topics to be looked at."""

_AGAIN_SECONDS = 1.0
_FLUSH_SECONDS = 2.0
_POLL_SECONDS = 0.1


class Outgoing(NamedTuple):
    """A message to be sent."""

    queue: str
    partition: int
    key: bytes | None
    value: bytes


class Sender:
    """Sends from any thread without blocking it. What cannot be sent is counted, and left to
    whoever sweeps the rows."""

    def __init__(
        self, place: Place, partitions: Mapping[str, int], counted: Callable[[str, int], None]
    ) -> None:
        """`partitions`: how many a queue has, as far as this process knows."""
        self._place = place
        self._partitions = partitions
        self._counted = counted
        self.after_fork()
        forget_when_forked(self)
        weakref.finalize(self, _shut, weakref.ref(self))  # a script may end right after its submit

    def after_fork(self) -> None:
        # The threads and sockets of librdkafka stay with the parent.
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._thread: threading.Thread | None = None
        self._topics: dict[str, int] = {}
        """How many partitions those topics have at least that were looked at."""
        self._waiting: deque[Outgoing] = deque()
        """For topics that have not been looked at."""
        self._news = threading.Event()
        self._trouble = ""

    def send(self, messages: Iterable[Outgoing]) -> None:
        """After the commit."""
        producer = self._producer or self._start()
        for message in messages:
            if message.partition < self._topics.get(message.queue, 0):
                self._produce(producer, message)
            elif len(self._waiting) < MOST_WAITING:
                self._waiting.append(message)
            else:
                self._unsent("its topic could not be looked at")
        self._news.set()

    def shut(self) -> None:
        """Send what is left, for some seconds at most; it may be used again."""
        with self._lock:
            producer, self._producer = self._producer, None
            thread, self._thread = self._thread, None
        if producer is None or thread is None:
            return
        # Python must not end while a thread of its own is inside librdkafka.
        self._news.set()
        thread.join()
        self._look_at_topics(producer)
        self._topics = {}
        if left := producer.flush(_FLUSH_SECONDS):
            self._unsent("the application was closed", left)

    def _start(self) -> Producer:
        with self._lock:
            if self._producer is None:
                producer = self._producer = Producer(
                    self._place.settings(
                        {
                            "acks": 1,  # the rows are what must not be lost
                            "linger.ms": 0,
                            # Under load what comes meanwhile waits for the answer to a few
                            # requests, and travels together.
                            "max.in.flight.requests.per.connection": 4,
                            "message.timeout.ms": round(SEND_SECONDS * 1000),
                            "delivery.report.only.error": True,
                            "on_delivery": self._reported,
                            "error_cb": silent,
                        }
                    )
                )
                self._thread = threading.Thread(
                    target=self._serve, args=(producer,), name="fairlead-kafka-sender", daemon=True
                )
                self._thread.start()
            return self._producer

    def _produce(self, producer: Producer, message: Outgoing) -> None:
        try:
            producer.produce(
                self._place.topic(message.queue),
                message.value,
                message.key,
                partition=message.partition,
            )
        except (BufferError, KafkaException) as error:
            if isinstance(error, KafkaException):
                self._topics.pop(
                    message.queue, None
                )  # it may have been deleted, or be smaller than it was
            self._unsent(str(error))

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if error.code() != KafkaError._MSG_TIMED_OUT:
                self._topics.pop(self._place.queue(message.topic() or self._place.prefix), None)
            self._unsent(error.str())

    def _unsent(self, why: str, count: int = 1) -> None:
        self._counted("unsent_triggers", count)
        if why != self._trouble:
            self._trouble = why
            told = {"channel": self._place.location, "error": why}
            log.warning("triggers were not sent; the sweeps will find their rows", extra=told)

    def _serve(self, producer: Producer) -> None:
        """In a thread: serve what librdkafka reports, and look at topics first used."""
        while self._producer is producer:
            self._news.wait()
            self._news.clear()
            while self._producer is producer and (self._waiting or len(producer)):
                if self._waiting and not self._look_at_topics(producer):
                    producer.poll(_AGAIN_SECONDS)
                producer.poll(_POLL_SECONDS)

    def _look_at_topics(self, producer: Producer) -> bool:
        """Send what waits for its topic. False when Kafka is away: then it is left to the
        sweeps."""
        messages: list[Outgoing] = []
        with suppress(IndexError):  # from another thread too, when the application is closed
            while True:
                messages.append(self._waiting.popleft())
        wanted: dict[str, int] = {}
        for message in messages:
            least = max(message.partition + 1, self._partitions.get(message.queue, 0))
            wanted[message.queue] = max(least, wanted.get(message.queue, 0))
        if not wanted:
            return True
        try:
            self._place.ensure(wanted, SEND_SECONDS)
        except (StoreUnavailable, ConfigurationError) as error:
            self._unsent(str(error), len(messages))
            return False
        self._topics |= wanted
        for message in messages:
            self._produce(producer, message)
        return True


def _shut(sender: weakref.ref[Sender]) -> None:
    if (found := sender()) is not None:  # its thread keeps it alive
        found.shut()
