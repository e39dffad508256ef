"""The task store on one SQLite file."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.sql.migrate import is_new
from fairlead.backends.sql.rows import batch, ended_attempt, fields_of, lanes_of
from fairlead.backends.sql.sql_file import load
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.model import ClaimedTask, Finish, NewTask, State, Trigger
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Many, Row, Steps
from fairlead.ports.task_store import PLAIN_TERMS, Completed, Terms

FEW = 8
"""Greatest number of tasks whose claim takes less time than the change to another thread."""


class SqliteTaskStore(SqlTaskStore):
    """A task store on SQLite. One transaction writes at a time, so rows that a transaction has read
    do not change until it commits."""

    database: SqliteDatabase

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database, load("task_store.sql", __package__))

    def prepare(self) -> None:
        # Create the tables in a new file. Only an operator migrates tables that exist.
        if is_new(self.database):
            self.migrate()
        super().prepare()
        self.database.delete_statistics()

    def next_seqs(self, count: int) -> Steps[Sequence[int]]:
        before: int = (yield self.statement("next_seqs", count))[0][0]
        return range(before + 1, before + count + 1)

    def insert(self, tasks: Sequence[NewTask]) -> Steps[tuple[Notification, dict[str, int]]]:
        rows = []
        ready = []
        positions: dict[str, int] = {}
        for seq, t in zip((yield from self.next_seqs(len(tasks))), tasks, strict=True):
            if t.run_at <= t.submitted_at:
                state, ready_at, ready_seq = State.SUBMITTED.value, t.submitted_at, seq
                ready.append((t.queue, t.partition, t.priority, seq))
                positions[t.id] = seq
            else:
                state, ready_at, ready_seq = State.WAITING.value, None, None
            order_at = None if t.ordering_key is None else t.run_at
            rows.append((seq, state, ready_at, ready_seq, order_at, *fields_of(t)))
        yield Many(self.sql["insert_task"], rows)
        return Notification(
            ready=lanes_of(ready), due=min((t.run_at for t in tasks if not t.is_due), default=None)
        ), positions

    async def claim(
        self, node: str, triggers: Sequence[Trigger], now: int, terms: Terms
    ) -> list[ClaimedTask]:
        # Need not be durable: a power cut that undoes a claim also ends its run.
        if len(triggers) <= FEW:
            return await self.database.run_quickly(lambda: self._claim(node, triggers, now, terms))
        return await self.database.run_async(self._claim(node, triggers, now, terms), durable=False)

    def _claim(
        self, node: str, triggers: Sequence[Trigger], now: int, terms: Terms
    ) -> Steps[list[ClaimedTask]]:
        alike: dict[tuple[str, tuple[int, int]], list[tuple[str, int]]] = {}
        for t in triggers:
            key = t.path, terms.get(t.name, PLAIN_TERMS)
            alike.setdefault(key, []).append((t.id, t.version))
        rows: list[Row] = []
        for (path, (stuck_at, policy)), tasks in alike.items():
            rows += yield self.statement("claim", batch(tasks), node, now, path, stuck_at, policy)
        if not rows:
            return []
        earliest = min(stuck_at for _, (stuck_at, _) in alike)
        seqs = batch([row[-1] for row in rows])
        ((number,),) = yield self.statement("note_claim", node, earliest, seqs)
        return [ClaimedTask(*(*row, number)) for row in rows]

    def completion(self, node: str, finishes: Sequence[Finish]) -> Steps[Completed]:
        done = [f for f in finishes if _is_plain(f)]
        if done:
            rows = [(f.row, f.version, f.started_at, f.finished_at) for f in done]
            yield self.statement("record_done", batch(rows), node)
            recorded = (yield self.statement("changes"))[0][0]
            if recorded < len(done):
                held = yield from self._held(node, done)
                refused = [f.id for f in done if f.id not in held]
                done = [f for f in done if f.id in held]
            else:
                refused = []
            yield self.statement("delete_done", batch([f.row for f in done]))
            if len(rows) == len(finishes):
                return Completed(refused, None)
            rest = yield from super().completion(node, [f for f in finishes if not _is_plain(f)])
            return Completed(refused + rest.refused, rest.notification)
        return (yield from super().completion(node, finishes))

    def _record(self, node: str, finishes: Sequence[Finish]) -> Steps[int]:
        rows = batch([ended_attempt(f) for f in finishes])
        yield self.statement("record_attempts", rows, node)
        return (yield self.statement("changes"))[0][0]  # type: ignore[no-any-return]


def _is_plain(finish: Finish) -> bool:
    """Return whether a task is DONE, and leaves no result and no notes."""
    return finish.next_state == State.DONE and finish.result is None and finish.notes is None
