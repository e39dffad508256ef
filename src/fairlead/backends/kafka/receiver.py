"""The receiver of triggers: a consumer in the group of all nodes, with a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from fairlead.backends.kafka.client import ClientThread, next_page
from fairlead.backends.kafka.endpoint import ADMIN_SECONDS, CLOSE_SECONDS, KafkaEndpoint, reason
from fairlead.backends.kafka.failures import is_refused, translate
from fairlead.backends.kafka.messages import decode
from fairlead.backends.kafka.outage_log import KafkaOutageLog
from fairlead.backends.kafka.prefix_owner import PrefixOwner
from fairlead.model import PartitionKey, Trigger
from fairlead.ports.notification import Lane

log = logging.getLogger("fairlead.kafka")

PAGE = 1000
"""Messages taken from the consumer at once."""

MOST_UNPROCESSED = 20_000
"""Messages that wait for the event loop; with more, partitions are paused."""

_POLL_SECONDS = 0.1
_WARN_EVERY = 30.0


class Received(NamedTuple):
    """A message with its decoded content."""

    key: PartitionKey
    offset: int
    at: float
    """Time of sending by the sender's clock, in seconds since 1970."""
    content: Trigger | Lane | None
    """The trigger or lane of the message; None if it could not be read."""


class ReceiverListener(Protocol):
    """Callbacks of a receiver, which calls them in its thread."""

    def on_assigned(self, keys: Collection[PartitionKey]) -> None:
        """Note partitions that are read from now on."""

    def on_revoked(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        """Stop work on these partitions, and return the offsets to commit. Nothing happens with the
        partitions after the return."""

    def on_lost(self, keys: Collection[PartitionKey]) -> None:
        """Note partitions that other nodes may own already."""

    def on_messages(self, messages: Sequence[Received]) -> None:
        """Take messages, which keep the order of each partition."""

    def on_failure(self, error: BaseException) -> None:
        """Note the error after which nothing will be received."""


class Receiver:
    """A member of the consumer group, and its thread. Partitions move by cooperative rebalancing
    (KIP-429)."""

    def __init__(
        self,
        endpoint: KafkaEndpoint,
        owner: PrefixOwner,
        node: str,
        session_seconds: float,
        listener: ReceiverListener,
    ) -> None:
        self._endpoint = endpoint
        self._owner = owner
        self._listener = listener
        self._served: dict[str, int] = {}
        self._wanted: dict[str, int] = {}
        self._commits: dict[PartitionKey, int] = {}
        self._lock = threading.Lock()
        self._unprocessed = 0
        self._is_paused = False
        self._outages = KafkaOutageLog(
            "Kafka reports errors", {"channel": endpoint.location}, _WARN_EVERY
        )
        settings = endpoint.settings(
            {
                "group.id": endpoint.group,
                "client.id": node,
                "error_cb": lambda error: self._outages.report(error.str()),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest"
                if isinstance(endpoint.reset, float)
                else endpoint.reset,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": round(session_seconds * 1000),
                "heartbeat.interval.ms": round(session_seconds * 1000 / 20),
                # Fetch little ahead: other nodes can process messages that are not fetched.
                "queued.min.messages": 10_000,
                "queued.max.messages.kbytes": 8192,
                "fetch.queue.backoff.ms": 20,
            }
        )
        self._thread = ClientThread(
            "receiver",
            Consumer(settings),
            self,
            self._outages,
            CLOSE_SECONDS,
            # When the process exits, the event loop that would finish the work on the partitions is
            # gone.
            closes_at_exit=False,
        )

    def serve(self, partitions: Mapping[str, int]) -> None:
        """Read the partitions of these queues that the group gives to this node. `partitions`:
        number of partitions of each queue."""
        with self._lock:
            self._wanted = dict(partitions)

    def commit(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Commit these offsets, soon: everything below them is done."""
        with self._lock:
            self._commits |= offsets

    def processed(self, count: int) -> None:
        """Note that `count` messages no longer wait for the event loop."""
        with self._lock:
            self._unprocessed -= count

    def close(self) -> None:
        """Release all partitions, and leave the group. Block until then, for at most CLOSE_SECONDS:
        the group treats a consumer that does not leave in time as dead."""
        if not self._thread.close():
            log.warning(
                "this node could not leave its Kafka group in time",
                extra={"channel": self._endpoint.location},
            )

    # in the thread --------------------------------------------------------------------------------

    def poll(self, thread: ClientThread[Consumer]) -> None:
        consumer = thread.client
        with self._lock:
            wanted, commits, self._commits = self._wanted, self._commits, {}
            is_too_much = self._unprocessed > (
                MOST_UNPROCESSED // 2 if self._is_paused else MOST_UNPROCESSED
            )
        if wanted != self._served:
            self._owner.require()
            self._endpoint.ensure(wanted)
            consumer.subscribe(
                [self._endpoint.topic(queue) for queue in sorted(wanted)],
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost,
            )
            self._served = wanted
        if not self._served:
            thread.pause(_POLL_SECONDS)
            return
        if commits:
            consumer.commit(offsets=self._offsets(commits), asynchronous=True)
        if is_too_much != self._is_paused:
            self._is_paused = is_too_much
            (consumer.pause if is_too_much else consumer.resume)(consumer.assignment())
        if messages := next_page(consumer, PAGE, _POLL_SECONDS):
            self._deliver(messages)

    def finish(self, thread: ClientThread[Consumer]) -> None:
        """Do nothing: the close revokes the partitions, and commits their offsets."""

    def on_failure(self, error: BaseException) -> None:
        self._listener.on_failure(error)

    def close_client(self, thread: ClientThread[Consumer]) -> None:
        thread.client.close()

    def _deliver(self, messages: Sequence[Message]) -> None:
        found = []
        for message in messages:
            topic, number, offset = message.topic(), message.partition(), message.offset()
            if (error := message.error()) is not None:
                if is_refused(error):
                    raise translate(error, self._endpoint.location)
                self._outages.report(error.str())
            elif topic is not None and number is not None and offset is not None:
                key = PartitionKey(self._endpoint.queue(topic), number)
                found.append(
                    Received(
                        key, offset, message.timestamp()[1] / 1000, self._content(key, message)
                    )
                )
        if found:
            with self._lock:
                self._unprocessed += len(found)
            self._listener.on_messages(found)

    def _content(self, key: PartitionKey, message: Message) -> Trigger | Lane | None:
        value: Any = message.value()
        try:
            return decode(key, value)
        except msgspec.DecodeError as error:
            fields = {
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
            }
            log.error(
                "skipped an unreadable message from Kafka",
                extra={**fields, "error": str(error)},
            )
            return None

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if isinstance(self._endpoint.reset, float):
            try:
                partitions = since(consumer, partitions, time.time() - self._endpoint.reset)
            except KafkaException as error:
                # Read from the earliest offset: triggers of finished tasks are skipped.
                self._outages.report(reason(error))
        consumer.incremental_assign(partitions)
        if self._is_paused:
            consumer.pause(partitions)
        self._listener.on_assigned(self._keys(partitions))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        offsets = self._listener.on_revoked(self._keys(partitions))
        if offsets:
            try:
                consumer.commit(offsets=self._offsets(offsets), asynchronous=False)
            except KafkaException as error:
                self._outages.report(reason(error))  # the next owner gets some messages again
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._listener.on_lost(self._keys(partitions))
        consumer.incremental_unassign(partitions)

    def _keys(self, partitions: Sequence[TopicPartition]) -> list[PartitionKey]:
        return [PartitionKey(self._endpoint.queue(at.topic), at.partition) for at in partitions]

    def _offsets(self, offsets: Mapping[PartitionKey, int]) -> list[TopicPartition]:
        return [
            TopicPartition(self._endpoint.topic(key.queue), key.partition, at)
            for key, at in offsets.items()
        ]


def since(
    consumer: Consumer, partitions: Sequence[TopicPartition], instant: float
) -> list[TopicPartition]:
    """Return the partitions, each from its committed offset, or else from the first message not
    older than `instant` (seconds since 1970). Raise KafkaException if Kafka does not respond."""
    committed = consumer.committed(list(partitions), timeout=ADMIN_SECONDS)
    fresh = [at for at in committed if at.offset == OFFSET_INVALID]
    asked = [TopicPartition(at.topic, at.partition, round(instant * 1000)) for at in fresh]
    found = consumer.offsets_for_times(asked, timeout=ADMIN_SECONDS) if asked else []
    return [at for at in committed if at.offset != OFFSET_INVALID] + found
