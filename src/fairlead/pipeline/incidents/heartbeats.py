"""The heartbeats of the queues of a store: a relay reads the state of each queue every few seconds
and sends it, so that alerts notice what waits and what has stopped."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.clock import MICROS, Clock
from fairlead.engine.membership import SILENT_SECONDS
from fairlead.pipeline.incidents.heartbeat import HEARTBEAT_SECONDS, Heartbeat
from fairlead.ports.cluster_state import QueueSettings
from fairlead.ports.history import ATTEMPT_FIELDS, SUBMITTED_FIELDS, HistoryStore, Running
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Row

PAGE, PAGES = 20_000, 10
"""Most submitted tasks in one page, and most pages in one heartbeat. The next heartbeat counts the
rest."""

MOST_KEYS = 1000
"""Maximum number of fairness keys in a heartbeat."""

WAITS_US = 500_000
"""Least age of a ready task, in microseconds, to be reported as waiting."""

OLD_US = 60_000_000
"""Age of an ended run, in microseconds, above which it counts as done whatever its outcome. A relay
that is late reads old runs, which must not count as present failures or losses."""

RUNNING_EVERY = 10.0
"""Seconds between two counts of running tasks while no queue stands still."""

_PAUSE_FACTOR = 10
"""Least pause after a count of running tasks, as a multiple of the time that the count took."""

_QUEUE, _KEY, _ATTEMPT, _SUBMITTED_AT, _FINISHED_AT, _OUTCOME, _NODE = (
    ATTEMPT_FIELDS.index(name)
    for name in (
        "queue",
        "fairness_key",
        "attempt",
        "submitted_at",
        "finished_at",
        "outcome",
        "node",
    )
)
_POSITION, _AT, _OF_QUEUE, _OF_KEY = (
    SUBMITTED_FIELDS.index(name) for name in ("position", "at", "queue", "fairness_key")
)


@dataclass
class _Since:
    """Changes of a queue since the last heartbeat."""

    done: int = 0
    failed: int = 0
    keys: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)


class StoreHeartbeats:
    """Heartbeats of one store. Calls block and must not run in several threads at once."""

    def __init__(self, store: SqlStore, history: HistoryStore, clock: Clock) -> None:
        self._store = store
        self._history = history
        self._read_now = history.database.read_now
        self._clock = clock
        self._relay = uuid.uuid4().hex
        self._began = time.monotonic()
        self._ahead = 0
        """Microseconds by which the store's clock is ahead of ours."""
        self._store_id: str | None = None
        self._after: str | None = None
        """Position up to which submitted tasks are counted; counting begins at the first read."""
        self._counted_at = 0
        """Instant at which the last counted task was submitted. `add` counts a task that was
        submitted later when its first run ends."""
        self._since: dict[str, _Since] = {}
        self._next_at = float("-inf")
        self._running_at = float("-inf")
        """Latest time of the next count of running tasks, in seconds of `time.monotonic`."""

    def add(self, attempts: Sequence[Row]) -> None:
        """Add ended runs: rows of ATTEMPT_FIELDS, each given once."""
        old = self._clock.now() + self._ahead - OLD_US
        for row in attempts:
            since = self._since.setdefault(row[_QUEUE], _Since())
            outcome = row[_OUTCOME]
            if row[_FINISHED_AT] < old:
                since.done += 1
                continue
            if outcome == "lost":
                since.lost[str(row[_NODE])] += 1
            elif outcome in ("done", "snoozed", "cancelled"):
                since.done += 1
            else:
                since.failed += 1
            if row[_ATTEMPT] <= 1 and row[_SUBMITTED_AT] > self._counted_at:
                since.keys[row[_KEY]] += 1

    def read(self) -> list[Heartbeat]:
        """Return a heartbeat of each queue if heartbeats are due, else an empty list. Raise
        StoreUnavailable and keep the added runs for the next call."""
        if time.monotonic() < self._next_at:
            return []
        ours = self._clock.now()
        now = self._read_now(self._store.shared_clock(ours))
        self._ahead = now - ours
        if self._store_id is None:
            self._store_id = self._read_now(self._history.store_id())
        if self._after is None:
            self._after, self._counted_at = self._read_now(self._history.newest_submitted(now)), now
        self._count_submitted(now)
        queues = self._read_now(self._store.queue_settings())
        waiting = self._read_now(self._store.oldest_ready())
        waiting = {
            queue: ready_at for queue, ready_at in waiting.items() if ready_at < now - WAITS_US
        }
        silent = self._silent(now)
        running = self._count_running(now, waiting.keys())
        since, self._since = self._since, {}
        self._next_at = time.monotonic() + HEARTBEAT_SECONDS
        return [
            self._heartbeat(
                queue,
                now,
                since.get(queue, _Since()),
                waiting.get(queue),
                running,
                silent,
                queues.get(queue),
            )
            for queue in sorted({*queues, *since})
        ]

    def _heartbeat(
        self,
        queue: str,
        now: int,
        since: _Since,
        waits_since: int | None,
        running: Sequence[Running] | None,
        silent: Mapping[str, Collection[str]],
        settings: QueueSettings | None,
    ) -> Heartbeat:
        assert self._store_id is not None
        held = None if running is None else [each for each in running if each.queue == queue]
        return Heartbeat(
            self._store_id,
            queue,
            self._relay,
            now,
            waits_since,
            None if held is None else sum(each.tasks for each in held if each.node not in silent),
            max((each.claimed_at for each in held or ()), default=0),
            None if held is None else sum(each.stuck for each in held),
            settings is not None and settings.paused,
            since.done,
            since.failed,
            since.keys.total(),
            dict(since.keys.most_common(MOST_KEYS)),
            dict(since.lost),
            sorted(node for node, served in silent.items() if queue in served),
            1 + round((time.monotonic() - self._began) * MICROS),
        )

    def _count_submitted(self, now: int) -> None:
        for _ in range(PAGES):
            assert self._after is not None
            rows = self._read_now(self._history.submitted(self._after, now, PAGE))
            for row in rows:
                self._since.setdefault(row[_OF_QUEUE], _Since()).keys[row[_OF_KEY]] += 1
                self._counted_at = max(self._counted_at, row[_AT])
            if rows:
                self._after = str(rows[-1][_POSITION])
            if len(rows) < PAGE:
                return

    def _count_running(self, now: int, waiting: Collection[str]) -> list[Running] | None:
        """Return the running tasks, or None if no count is due. A count is due earlier if tasks
        wait in a queue in which no run has ended."""
        began = time.monotonic()
        moving = {queue for queue, since in self._since.items() if since.done or since.failed}
        if began < self._running_at - (RUNNING_EVERY if set(waiting) - moving else 0.0):
            return None
        found = self._read_now(self._history.running(now))
        ended = time.monotonic()
        self._running_at = ended + RUNNING_EVERY + _PAUSE_FACTOR * (ended - began)
        return found

    def _silent(self, now: int) -> dict[str, list[str]]:
        """Return the nodes whose heartbeat is overdue, with their queues."""
        nodes = self._read_now(self._store.nodes())
        return {
            node.node: node.queues
            for node in nodes
            if node.queues and node.heartbeat_at < now - SILENT_SECONDS * MICROS
        }
