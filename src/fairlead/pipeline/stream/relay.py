"""The relay: send every finished attempt from a store to Kafka at least once, in the order of
commits.

The relay sends a batch, waits until Kafka confirms it, then sends a mark to every partition of the
topic. After Kafka confirms the marks, the relay saves its position in the store, and the store may
delete the attempts up to that position. A relay that crashes sends its last batch again after the
restart. Several concurrent relays send some attempts twice. Readers of the topic detect repeated
attempts by `messages.HighWater`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.clock import Clock
from fairlead.errors import StoreUnavailable
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.stream.messages import MessageBatch, Sent
from fairlead.pipeline.stream.topic import CONFIRM_SECONDS, AttemptsTopic, Sender
from fairlead.ports.history import START, HistoryStore, Position
from fairlead.ports.statements import Row

log = logging.getLogger("fairlead.relay")

ROWS = 10_000
"""Attempts in a batch."""

KIND = "stream"
"""Kind under which the relay registers as a reader in the store."""

OnBatch = Callable[[Sender, Sequence[Row]], None]
"""Callback for the attempts of each batch (rows of ATTEMPT_FIELDS); a round without attempts calls
it once with no rows. The callback may send messages to other topics, and the relay waits until
Kafka confirms them together with the batch. After a crash, the relay passes the last batch
again."""


class Relayed(msgspec.Struct, frozen=True):
    """Result of one round of the relay."""

    rows: int
    batches: int
    position: str
    """Position of the last attempt that Kafka has confirmed, in this round or before."""
    seconds: float


class Relay:
    """Relay from one store to one topic. One relay is enough; several may run at once. Other
    threads may only set `stops`."""

    def __init__(
        self,
        history: HistoryStore,
        endpoint: KafkaEndpoint,
        clock: Clock,
        *,
        partitions: int | None = None,
        rows: int = ROWS,
        also: OnBatch | None = None,
        seconds: float = CONFIRM_SECONDS,
    ) -> None:
        """`partitions`: number of partitions of the topic; None accepts an existing topic as it is,
        and creates a new one with the default number. `rows`: attempts in a batch. `seconds`:
        longest wait for a confirmation by Kafka."""
        self.topic = AttemptsTopic(endpoint)
        self._history = history
        self._read = history.database.read_now
        self._clock = clock
        self._wanted = partitions
        self._rows = rows
        self._also = also or (lambda sender, rows: None)
        self._name = f"kafka/{endpoint.prefix}"  # of all relays to this topic
        self.stops = threading.Event()
        """When set, the relay stops after the current batch, and drops messages that cannot be
        sent."""
        self._sender = Sender(endpoint, seconds, self.stops)
        self._partitions = 0
        """Number of partitions of the topic; 0 if unknown."""
        self._position: Position | None = None
        """Position of the last attempt that is confirmed and marked in the topic."""

    def round(self) -> Relayed:
        """Send all attempts below the horizon, before which no further commit can appear.

        Raise StoreUnavailable when the store or Kafka does not respond (the next round repeats the
        last batch), ConfigurationError for an unusable topic, and CheckFailed when the topic has
        attempts that the store does not have.
        """
        started = time.monotonic()
        store_id: str = self._read(self._history.store_id())
        after = self._register(store_id)
        until: Position = self._read(self._history.horizon())
        if after >= until:
            raise self._store_behind(after, until)
        batch = MessageBatch(store_id, after, self._partitions)
        rows = batches = 0
        while found := self._read(self._history.attempts(after, until, self._rows)):
            after = Position(*found[-1][:2])
            self._send(batch.attempts(found))
            self._also(self._sender, found)
            self._sender.confirm()
            self._send(batch.marks(after))
            self._sender.confirm()
            self._advance(after)
            rows, batches = rows + len(found), batches + 1
            if len(found) < self._rows or self.stops.is_set():
                break
        if not batches:
            self._also(self._sender, ())
            self._sender.confirm()
        return Relayed(rows, batches, str(after), round(time.monotonic() - started, 3))

    def run(self, every: float, on_rows: Callable[[Relayed], None] = lambda relayed: None) -> None:
        """Do rounds with `every` seconds between them until `stops` is set. While the store or
        Kafka does not respond, try again after the same pause. Raise other errors."""
        trouble = ""
        while not self.stops.is_set():
            try:
                relayed = self.round()
            except StoreUnavailable as error:
                if str(error) != trouble and not self.stops.is_set():
                    trouble = str(error)
                    log.warning(
                        "the relay cannot send; it tries again and repeats unconfirmed attempts",
                        extra={"error": trouble},
                    )
            else:
                if trouble:
                    log.info("the relay sends again", extra={"position": relayed.position})
                    trouble = ""
                if relayed.rows:
                    log.debug("attempts relayed", extra=msgspec.to_builtins(relayed))
                on_rows(relayed)
            self.stops.wait(every)

    def close(self) -> None:
        """Close the connection to Kafka."""
        self._sender.close()

    def _register(self, store_id: str) -> Position:
        """Return the position after which the relay reads. Check the topic, and register in the
        store before the first read, so that the store deletes no attempt that is not in Kafka."""
        reader = self._read(self._history.reader(self._name))
        if not self._partitions:
            count = self.topic.ensure(self._wanted)
            last, until = self.topic.last(count), self._read(self._history.horizon())
            for message in last:
                if message.store_id == store_id and message.position >= until:
                    raise self._store_behind(message.position, until)
            self._partitions = count
        known = START if reader is None else reader.position
        position = max(known, self._position or START)
        if reader is None or self._position is None:
            self._advance(position)
        self._position = position
        return position

    def _send(self, messages: Iterable[Sent]) -> None:
        for message in messages:
            self._sender.send(self.topic.name, message.partition, message.key, message.value)

    def _advance(self, position: Position) -> None:
        self._history.database.run(
            self._history.advance(self._name, KIND, position, self._clock.now())
        )
        self._position = position

    def _store_behind(self, sent: Position, until: Position) -> CheckFailed:
        return CheckFailed(
            f"{self.topic.location} has attempts up to {sent}, but this store has attempts only up"
            f" to {until}, so the store was restored from a backup or moved to another server. Set"
            " another store_id in the table fairlead_store, so that the lake treats the store as"
            " a new store, and remove the reader with `fairlead pipeline status --forget` "
            + repr(self._name)
        )
