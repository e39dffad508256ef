"""The task store on one SQLite file."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.model import Finish, GrabbedTask, NewTask, State
from fairlead.ports.statements import Many, Steps
from fairlead.ports.task_store import Grab
from fairlead.ports.wake import Wake
from fairlead.stores.sql_file import load
from fairlead.stores.sql_store import SqlTaskStore, batch, lanes_of
from fairlead.stores.sqlite_database import SqliteDatabase


class SqliteTaskStore(SqlTaskStore):
    """Tasks in SQLite. There is one writer at a time, so what a transaction has read stays true until it commits."""

    database: SqliteDatabase

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database, load("sqlite.sql"))

    def next_seqs(self, count: int) -> Steps[Sequence[int]]:
        before: int = (yield self.statement("next_seqs", count))[0][0]
        return range(before + 1, before + count + 1)

    def insert(self, tasks: Sequence[NewTask]) -> Steps[Wake]:
        due = [task for task in tasks if task.is_due]
        seqs = iter((yield from self.next_seqs(len(due))) if due else ())
        rows = []
        ready = []
        for t in tasks:
            if t.run_at <= t.submitted_at:
                state, ready_at, seq = State.SUBMITTED.value, t.submitted_at, next(seqs)
                ready.append((t.queue, t.partition, t.priority, seq))
            else:
                state, ready_at, seq = State.WAITING.value, None, None
            rows.append(
                (t.id, t.queue, t.partition, t.name, state, t.priority, t.fairness_key, t.weight, t.ordering_key,
                 t.unique_key, t.keep_result, t.submitted_at, t.run_at, ready_at, ready_at, seq, t.context,
                 t.payload_format, t.payload)
            )  # fmt: skip
        yield Many(self.sql["insert_task"], rows)
        return Wake(ready=lanes_of(ready), due=min((t.run_at for t in tasks if not t.is_due), default=None))

    async def grab(self, node: str, wanted: Sequence[Grab], now: int) -> list[GrabbedTask]:
        # Not durable on its own: a power cut that undoes a grab also ends the run it stood for.
        return await self.database.run_async(self._grab(node, wanted, now), durable=False)

    def _grab(self, node: str, wanted: Sequence[Grab], now: int) -> Steps[list[GrabbedTask]]:
        params = batch([(w.id, w.version, w.path, w.stuck_at) for w in wanted])
        rows = yield self.statement("grab", params, node, now)
        return [GrabbedTask(*row) for row in rows]

    def _record(self, node: str, finishes: Sequence[Finish]) -> Steps[int]:
        rows = [
            (f.id, f.version, f.outcome, f.next_state, f.started_at, f.finished_at, f.error_type, f.error_text)
            for f in finishes
        ]
        yield self.statement("record_attempts", batch(rows), node)
        return (yield self.statement("changes"))[0][0]  # type: ignore[no-any-return]


