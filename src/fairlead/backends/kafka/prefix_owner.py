"""The owner of a prefix: the first readable message of the topic `<prefix>task.owner` names the
task store that the topics and the group belong to.

The order of the messages decides between two applications that start at the same time.
"""

from __future__ import annotations

import logging
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from fairlead.backends.kafka.endpoint import ADMIN_SECONDS, KafkaEndpoint
from fairlead.errors import StoreUnavailable
from fairlead.ports.cluster import Cluster
from fairlead.ports.owner_record import NameOwner, OwnedName, OwnerRecord, decode, encode

log = logging.getLogger("fairlead.kafka")

TOPIC = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Settings of the topic: its message never expires."""

_POLL_SECONDS = 0.1


class PrefixOwner:
    """The owner of the prefix of an endpoint, for any thread."""

    def __init__(self, endpoint: KafkaEndpoint, store: Cluster | None) -> None:
        """`store`: the task store of this application; None checks nothing."""
        self._endpoint = endpoint
        name = OwnedName(
            f"prefix {endpoint.prefix!r} of {endpoint.location}",
            f"the topic {endpoint.owner}",
            "prefix= in the URL",
            "prefix",
        )
        self._owner = NameOwner(name, store)

    def require(self) -> None:
        """Check that the prefix belongs to this application, and take a prefix without an owner;
        see `NameOwner`."""
        self._owner.require(self._read, self._write)

    def check(self) -> None:
        """Check as `require` does, but take no prefix, and read the owner anew."""
        self._owner.check(self._read)

    def _read(self) -> OwnerRecord | None:
        """Return the owner; None if there is none yet."""
        endpoint = self._endpoint
        refusals = endpoint.new_refusals()
        if endpoint.partitions_of(endpoint.owner) is None:
            return None
        consumer = Consumer(
            endpoint.settings(
                {
                    "group.id": endpoint.group,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "error_cb": refusals,
                }
            )
        )
        until = time.monotonic() + ADMIN_SECONDS
        try:
            at = TopicPartition(endpoint.owner, 0)
            first, end = consumer.get_watermark_offsets(at, timeout=ADMIN_SECONDS) or (0, 0)
            consumer.assign([TopicPartition(endpoint.owner, 0, first)])
            while first < end:
                message = consumer.poll(_POLL_SECONDS)
                if message is None or message.error() is not None:
                    if time.monotonic() > until:
                        error = None if message is None else message.error()
                        raise KafkaException(error or KafkaError(KafkaError._TIMED_OUT))
                    continue
                if (owner := decode(message.value())) is not None:
                    return owner
                first = (message.offset() or 0) + 1
                fields = {"topic": endpoint.owner, "offset": message.offset()}
                log.error("an owner record cannot be read; it is skipped", extra=fields)
            return None
        except KafkaException as error:
            raise refusals.translate(error, endpoint.location) from error
        finally:
            consumer.close()

    def _write(self, mine: OwnerRecord) -> OwnerRecord:
        """Write our record, and return the owner, which may be an application that was first."""
        endpoint = self._endpoint
        refusals = endpoint.new_refusals()
        endpoint.create_topic(endpoint.owner, 1, TOPIC)
        failed: list[KafkaError] = []
        producer = Producer(
            endpoint.settings(
                {
                    "acks": "all",
                    "message.timeout.ms": round(ADMIN_SECONDS * 1000),
                    "error_cb": refusals,
                    "on_delivery": lambda error, _: failed.append(error) if error else None,
                }
            )
        )
        try:
            producer.produce(endpoint.owner, encode(mine), partition=0)
            producer.flush()  # ends with message.timeout.ms
            if failed:
                raise KafkaException(failed[0])
        except KafkaException as error:
            raise refusals.translate(error, endpoint.location) from error
        if (owner := self._read()) is None:
            raise StoreUnavailable(
                f"{endpoint.location}: the topic {endpoint.owner} lost its owner"
            )
        return owner
