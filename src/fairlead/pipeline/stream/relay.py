"""The relay: send finished attempts from a store to Kafka, in the order of their commits, each at
least once.

A batch is sent, confirmed by Kafka, then marked in every partition. Only then does the store learn
that it was read, and may clean it. A crashed relay sends its last batch again, and several relays
at once send some attempts twice; readers of the topic detect repeats by `high_water`.
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
from fairlead.pipeline.stream.messages import Batch, Sent
from fairlead.pipeline.stream.sender import SECONDS, Sender
from fairlead.pipeline.stream.topic import AttemptsTopic
from fairlead.ports.history import START, HistoryStore, Position
from fairlead.ports.statements import Row

log = logging.getLogger("fairlead.relay")

ROWS = 10_000
"""Attempts confirmed at once."""

KIND = "stream"
"""Kind of the reader in the store."""

Also = Callable[[Sender, Sequence[Row]], None]
"""Callback of each round with the attempts of each batch (rows of ATTEMPT_FIELDS), or once with
none. The callback may send more messages to its own topics, which are confirmed with the batch.
After a crash it gets the same attempts again."""


class Relayed(msgspec.Struct, frozen=True):
    """Result of a round."""

    rows: int
    batches: int
    position: str = msgspec.field(name="place")
    """Position up to which everything is in Kafka."""
    seconds: float


def reader_name(endpoint: KafkaEndpoint) -> str:
    """Return the name in the store of the relays to this topic."""
    return f"kafka/{endpoint.prefix}"


class Relay:
    """Relay from one store to one topic. Any number may run, and one is enough. Only `stop` may be
    called from another thread."""

    def __init__(
        self,
        history: HistoryStore,
        endpoint: KafkaEndpoint,
        clock: Clock,
        *,
        partitions: int | None = None,
        rows: int = ROWS,
        also: Also | None = None,
        seconds: float = SECONDS,
    ) -> None:
        """`partitions`: of the topic; None for the present or default number. `rows`: of a batch.
        `seconds`: time for the confirmation."""
        self.topic = AttemptsTopic(endpoint)
        self._history = history
        self._look = history.database.read_now
        self._clock = clock
        self._wanted = partitions
        self._rows = rows
        self._also = also
        self._name = reader_name(endpoint)
        self._sender = Sender(endpoint, seconds)
        self._stops = threading.Event()
        self._partitions = 0
        """Number of partitions of the topic; 0 if unknown."""
        self._position: Position | None = None
        """Position up to which everything is in the topic and marked."""

    def round(self, on_rows: Callable[[int], None] = lambda rows: None) -> Relayed:
        """Send all settled attempts; call `on_rows` after each batch. Raise StoreUnavailable when
        the store or Kafka is away (the next round repeats the last batch), ConfigurationError for
        an unusable topic, CheckFailed when the store is not the one sent before."""
        started = time.monotonic()
        store_id: str = self._look(self._history.store_id())
        after = self._begin(store_id)
        until: Position = self._look(self._history.horizon())
        if after >= until:
            raise self._went_back(after, until)
        batch = Batch(store_id, after, self._partitions)
        rows = batches = 0
        while found := self._look(self._history.attempts(after, until, self._rows)):
            after = Position(*found[-1][:2])
            self._send(batch.attempts(found))
            if self._also is not None:
                self._also(self._sender, found)
            self._sender.confirm()
            self._send(batch.marks(after))
            self._sender.confirm()
            self._advance(after)
            rows, batches = rows + len(found), batches + 1
            on_rows(len(found))
            if len(found) < self._rows or self._stops.is_set():
                break
        if not batches and self._also is not None:
            self._also(self._sender, ())
            self._sender.confirm()
        return Relayed(rows, batches, str(after), round(time.monotonic() - started, 3))

    def run(self, every: float, on_rows: Callable[[Relayed], None] = lambda relayed: None) -> None:
        """Do a round at this interval, in seconds, until `stop`; wait for a store or Kafka that is
        away. Raise other errors."""
        trouble = ""
        while not self._stops.is_set():
            try:
                relayed = self.round()
            except StoreUnavailable as error:
                if str(error) != trouble and not self._stops.is_set():
                    trouble = str(error)
                    log.warning(
                        "the relay waits: it sends again what was not confirmed",
                        extra={"error": trouble},
                    )
            else:
                if trouble:
                    log.info("the relay goes on", extra={"place": relayed.position})
                    trouble = ""
                if relayed.rows:
                    log.debug("attempts relayed", extra=msgspec.to_builtins(relayed))
                on_rows(relayed)
            self._stops.wait(every)

    def stop(self) -> None:
        """Stop after this batch, from any thread or signal handler; drop messages that cannot be
        sent."""
        self._stops.set()
        self._sender.stop()

    def close(self) -> None:
        """Close the relay."""
        self._sender.close()

    def _begin(self, store_id: str) -> Position:
        """Return the position to read after. Check the topic, and register in the store before the
        first read, so that it cleans nothing that is not in Kafka."""
        reader = self._look(self._history.reader(self._name))
        if not self._partitions:
            self._open(store_id)
        known = START if reader is None else reader.position
        position = known if self._position is None else max(self._position, known)
        if reader is None or self._position is None:
            self._advance(position)
        self._position = position
        return position

    def _open(self, store_id: str) -> None:
        count = self.topic.settle(self._wanted)
        last = self.topic.last(count)
        until: Position = self._look(self._history.horizon())
        for message in last:
            self.topic.check(message, count)
            if message.store_id == store_id and message.position >= until:
                raise self._went_back(message.position, until)
        self._partitions = count

    def _send(self, messages: Iterable[Sent]) -> None:
        for message in messages:
            self._sender.send(self.topic.name, message.partition, message.key, message.value)

    def _advance(self, position: Position) -> None:
        self._history.database.run(
            self._history.advance(self._name, KIND, position, self._clock.now())
        )
        self._position = position

    def _went_back(self, sent: Position, until: Position) -> CheckFailed:
        return CheckFailed(
            f"{self.topic.location} has attempts up to {sent}, and this store only up to {until}:"
            " the store was restored from a backup, or moved to another server. Give it another"
            " store_id in its table fairlead_store: it then counts as a new one; and let go of the"
            " reader: `fairlead pipeline status --forget` " + repr(self._name)
        )
