"""The task store: a dictionary of rows, changed under one lock."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from fairlead.backends.memory.database import PlainDatabase, as_steps
from fairlead.errors import NotSupported
from fairlead.model import ClaimedTask, Finish, LaneKey, NewTask, State, Submitted, Trigger
from fairlead.ports import task_store as port
from fairlead.ports.notification import Lane, Notification


class Row:
    """An unfinished task."""

    def __init__(self, task: NewTask) -> None:
        self.task, self.run_at = task, task.run_at
        self.lane = LaneKey(task.queue, task.partition, task.priority)
        self.key = task.queue, task.ordering_key
        self.place = task.run_at, task.id  # among the tasks of the key
        self.in_order = task.ordering_key is not None  # whether later tasks of the key wait for it
        self.state, self.version, self.seq, self.ready_at = State.WAITING, 0, 0, 0
        self.attempt = self.tries = self.lost = 0
        self.node: str | None = None
        self.claimed_at = self.stuck_at = self.policy = 0

    def trigger(self) -> Trigger:
        """Return the trigger of the next run."""
        t, key = self.task, (self.task.fairness_key, self.task.weight, self.task.ordering_key)
        lane = t.queue, t.partition, t.name, t.priority
        return Trigger(t.id, self.version, *lane, *key, seq=self.seq, order_at=t.run_at)

    def claimed(self) -> ClaimedTask:
        """Return the task for its run."""
        t, counts = self.task, (self.version, self.attempt, self.tries)
        payload = t.payload, t.payload_format
        return ClaimedTask(t.id, *counts, *payload, self.ready_at, t.keep_result, t.context)


class ToyStore:
    """A `fairlead.ports.task_store.TaskStore` in memory."""

    def __init__(self, location: str) -> None:
        self._lock = threading.RLock()
        self.database = PlainDatabase(location, self._lock)
        self._rows: dict[str, Row] = {}
        self._unique: dict[tuple[str, str], str] = {}
        """Id of the first task, by queue and unique key."""
        self._last_seq = 0

    # insert ---------------------------------------------------------------------------------------

    @as_steps
    def submission(self, tasks: Sequence[NewTask]) -> tuple[list[Submitted], Notification]:
        return self._insert(tasks)

    @as_steps
    def bulk(
        self, pieces: Iterable[Sequence[NewTask]]
    ) -> tuple[list[Submitted], list[Notification]]:
        # Make all tasks before the first is stored: a faulty piece must leave nothing.
        submitted, notification = self._insert([task for piece in pieces for task in piece])
        return submitted, [notification]

    def _insert(self, tasks: Sequence[NewTask]) -> tuple[list[Submitted], Notification]:
        if any(task.unique_until is not None for task in tasks):
            raise NotSupported(f"{self.database.location} forgets unique keys: no unique_for")
        submitted = []
        for task in tasks:
            if task.unique_key is not None:
                owner = self._unique.get((task.queue, task.unique_key), task.id)
                if owner in self._rows:
                    submitted.append(Submitted(owner, False))
                    continue
                self._unique[task.queue, task.unique_key] = task.id
            row = Row(task)
            self._move(row, State.SUBMITTED if task.is_due else State.WAITING, task.submitted_at)
            self._rows[task.id] = row
            submitted.append(Submitted(task.id, True, row.seq if task.is_due else None))
        return submitted, _notification([self._rows[each.id] for each in submitted if each.is_new])

    # read lanes -----------------------------------------------------------------------------------

    @as_steps
    def ready(self, lane: LaneKey, above: int, limit: int) -> list[Trigger]:
        return self._ready(lane, above)[:limit]

    @as_steps
    def ready_of(self, lane: LaneKey, keys: Sequence[tuple[str, int]], limit: int) -> list[Trigger]:
        found: list[Trigger] = []
        for key, above in keys:
            found += [t for t in self._ready(lane, above) if t.fairness_key == key][:limit]
        return sorted(found, key=lambda trigger: trigger.seq)

    @as_steps
    def ready_without(
        self, lane: LaneKey, above: int, limit: int
    ) -> tuple[list[Trigger], int | None]:
        found = [t for t in self._ready(lane, above) if not t.fairness_key][:limit]
        return found, found[-1].seq if len(found) == limit else None

    @as_steps
    def ready_keys(self, lane: LaneKey, above: str, limit: int) -> list[tuple[str, int]]:
        last = {t.fairness_key: t.seq for t in self._ready(lane, 0) if t.fairness_key > above}
        return sorted(last.items())[:limit]

    @as_steps
    def lanes(self) -> list[LaneKey]:
        return list({row.lane for row in self._in(State.SUBMITTED)})

    @as_steps
    def ordered(self, keys: Sequence[tuple[str, str]], limit: int) -> list[tuple[Trigger, State]]:
        found: list[tuple[Trigger, State]] = []
        for key in keys:
            rows = [row for row in self._rows.values() if row.in_order and row.key == key]
            first = sorted(rows, key=lambda row: row.place)[:limit]
            found += [(row.trigger(), row.state) for row in first]
        return found

    @as_steps
    def changed(self, tasks: Sequence[tuple[str, int]]) -> list[str]:
        rows = self._rows
        return [id for id, version in tasks if id not in rows or rows[id].version != version]

    @as_steps
    def unfinished(self, queues: Sequence[str]) -> tuple[int, int]:
        rows = [row for row in self._rows.values() if row.task.queue in queues]
        in_error = sum(row.state is State.ERROR for row in rows)
        ahead = sum(row.state is State.WAITING and not row.attempt for row in rows)
        return len(rows) - in_error - ahead, in_error

    def _ready(self, lane: LaneKey, above: int) -> list[Trigger]:
        rows = [r for r in self._in(State.SUBMITTED) if r.lane == lane and r.seq > above]
        return [row.trigger() for row in sorted(rows, key=lambda row: row.seq)]

    # claim and end --------------------------------------------------------------------------------

    async def claim(
        self, node: str, triggers: Sequence[Trigger], now: int, terms: port.Terms
    ) -> list[ClaimedTask]:
        won = []
        with self._lock:
            for trigger in triggers:
                row = self._at(trigger.id, trigger.version, State.SUBMITTED)
                if row is None or self._must_wait(row):
                    continue
                row.state, row.node, row.version = State.PROCESSING, node, row.version + 1
                row.attempt, row.tries = row.attempt + 1, row.tries + 1
                row.claimed_at = now
                row.stuck_at, row.policy = terms.get(trigger.name, port.PLAIN_TERMS)
                won.append(row.claimed())
        return won

    async def complete(self, node: str, finishes: Sequence[Finish]) -> port.Completed:
        refused, moved = [], []
        with self._lock:
            for finish in finishes:
                row = self._at(finish.id, finish.version, State.PROCESSING, node)
                if row is None:
                    refused.append(finish.id)
                elif finish.next_state == State.DONE:
                    del self._rows[finish.id]
                else:
                    row.tries = 0 if finish.resets_tries else row.tries - (not finish.spends_try)
                    row.in_order = row.in_order and not finish.leaves_order
                    row.run_at = finish.run_at or row.run_at
                    self._move(row, State(finish.next_state), finish.finished_at)
                    moved.append(row)
        notification = _notification(moved)
        return port.Completed(refused, None if notification.is_empty else notification)

    async def hand_back(self, node: str, held: Sequence[tuple[str, int]]) -> Notification | None:
        with self._lock:
            rows = [row for each in held if (row := self._at(*each, State.PROCESSING, node))]
            for row in rows:
                row.state, row.node, row.version = State.SUBMITTED, None, row.version + 1
                row.attempt, row.tries = row.attempt - 1, row.tries - 1
        return _notification(rows) if rows else None

    async def still_held(self, node: str, ids: Sequence[str], noted: bool = False) -> set[str]:
        return {id for id, _ in await self.held(node)} & set(ids)

    async def held(self, node: str) -> list[tuple[str, int]]:
        rows = self._in(State.PROCESSING)
        return [(row.task.id, row.version) for row in rows if row.node == node]

    async def wake_due(self, now: int, limit: int) -> port.Woken:
        with self._lock:
            due = [row for row in self._in(State.WAITING) if row.run_at <= now]
            rows = sorted(due, key=lambda row: row.run_at)[:limit]
            for row in rows:
                self._move(row, State.SUBMITTED, now)
        return port.Woken(len(rows), _notification(rows) if rows else None)

    async def next_due(self) -> int | None:
        return min((row.run_at for row in self._in(State.WAITING)), default=None)

    async def resume_lost(
        self, nodes: Sequence[str], now: int, limit: int, most_lost: int = 5
    ) -> port.Woken:
        with self._lock:
            rows = [row for row in self._in(State.PROCESSING) if row.node in nodes][:limit]
            for row in rows:
                row.lost += 1
                self._move(row, State.SUBMITTED if row.lost < most_lost else State.ERROR, now)
        return port.Woken(len(rows), _notification(rows) if rows else None)

    async def stuck(self, now: int, limit: int) -> list[port.Stuck]:
        rows = [row for row in self._in(State.PROCESSING) if row.stuck_at < now]
        found = []
        for row in [row for row in rows if not row.policy & port.IGNORE_STUCK][:limit]:
            task, to = row.task, State.SUBMITTED if row.policy & port.RESUME_STUCK else State.ERROR
            about = task.queue, task.name, row.node, row.claimed_at
            found.append(port.Stuck(task.id, row.version, *about, to))
        return found

    async def release_stuck(
        self, task_id: str, version: int, to: State, now: int, reason: str
    ) -> Notification | None:
        with self._lock:
            if (row := self._at(task_id, version, State.PROCESSING)) is None:
                return None
            self._move(row, to, now)
        return _notification([row])

    # helpers --------------------------------------------------------------------------------------

    def _in(self, state: State) -> list[Row]:
        with self._lock:
            return [row for row in self._rows.values() if row.state is state]

    def _at(self, task_id: str, version: int, state: State, node: str | None = None) -> Row | None:
        """Return the row, if it is in this state at this version and, if given, on this node."""
        row = self._rows.get(task_id)
        if row is None or (row.state, row.version) != (state, version):
            return None
        return row if node in (None, row.node) else None

    def _must_wait(self, row: Row) -> bool:
        """Return whether another task of the same ordering key runs, or must run first."""
        others = [r for r in self._rows.values() if r is not row and r.key == row.key]
        return row.task.ordering_key is not None and any(
            other.state is State.PROCESSING
            or (row.in_order and other.in_order and other.place < row.place)
            for other in others
        )

    def _move(self, row: Row, to: State, now: int) -> None:
        """Move the task to a state in which no node holds it."""
        row.version, row.state, row.node = row.version + 1, to, None
        if to is State.SUBMITTED:
            self._last_seq += 1
            row.seq, row.ready_at = self._last_seq, now
        elif to is State.ERROR and row.policy & port.SKIP_FAILED:
            row.in_order = False


def _notification(rows: Sequence[Row]) -> Notification:
    ready = sorted((row for row in rows if row.state is State.SUBMITTED), key=lambda row: -row.seq)
    lanes = {row.lane: row.seq for row in ready}  # with the lowest position of each
    due = min((row.run_at for row in rows if row.state is State.WAITING), default=None)
    ended = [row.task.id for row in rows if row.state is State.ERROR]
    return Notification([Lane(*lane, seq) for lane, seq in lanes.items()], due, finished=ended)
