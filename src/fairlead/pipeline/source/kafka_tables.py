"""The tables of a topic: attempts, raw messages, or heartbeats of queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.history_rows import RECORDED_FIELDS
from fairlead.pipeline.incidents.heartbeat import decode
from fairlead.pipeline.schema import Column, Table, columns_in
from fairlead.pipeline.stream.messages import Attempt, read, recorded_of
from fairlead.pipeline.stream.topic import AttemptsTopic, Topic

log = logging.getLogger("fairlead.source")

Page = Sequence[tuple[int, bytes]]
"""Messages with their offsets."""

Columns = Mapping[str, Sequence[Any]]
"""Values by column name, one for each offset."""


@dataclass(frozen=True)
class TopicTable:
    """One table of a topic."""

    table: Table
    topic: Callable[[KafkaEndpoint], Topic]
    rows: Callable[[Page, str], tuple[Sequence[int], Columns]]
    """Function that takes a page and its location (for errors), and returns the offsets of the
    page's rows and their columns."""
    may_be_gone: bool = False
    """Whether dropped messages may be skipped, because old ones are useless."""


def _attempts(page: Page, whence: str) -> tuple[Sequence[int], Columns]:
    messages = [(offset, read(value, f"{whence}, offset {offset}")) for offset, value in page]
    found = [(offset, message) for offset, message in messages if isinstance(message, Attempt)]
    attempts = [attempt for _, attempt in found]
    return [offset for offset, _ in found], {
        **recorded_of(attempts),
        "store_id": [attempt.store_id for attempt in attempts],
    }


def _messages(page: Page, whence: str) -> tuple[Sequence[int], Columns]:
    return [offset for offset, _ in page], {"value": [value for _, value in page]}


def _heartbeats_topic(endpoint: KafkaEndpoint) -> Topic:
    return Topic(endpoint, endpoint.heartbeats)


def _heartbeats(page: Page, whence: str) -> tuple[Sequence[int], Columns]:
    offsets, heartbeats, values = [], [], []
    for offset, value in page:
        try:
            heartbeats.append(decode(value))
        except msgspec.DecodeError as error:
            # The next heartbeat comes within seconds, and an error would end all alerts.
            where = f"{whence}, offset {offset}"
            log.warning("no heartbeat", extra={"location": where, "error": str(error)})
            continue
        offsets.append(offset)
        values.append(value)
    return offsets, {
        "store_id": [heartbeat.store_id for heartbeat in heartbeats],
        "queue": [heartbeat.queue for heartbeat in heartbeats],
        "heartbeat": values,
    }


def _table(name: str, meaning: str, *columns: str | Column, instant: str = "") -> Table:
    position = """
    kafka_partition int    partition of the topic
    kafka_offset    bigint offset of the message in the partition
    """
    return Table(
        name,
        meaning,
        key=("kafka_partition", "kafka_offset"),
        instant=instant,
        columns=columns_in(position, *columns),
    )


_BRONZE = {column.name: column for column in ATTEMPTS.columns}

ATTEMPTS_SENT = TopicTable(
    _table(
        "attempts",
        "one attempt as sent by a relay; an attempt sent twice has two rows",
        _BRONZE["store_id"],
        *(_BRONZE[name] for name in RECORDED_FIELDS),
        instant="finished_at",
    ),
    AttemptsTopic,
    _attempts,
)

MESSAGES_SENT = TopicTable(
    _table(
        "messages",
        "one unchanged message of the topic, attempt or mark",
        "value string JSON; see fairlead.pipeline.stream.messages",
    ),
    AttemptsTopic,
    _messages,
)

HEARTBEATS_SENT = TopicTable(
    _table(
        "heartbeats",
        "heartbeat of a queue at an instant, sent by a relay for alerts",
        """
        store_id  string identity of the store
        queue     string queue of that store
        heartbeat string JSON; see fairlead.pipeline.incidents.heartbeat
        """,
    ),
    _heartbeats_topic,
    _heartbeats,
    may_be_gone=True,
)

TOPIC_TABLES = {each.table.name: each for each in (ATTEMPTS_SENT, MESSAGES_SENT, HEARTBEATS_SENT)}
