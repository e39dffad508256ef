"""The exporter: copy finished attempts and events of tasks from a store into the lake, each exactly
once.

A single commit lists the new files and advances the cursor. When a crash precedes this commit, the
lake ignores the files and removes them later. When a crash follows it, the next round continues
after the new files. When two exporters run at once, the lake refuses the commit of the second one.
After the commit, the exporter saves its position in the store. The
store may then delete events up to that position, but attempts only after `reconcile` has compared
them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from fairlead.clock import Clock
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.hashing import Hashing, hashing_of
from fairlead.pipeline.history_rows import attempts_table, events_table, submitted_table
from fairlead.pipeline.landing import land
from fairlead.pipeline.stream.cursors import release, store_position, streamed_test, topics_of
from fairlead.pipeline.warehouse.table import TableState, WarehouseTable
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import ATTEMPT_FIELDS, START, Feed, HistoryStore, Position
from fairlead.ports.statements import Row, Steps

log = logging.getLogger("fairlead.export")

ROWS = 50_000
"""Maximum number of rows in one file of bronze before compaction."""

Attempts = Literal["unless streamed", "never", "take over"]
"""Whether an exporter exports attempts. A stream is a job that reads them from Kafka instead.

"unless streamed": export them if no stream does. "never": export only events, beside a running
stream. "take over": export them, after which the stream exports none of this store until the
stream is restarted."""


class Exported(msgspec.Struct, frozen=True):
    """Result of one round of the exporter."""

    attempts: int
    events: int
    files: int
    seconds: float
    more: bool = False
    """Whether the round ended after the requested number of batches with more history left."""
    streamed: str | None = None
    """Topic of the stream that exports the attempts."""


class Exporter:
    """Exporter of the history below the horizon, before which no further commit can appear. Several
    exporters may run on one store and one lake."""

    def __init__(
        self,
        history: HistoryStore,
        lake: Warehouse,
        clock: Clock,
        rows: int = ROWS,
        attempts: Attempts = "unless streamed",
    ) -> None:
        self._history = history
        self._read = history.database.read_now
        self._clock = clock
        self._rows = rows
        self._lake = lake
        self._mode = attempts
        self._attempts, self._events = lake.table(ATTEMPTS), lake.table(EVENTS)
        self._readers = {"attempts": lake.reader, "events": f"{lake.reader}/events"}

    def round(
        self, on_rows: Callable[[int], None] = lambda rows: None, batches: int | None = None
    ) -> Exported:
        """Export all history below the horizon, or at most `batches` batches of each feed; call
        `on_rows` with the number of rows after each batch.

        Raise StoreUnavailable, BrokenLake, CheckFailed when the lake has rows that the store does
        not have, and ConfigurationError when the lake has hashed keys and the secret is missing.
        """
        started = time.monotonic()
        hashing = hashing_of(self._lake)
        store_id = self._read(self._history.store_id())
        feeds = self._feeds(store_id)
        # Register before the first read, so that the store deletes no row that is not in the lake.
        self._register(store_id)
        moved: Counter[str] = Counter()
        more = False
        if self._mode == "take over":
            self._release(store_id)
        for feed in feeds:
            for _ in islice(count(), batches):
                rows, files = self._batch(feed, store_id, hashing)
                moved.update({feed.name: rows, "files": files})
                on_rows(rows)
                if rows < self._rows:
                    break
            else:
                more = True
        for table in (self._attempts, self._events):
            table.tend(self._clock.now())
        attempts, events, files = (
            moved["attempts"],
            moved["events"] + moved["submitted"],
            moved["files"],
        )
        if attempts or events:
            log.info(
                "history exported", extra={"attempts": attempts, "events": events, "files": files}
            )
        topic = next(iter(topics_of(self._attempts.state(), store_id)), None)
        return Exported(attempts, events, files, round(time.monotonic() - started, 3), more, topic)

    def behind(self) -> int:
        """Return the number of attempts below the horizon that are not exported yet."""
        store_id = self._read(self._history.store_id())
        until: Position = self._read(self._history.horizon())
        last = Position(until.xid, until.seq - 1)
        cursor = store_position(self._attempts.state(), store_id)
        return int(self._read(self._history.attempts_between(cursor, last)).rows)

    def _register(self, store_id: str) -> None:
        name, attempts = self._readers["attempts"], self._attempts
        before = store_position(attempts.state(), store_id)
        reader = self._read(self._history.reader(name))
        cursor = store_position(attempts.state(), store_id)
        self._save_position("attempts", cursor)
        self._save_position("events", START)
        # The store may have deleted exported rows after it dropped this reader, so compare only
        # rows from this position on.
        is_forgotten = reader is None and before > START
        # A restored catalog moves the cursor back, so compare the repeated export again.
        is_moved_back = (
            reader is not None and reader.checked is not None and reader.checked > cursor
        )
        if is_forgotten or is_moved_back:
            position = min(before, cursor)
            log.warning(
                "the comparison of lake and store starts again",
                extra={"reader": name, "position": str(position)},
            )
            self._history.database.run(self._history.checked(name, position, self._clock.now()))

    def _horizon(self, feed: Feed, table: WarehouseTable, store_id: str) -> Position:
        text = table.state().cursors.get(f"{store_id}/{feed}")
        horizon: Position = self._read(self._history.horizon(feed))
        if text is not None and Position.of(text) >= horizon:
            raise CheckFailed(
                f"the lake has {feed} up to {text}, but this store has {feed} only up to {horizon},"
                " so the store was restored from a backup or moved to another server. Set another"
                " store_id in the table fairlead_store, so that the lake treats the store as a new"
                " one"
            )
        return horizon

    def _feeds(self, store_id: str) -> list[_Feed]:
        history, limit = self._history, self._rows
        attempts_horizon = self._horizon("attempts", self._attempts, store_id)
        events_horizon = self._horizon("events", self._events, store_id)
        return [
            _Feed(
                "attempts",
                self._attempts,
                lambda cursor: history.attempts(_position(cursor), attempts_horizon, limit),
                lambda row: str(Position(*row[:2])),
                attempts_table,
            ),
            _Feed(
                "events",
                self._events,
                lambda cursor: history.events(_position(cursor), events_horizon, limit),
                lambda row: str(Position(*row[:2])),
                events_table,
            ),
            _Feed(
                "submitted",
                self._events,
                lambda cursor: history.submitted(cursor or "", self._clock.now(), limit),
                lambda row: str(row[0]),
                submitted_table,
            ),
        ]

    def _batch(self, feed: _Feed, store_id: str, hashing: Hashing | None) -> tuple[int, int]:
        """Export the next rows of a feed, except those of erased keys; return the numbers of rows
        and files."""
        cursor = f"{store_id}/{feed.name}"
        while True:
            seen = feed.table.state()
            before = seen.cursors.get(cursor)
            if feed.name == "attempts" and self._is_streamed(seen, store_id):
                return 0, 0
            rows = self._read(feed.read(before))
            if not rows:
                return 0, 0
            first, last = feed.position_of(rows[0]), feed.position_of(rows[-1])
            moves: dict[str, str | None] = {cursor: last}
            new, topics = rows, topics_of(seen, store_id)
            if feed.name == "attempts" and topics:
                is_streamed = streamed_test(seen, store_id)
                new = [row for row in rows if not is_streamed(Position(*row[:2]), row[_TASK_ID])]
                moves |= release(seen, store_id, Position.of(last))
            batch = feed.as_table(store_id, new, self._clock.now())
            name = f"{store_id}-{feed.name}-{first}-{last}"
            landed = land(self._lake, feed.table.table, batch, name, seen, hashing)
            # Refused also when a stream has exported some of these rows in the meantime.
            if feed.table.append(landed, moves, seen):
                if feed.name in self._readers:
                    self._save_position(feed.name, Position.of(last))
                return len(rows), len(landed)
            feed.table.take_away(landed)

    def _release(self, store_id: str) -> None:
        """Remove this store from the cursors of its stream if the lake has all attempts of the
        store that the stream exported. Otherwise `_batch` removes the store, when it reaches the
        last of these attempts."""
        while True:
            seen = self._attempts.state()
            moves = release(seen, store_id, store_position(seen, store_id))
            if not moves:
                return
            if self._attempts.append([], moves, seen):
                return

    def _is_streamed(self, seen: TableState, store_id: str) -> bool:
        """Return whether a stream exports the attempts, so that this exporter must not."""
        if not topics_of(seen, store_id):
            return self._mode == "never"
        return self._mode != "take over"

    def _save_position(self, feed: str, position: Position) -> None:
        kind = "lake" if feed == "attempts" else feed
        self._history.database.run(
            self._history.advance(self._readers[feed], kind, position, self._clock.now())
        )


_TASK_ID = ATTEMPT_FIELDS.index("task_id")


class _Feed(NamedTuple):
    """Sequence of rows of the store that is exported in order."""

    name: str
    table: WarehouseTable
    read: Callable[[str | None], Steps[Sequence[Row]]]
    """Read the next rows after a cursor."""
    position_of: Callable[[Row], str]
    """Return the cursor whose next row follows the given row."""
    as_table: Callable[[str, Sequence[Row], int], pa.Table]


def _position(cursor: str | None) -> Position:
    return START if cursor is None else Position.of(cursor)
