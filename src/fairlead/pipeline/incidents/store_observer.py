"""The observer of a store: reads the state of each queue, for the detector."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from fairlead.backends.sql.history import SqlHistory
from fairlead.backends.sql.task_reads import MOST_RUNNING, TaskReads
from fairlead.clock import MICROS, Clock
from fairlead.engine.liveness import SILENT_SECONDS
from fairlead.model.history import SUBMITTED_FIELDS, Position
from fairlead.model.task_facts import RunningTask
from fairlead.pipeline.incidents.detector import Observation
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Steps

PAGE, PAGES = 20_000, 10
"""Most submitted tasks in one page, and most pages in one round. The next round counts the rest."""

MOST_KEYS = 1000
"""Maximum number of fairness keys in an observation."""

WAITS_US = 500_000
"""Least age of a ready task, in microseconds, to be reported as waiting."""

ENDED = 50_000
"""Maximum number of ended runs that one round counts. The next round counts the rest."""

BACK = 5000
"""Transactions (on SQLite: runs) before the first round whose runs count too, so that a successor
sees what happened after the death of its predecessor."""

OLD_US = 60_000_000
"""Age of an ended run, in microseconds, above which it does not count: after an outage, old runs
must not count as present failures or losses."""

_POSITION, _AT, _OF_QUEUE, _OF_KEY = (
    SUBMITTED_FIELDS.index(name) for name in ("position", "at", "queue", "fairness_key")
)


@dataclass
class _Since:
    """Changes of a queue since the last observation."""

    done: int = 0
    failed: int = 0
    keys: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)


class StoreObserver:
    """Observer of all queues of one store. One call at a time."""

    def __init__(self, store: SqlStore, history: SqlHistory, clock: Clock) -> None:
        self._store = store
        self._history = history
        self._reads = TaskReads(store.database)
        self._clock = clock
        self._after: str | None = None
        """Position up to which submitted tasks are counted; counting begins at the first read."""
        self._counted_at = 0
        """Instant at which the last counted task was submitted. A task that was submitted later
        counts when its first run ends."""
        self._ended_until: Position | None = None
        """Position up to which ended runs are counted."""
        self._since: dict[str, _Since] = defaultdict(_Since)

    def steps(self) -> Steps[list[Observation]]:
        """Return an observation of each queue. Raise StoreUnavailable and keep what was counted for
        the next call."""
        now = yield from self._store.shared_clock(self._clock.now())
        if self._after is None:
            self._after, self._counted_at = (yield from self._history.newest_submitted(now)), now
        yield from self._count_ended(now)
        yield from self._count_submitted(now)
        queues = yield from self._store.queue_settings()
        oldest = yield from self._store.oldest_ready()
        waiting = {queue: since for queue, since in oldest.items() if since < now - WAITS_US}
        silent = {
            node.node: node.queues
            for node in (yield from self._store.nodes())
            if node.queues and node.heartbeat_at < now - SILENT_SECONDS * MICROS
        }
        running: defaultdict[str, list[RunningTask]] = defaultdict(list)
        for task in (yield from self._reads.running(MOST_RUNNING)):
            running[task.queue].append(task)
        changes, self._since = self._since, defaultdict(_Since)
        found = []
        for queue in sorted({*queues, *changes}):
            since = changes[queue]
            held = running[queue]
            found.append(
                Observation(
                    queue=queue,
                    at=now,
                    time=round(time.monotonic() * MICROS),
                    waits_since=waiting.get(queue),
                    running=sum(each.node not in silent for each in held),
                    claimed_at=max((each.claimed_at for each in held), default=0),
                    is_paused=queue in queues and queues[queue].paused,
                    done=since.done,
                    failed=since.failed,
                    arrived=since.keys.total(),
                    keys=dict(since.keys.most_common(MOST_KEYS)),
                    lost=dict(since.lost),
                    silent=sorted(node for node, served in silent.items() if queue in served),
                )
            )
        return found

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
