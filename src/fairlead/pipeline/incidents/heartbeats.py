"""The heartbeats of the queues of a store: a relay or an elected worker reads the state of each
queue every few seconds, so that the detector notices what waits and what has stopped."""

from __future__ import annotations

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import MICROS, Clock
from fairlead.engine.membership import SILENT_SECONDS
from fairlead.model.history import SUBMITTED_FIELDS, Position, Running
from fairlead.pipeline.incidents.heartbeat import HEARTBEAT_SECONDS, Heartbeat
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Steps

PAGE, PAGES = 20_000, 10
"""Most submitted tasks in one page, and most pages in one heartbeat. The next heartbeat counts the
rest."""

MOST_KEYS = 1000
"""Maximum number of fairness keys in a heartbeat."""

WAITS_US = 500_000
"""Least age of a ready task, in microseconds, to be reported as waiting."""

ENDED = 50_000
"""Maximum number of ended runs that one heartbeat counts. The next heartbeat counts the rest."""

BACK = 5000
"""Transactions (on SQLite: runs) before the first heartbeat whose runs count too, so that a
successor sees what happened after the death of its predecessor."""

OLD_US = 60_000_000
"""Age of an ended run, in microseconds, above which it does not count: after an outage, old runs
must not count as present failures or losses."""

RUNNING_EVERY = 10.0
"""Seconds between two counts of running tasks while no queue stands still."""

_PAUSE_FACTOR = 10
"""Least pause after a count of running tasks, as a multiple of the time that the count took."""

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

    def __init__(
        self,
        store: SqlStore,
        history: SqlHistory,
        clock: Clock,
        *,
        every: float = HEARTBEAT_SECONDS,
        most_bytes: int | None = None,
    ) -> None:
        """`every`: seconds between two heartbeats of a queue. `most_bytes`: see
        `SqlHistory.running`; where it forbids a count, the running tasks are one."""
        self._store = store
        self._history = history
        self._clock = clock
        self._every = every
        self._most_bytes = most_bytes
        self._relay = uuid.uuid4().hex
        self._began = time.monotonic()
        self._store_id: str | None = None
        self._after: str | None = None
        """Position up to which submitted tasks are counted; counting begins at the first read."""
        self._counted_at = 0
        """Instant at which the last counted task was submitted. A task that was submitted later
        counts when its first run ends."""
        self._ended_until: Position | None = None
        """Position up to which ended runs are counted."""
        self._since: dict[str, _Since] = defaultdict(_Since)
        self._next_at = float("-inf")
        self._running_at = float("-inf")
        """Latest time of the next count of running tasks, in seconds of `time.monotonic`."""

    def read(self) -> list[Heartbeat]:
        """Return a heartbeat of each queue if heartbeats are due, else an empty list. Raise
        StoreUnavailable and keep what was counted for the next call."""
        return self._history.database.read_now(self.steps())

    def steps(self) -> Steps[list[Heartbeat]]:
        """Return what `read` returns."""
        if time.monotonic() < self._next_at:
            return []
        now = yield from self._store.shared_clock(self._clock.now())
        if self._store_id is None:
            self._store_id = yield from self._history.store_id()
        if self._after is None:
            self._after, self._counted_at = (yield from self._history.newest_submitted(now)), now
        yield from self._count_ended(now)
        yield from self._count_submitted(now)
        queues = yield from self._store.queue_settings()
        oldest = yield from self._store.oldest_ready()
        waiting = {queue: since for queue, since in oldest.items() if since < now - WAITS_US}
        nodes = yield from self._store.nodes()
        silent = {
            node.node: node.queues
            for node in nodes
            if node.queues and node.heartbeat_at < now - SILENT_SECONDS * MICROS
        }
        running = yield from self._count_running(now, waiting.keys())
        changes, self._since = self._since, defaultdict(_Since)
        heartbeats = []
        for queue in sorted({*queues, *changes}):
            since = changes[queue]
            held = [each for each in running or () if each.queue == queue]
            alive = sum(each.tasks for each in held if each.node not in silent)
            heartbeats.append(
                Heartbeat(
                    self._store_id,
                    queue,
                    self._relay,
                    now,
                    waiting.get(queue),
                    None if running is None else alive,
                    max((each.claimed_at for each in held), default=0),
                    None if running is None else sum(each.stuck for each in held),
                    queue in queues and queues[queue].paused,
                    since.done,
                    since.failed,
                    since.keys.total(),
                    dict(since.keys.most_common(MOST_KEYS)),
                    dict(since.lost),
                    sorted(node for node, served in silent.items() if queue in served),
                    1 + round((time.monotonic() - self._began) * MICROS),
                )
            )
        self._next_at = time.monotonic() + self._every
        return heartbeats

    def _count_ended(self, now: int) -> Steps[None]:
        xid, seq = yield from self._history.horizon()
        horizon = Position(xid, seq - 1)  # the horizon itself may be a later row
        if self._ended_until is None:
            back = (max(0, xid - BACK), 0) if xid else (0, max(0, seq - 1 - BACK))
            self._ended_until = Position(*back)
        if self._ended_until >= horizon:
            return
        after = self._ended_until
        until = yield from self._history.position_after(after, horizon, ENDED)
        counted = self._history.ended(after, until, now - OLD_US, self._counted_at)
        for each in (yield from counted):
            since = self._since[each.queue]
            if each.outcome == "lost":
                since.lost[each.node] += each.attempts
            elif each.outcome in ("done", "snoozed", "cancelled"):
                since.done += each.attempts
            else:
                since.failed += each.attempts
            if each.firsts:
                since.keys[each.fairness_key] += each.firsts
        self._ended_until = until

    def _count_submitted(self, now: int) -> Steps[None]:
        for _ in range(PAGES):
            assert self._after is not None
            rows = yield from self._history.submitted(self._after, now, PAGE)
            for row in rows:
                self._since[row[_OF_QUEUE]].keys[row[_OF_KEY]] += 1
                self._counted_at = max(self._counted_at, row[_AT])
            if rows:
                self._after = str(rows[-1][_POSITION])
            if len(rows) < PAGE:
                return

    def _count_running(self, now: int, waiting: Collection[str]) -> Steps[list[Running] | None]:
        """Return the running tasks, or None if no count is due. A count is due earlier if tasks
        wait in a queue in which no run has ended."""
        began = time.monotonic()
        moving = {queue for queue, since in self._since.items() if since.done or since.failed}
        if began < self._running_at - (RUNNING_EVERY if set(waiting) - moving else 0.0):
            return None
        found = yield from self._history.running(now, self._most_bytes)
        if found is None:
            found = [Running(queue, "", 1, 0, 0) for queue in waiting]
        ended = time.monotonic()
        self._running_at = ended + RUNNING_EVERY + _PAUSE_FACTOR * (ended - began)
        return found
