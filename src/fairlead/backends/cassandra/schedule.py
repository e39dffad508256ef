"""The schedule store on Cassandra: rows, completions and runs by the hour. Runs are moved to the
history of attempts in the SQL tables of the task store.

**If two owners write the same cell, the later owner's value wins.** A take-over raises the range id
by a lightweight transaction. Every other write has the timestamp (range id << 32) + n, where n
grows with each call of the owner. An owner checks that no take-over has happened before it writes,
so that a former owner stops. The owner checks again after it has written data that the log may then
drop, so that a later owner can read every confirmed write. Late writes of a former owner do no
harm:

- A task row: the owner did not confirm the write, so the log still has the task. If a later owner
  has since deleted or written the row, its cells have later timestamps and win. Otherwise the row
  is an unfinished task like any other.
- A retry: the cell contains the task id, and a later retry of the same task wins.
- A completion: the run has ended with success. At worst the later owner has already read the row,
  and runs the task a second time.
- A run: a row of its own, which no other write changes. The history lacks the run if the SQL
  database is away at that moment, and the later owner has just deleted the moved runs of its hour.
- A record: it stays until the later owner saves one. Its low-water mark is below all tasks that
  were unfinished when it was written; each task submitted below the mark since then was stored
  together with a newer record.
- A deletion: it deletes rows that were completed when it was written. Rows that the later owner has
  written in the same range have later timestamps and stay. In the same way, a row that its owner
  writes late, below the low-water mark, has a greater n than the deletion and stays.

**An owner deletes ranges of rows, not single rows**: all rows through the low-water mark, and rows
between unfinished tasks (`keep`). So a read meets few tombstones. The write of a completion also
marks the row as `done` until a range deletes it.

**The rows of one ordering key are found by `fairlead_schedule_keys`**, which has the same keys in
another order. Such a key is written in the batch of its row and deleted with its hour, so a row
without its key does not exist. A key without an unfinished row is possible and is skipped: an owner
reads above the last task of the ordering key that it knows, and so above the completed ones.

**A task is found by its id** by `fairlead_schedule_ids`, for people only. An index row is written
beside the batch of its task, so a task whose write is confirmed has one. Beside the completion, the
index row is deleted, or refers to the last run in a history that stays in Cassandra. The index row
is in another partition of Cassandra, so a crash may leave it as it was: it is checked against the
row, the completion and the run.

**The end of a run is one batch** of one partition: the completion, or the counts of the runs, and
the run for the history. So no run is completed without its row, also while the SQL database is
away. `finish` then appends the run to the SQL history, and waits some seconds for it at most. If
that fails, `move_attempts` moves the run later, by an insert of absent rows. The runs of a pair of
hours, of their ends and of their tasks, are deleted together, after all were moved, so that they
leave one tombstone.

**With two datacentres** at LOCAL_QUORUM, a transaction in one may not see a transaction in the
other. Range ids are therefore seconds, so the later of two take-overs that are a second apart has
the greater id. A read of the schedule is whole if it has the writes of every datacentre (see
`datacentres.py`). After a read that is not whole, the owner neither raises the low-water mark nor
deletes rows. When all datacentres respond again, the owner fails on purpose, so that it loads the
partition again from the last safe low-water mark, with the tasks that only the missing datacentre
had.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, TypeVar

import msgspec

from fairlead.backends.cassandra.datacentres import DatacentreReading
from fairlead.backends.cassandra.history import HistoryInSql
from fairlead.backends.cassandra.horizon import Horizon, key_of
from fairlead.backends.cassandra.keyspace_owner import KeyspaceOwner
from fairlead.backends.cassandra.moves import (
    ROWS_AT_ONCE,
    Position,
    moved_completion,
    moved_row,
    row_left,
    rows_to_move,
)
from fairlead.backends.cassandra.owner import RunHours, ScheduleOwner, next_range_id
from fairlead.backends.cassandra.page_size import PageSize
from fairlead.backends.cassandra.run_history import read_run
from fairlead.backends.cassandra.schedule_scans import (
    LAST_HOUR,
    ScheduleScans,
    scheduled_of,
    together,
)
from fairlead.backends.cassandra.schedule_writes import (
    MOST_LEFT,
    Write,
    batches_of,
    deletions_of,
    end_of_run,
    id_deletion,
    id_end,
    id_insert,
    insert,
    sweep_between,
)
from fairlead.backends.cassandra.session import (
    CassandraSession,
    CassandraUrl,
    chunks,
)
from fairlead.backends.sql.schedule import attempt_row
from fairlead.backends.sql.schedule_rows import decode_record
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import MICROS
from fairlead.errors import StoreUnavailable
from fairlead.model import (
    BEFORE_ALL,
    NEVER,
    NewTask,
    PartitionKey,
    RunEnd,
    ScheduledTask,
    ScheduleRecord,
    TaskKey,
)
from fairlead.ports.cluster import Cluster
from fairlead.ports.schedule_store import (
    ANY_BYTES,
    HOUR,
    Fenced,
    Moved,
    Owned,
    Page,
    ScheduleStatus,
    hour_of,
)
from fairlead.ports.statements import Row

OVERLAP = 600 * MICROS
"""Microseconds below the saved low-water mark at which an owner begins to read, if its reads or the
former owner's reads are not whole. Another datacentre may have stored a lower mark, and late tasks
below the mark."""

CLEANED_AT_ONCE = 100
"""Hours that one `clean` deletes at most."""

MOVED_AT_ONCE = 500
"""Runs that are moved to the history by one statement."""

_KEYS_AT_ONCE = 500
_LAST_KEY = TaskKey(NEVER, "", "")
_FAR_HOSTS = 8
_SCHEMA = (
    "create_owners",
    "create_records",
    "create_hours",
    "create_schedule",
    "create_keys",
    "create_completions",
    "create_ids",
    "create_history",
    "create_history_hours",
    "create_history_readers",
)

log = logging.getLogger("fairlead.ordered")

T = TypeVar("T")
_encode = msgspec.json.encode


class CassandraScheduleStore(ScheduleScans):
    """A `fairlead.ports.schedule_store.ScheduleStore` on Cassandra, connected at its first use.

    Only owners that have taken over through this object can write through it.
    """

    def __init__(self, url: str, tasks: SqlTaskStore | None, store: Cluster | None = None) -> None:
        """Open no connection yet. `tasks` has the history; None keeps the history in Cassandra.
        `store`: task store that the keyspace must belong to; by default `tasks`. Raise
        ConfigurationError."""
        super().__init__(
            CassandraSession(CassandraUrl.parse(url), "schedule.cql", _SCHEMA, _FAR_HOSTS)
        )
        self._history = None if tasks is None else HistoryInSql(tasks)
        self._keyspace = KeyspaceOwner(self.session, store or tasks)
        self._owners: dict[PartitionKey, ScheduleOwner] = {}
        self._sizes: defaultdict[str, PageSize] = defaultdict(PageSize)
        """Sizes of the pages of tasks, by queue."""

    @property
    def location(self) -> str:
        return self.session.url.location

    async def migrate(self) -> None:
        await self.session.migrate()

    async def prepare(self) -> None:
        await self._keyspace.require()

    # the owner's side -----------------------------------------------------------------------------

    async def take_over(self, partition: PartitionKey) -> Owned:
        await self._keyspace.require()
        before = self._owners.get(partition)
        range_id, is_again = await self._raise(partition)
        horizon = 0
        if self._history is None:
            horizon = (await self.session.execute("horizon", *partition))[0][0] or 0
        reading = self._datacentres.reading()
        rows = [row async for row in reading.rows("record", *partition)]
        record, was_whole = (
            (decode_record(partition, rows[-1][0]), rows[-1][1])
            if rows
            else (ScheduleRecord(), True)
        )
        mark = begins = record.low_water_mark
        if not (was_whole and reading.is_whole):
            begins = TaskKey(mark.run_at - OVERLAP, "", "")
        self._owners[partition] = ScheduleOwner(
            partition,
            range_id,
            record.low_water_mark,
            begins,
            reading.is_whole,
            Horizon(horizon, before.horizon if before is not None and is_again else None),
        )
        return Owned(range_id, msgspec.structs.replace(record, low_water_mark=begins))

    async def statuses(self, queue: str, stale_before: int) -> dict[int, ScheduleStatus]:
        await self._keyspace.check()
        return await super().statuses(queue, stale_before)

    async def _raise(self, partition: PartitionKey) -> tuple[int, bool]:
        """Return the new range id, and whether this store had the partition last."""
        before = self._owners.get(partition)
        mine = 0 if before is None else before.range_id
        held = None
        while True:
            range_id = next_range_id(held or 0, mine)
            applied, *found = (
                await self.session.execute("raise_range_id", range_id, *partition, held)
            )[0]
            if applied:
                return range_id, before is not None and held == mine
            held = found[-1] if found else None  # another owner was faster, or there was one before

    async def persist(
        self,
        partition: PartitionKey,
        range_id: int,
        tasks: Sequence[NewTask],
        record: ScheduleRecord,
    ) -> set[TaskKey]:
        owner = self._owner(partition, range_id)
        stamp, record = owner.stamp(), owner.safe_record(record, tasks)
        rows = [(ScheduledTask.of(task).key, task.id, _encode(task).decode()) for task in tasks]
        self._sizes[partition.queue].on_rows(rows)
        completed, _ = await asyncio.gather(
            self._completed(owner, [row[0] for row in rows]), self._check_fence(owner)
        )
        new = [row for row in rows if row[0] not in completed]
        unnoted = owner.hours_to_note({hour_of(key) for key, _, _ in new})
        kept = [
            ("keep", (stamp, _encode(record).decode(), owner.is_whole, *partition)),
            *(("note_hour", (*partition, hour, stamp)) for hour in unnoted),
        ]
        inserts = (insert(partition, key, task_id, task, stamp) for key, task_id, task in new)
        ids = (id_insert(partition, key, task_id, stamp) for key, task_id, _ in new)
        await self._write([kept, *batches_of(inserts), *batches_of(ids)])
        await self._check_fence(owner)
        owner.on_saved(record)
        owner.has_persisted = True
        owner.hours.update(dict.fromkeys(unnoted, 0))
        owner.stored_hours.add(unnoted)
        return completed

    async def finish(self, partition: PartitionKey, range_id: int, ends: Sequence[RunEnd]) -> None:
        owner = self._owner(partition, range_id)
        finished: dict[int, int] = {}
        for end in ends:
            if end.completes:
                hour = hour_of(end.scheduled.key)
                finished[hour] = max(end.finished_at, finished.get(hour, 0))
        with owner.finishing.use(finished):
            await self._finish(owner, ends, finished)

    async def _finish(
        self, owner: ScheduleOwner, ends: Sequence[RunEnd], finished: Mapping[int, int]
    ) -> None:
        """Write ends, and append the runs to the history in SQL, if there is one."""
        partition = owner.partition
        with owner.horizon.write(ends) as given:
            hours = {(given[key_of(end)] // HOUR, hour_of(end.scheduled.key)) for end in ends}
            with owner.runs.write(hours):
                stamp = owner.stamp()
                await self._note(owner, owner.runs.to_note(hours), stamp)
                writes = (end_of_run(partition, end, stamp, given[key_of(end)]) for end in ends)
                ids = (
                    id_end(partition, end, given[key_of(end)], stamp)
                    if self._history is None
                    else id_deletion(partition, end.scheduled.task.id, stamp)
                    for end in ends
                    if end.completes
                )
                unnoted = await self._write_ends(owner, finished, writes, ids, stamp)
                # Wait for both, so that no append goes on beside its repetition.
                are_moved, refused = await asyncio.gather(
                    self._append(ends), self._check_fence(owner), return_exceptions=True
                )
                if isinstance(are_moved, BaseException):
                    raise are_moved
                if refused is not None:
                    raise refused
                owner.runs.note(hours, are_moved)
                owner.on_finished(finished, unnoted)

    async def _append(self, ends: Sequence[RunEnd]) -> bool:
        """Return whether the runs are in the history in SQL now."""
        if self._history is None:
            return False
        return await self._history.append([attempt_row(end) for end in ends])

    async def _note(self, owner: ScheduleOwner, hours: Sequence[RunHours], stamp: int) -> None:
        """Check the fence, and note hours before their rows are written, so that readers and other
        owners find them."""
        if not hours:
            await self._check_fence(owner)
            return
        notes = [("note_runs", (*owner.partition, *each, stamp)) for each in hours]
        await asyncio.gather(self.session.batch(notes), self._check_fence(owner))

    async def _write_ends(
        self,
        owner: ScheduleOwner,
        finished: Mapping[int, int],
        writes: Iterable[Write],
        ids: Iterable[Write],
        stamp: int,
    ) -> dict[int, int]:
        """Write ends, and the index rows of ended tasks; return the completion times that were
        noted, by hour."""
        unnoted = owner.ends_to_note(finished)
        noted = [
            ("note_finished", (*owner.partition, hour, at, stamp)) for hour, at in unnoted.items()
        ]
        await self._write([*([noted] if noted else []), *batches_of(writes), *batches_of(ids)])
        return unnoted

    async def keep(
        self,
        partition: PartitionKey,
        range_id: int,
        record: ScheduleRecord,
        done: Sequence[tuple[TaskKey, TaskKey]] = (),
    ) -> None:
        owner = self._owner(partition, range_id)
        stamp, record = owner.stamp(), owner.safe_record(record)
        await self._check_fence(owner)
        await self.session.batch(
            [("keep", (stamp, _encode(record).decode(), owner.is_whole, *partition))]
        )
        owner.on_saved(record)
        if owner.is_whole:
            await self._sweep(owner, stamp, done)
        await self._restart_when_whole(owner)

    async def clean(self, partition: PartitionKey, range_id: int, before: int) -> int:
        """Delete the completions of hours whose tasks were due and completed before `before`, with
        the rows of these tasks. The unfinished tasks of such an hour stay. Without a SQL database,
        delete the runs that ended before `before` too, unless a reader has not read them.

        Return the number of hours.
        """
        owner = self._owner(partition, range_id)
        # A completion that is being written now may have an earlier stamp.
        busy, stamp = owner.finishing.hours, owner.stamp()
        await self._check_fence(owner)
        await self._restart_when_whole(owner)
        mark_hour = hour_of(owner.low_water_mark)
        rows = await self.session.execute("finished_hours", *partition, before // HOUR)
        hours = [
            hour
            for hour, at in rows
            if hour not in busy and (hour < mark_hour if at is None else at + HOUR < before)
        ][:CLEANED_AT_ONCE]
        left = {
            hour: await self._unfinished_in(owner, hour) if hour >= mark_hour else []
            for hour in hours
        }
        if not owner.is_whole:
            return 0
        await self._write(
            deletions_of(partition, hour, stamp, owner.stamp(), keys) for hour, keys in left.items()
        )
        if hours:
            await self.session.batch(
                [
                    ("forget_finished" if left[hour] else "drop_hour", (stamp, *partition, hour))
                    for hour in hours
                ]
            )
        owner.on_cleaned({hour: bool(keys) for hour, keys in left.items()})
        return len(hours) + (0 if self._history else await self._clean_runs(owner, before))

    async def move_attempts(self, partition: PartitionKey, range_id: int) -> None:
        """Move the stored runs to the history, and delete those of each hour that was moved whole.
        Leave the rest if the database of the history is away. Without a SQL database, raise the
        horizon of the history for its readers."""
        owner = self._owner(partition, range_id)
        if self._history is None:
            await self._save_horizon(owner)
            return
        runs = owner.runs
        await self._check_fence(owner)
        if not runs.is_read:
            reading = self._datacentres.reading()
            noted = [(end, hour) async for end, hour in reading.rows("run_hours", *partition)]
            runs.note(noted, are_moved=False)
            runs.is_read = reading.is_whole
        # Rows that are written from now on have a later stamp than the deletion.
        taken, stamp = runs.take(), owner.stamp()
        try:
            for hours in sorted(taken):
                is_moved = not taken[hours] or (
                    not self._history.is_away and await self._move_runs(owner, hours, self._history)
                )
                # Another datacentre may have further rows of an earlier owner.
                if is_moved and runs.is_read:
                    await self._drop_runs(owner, [hours], stamp)
                    del taken[hours]
        finally:
            for hours, is_unmoved in taken.items():
                runs.note([hours], are_moved=not is_unmoved)

    async def move_tasks(
        self, source: PartitionKey, range_ids: Mapping[int, int], partitions: int, after: Any
    ) -> Moved:
        """Move tasks and copy completed keys. The rows that were moved stay in `source`, marked as
        done; a partition beyond `partitions` is emptied by the last step."""
        owner = self._owner(source, range_ids[source.partition])
        reading = self._datacentres.reading()
        if after is None:
            rows = reading.rows("hours", *source, hour_of(BEFORE_ALL), LAST_HOUR)
            position = Position(tuple(sorted({hour async for (hour,) in rows})))
            self._require_whole(owner, reading)
            return Moved(0, 0, position)
        position = after
        if not position.hours:
            if source.partition >= partitions:
                await self._empty(owner)
            return Moved(0, 0, None)
        name = "completions" if position.is_completed else "read"
        bounds = position.after if position.is_completed else (*position.after, *_LAST_KEY)
        found = reading.rows(name, *source, position.hours[0], *bounds, page=ROWS_AT_ONCE)
        page: dict[TaskKey, Row] = {}  # rows come again when a datacentre stops responding
        async with contextlib.aclosing(found):
            async for row in found:
                page[TaskKey(*row[:3])] = row
                if len(page) == ROWS_AT_ONCE:
                    break
        self._require_whole(owner, reading)
        some = list(page.values())
        moving = rows_to_move(some, source, partitions, position.is_completed)
        owners = [
            self._owner(PartitionKey(source.queue, number), range_ids[number]) for number in moving
        ]
        await together(self._check_fence(each) for each in (owner, *owners))
        await together(
            self._take_rows(target, rows, position)
            for target, rows in zip(owners, moving.values(), strict=True)
        )
        if not position.is_completed:
            stamp = owner.stamp()
            left = [row for rows in moving.values() for row in rows]
            moved = (row_left(source, row, stamp) for row in left)
            ids = (id_deletion(source, row[3], stamp) for row in left)
            await self._write([*batches_of(moved), *batches_of(ids)])
        await self._check_fence(owner)
        count = sum(map(len, moving.values()))
        tasks, completed = (0, count) if position.is_completed else (count, 0)
        return Moved(tasks, completed, position.following(some))

    async def _take_rows(
        self, target: ScheduleOwner, rows: Sequence[Row], position: Position
    ) -> None:
        """Write rows of one hour that come from another partition."""
        partition, hour, stamp = target.partition, position.hours[0], target.stamp()
        note: tuple[str, Row]
        ids: list[Write] = []
        if position.is_completed:
            note = ("note_finished", (*partition, hour, max(row[3] for row in rows), stamp))
            writes = [moved_completion(partition, row, stamp) for row in rows]
        else:
            note = ("note_hour", (*partition, hour, stamp))
            writes = [moved_row(partition, row, stamp) for row in rows]
            ids = [id_insert(partition, TaskKey(*row[:3]), row[3], stamp) for row in rows]
        await self._write([[note], *batches_of(writes), *batches_of(ids)])
        await self._check_fence(target)
        target.stored_hours.add([hour])

    async def _empty(self, owner: ScheduleOwner) -> None:
        """Delete all rows of a partition whose tasks and completed keys are elsewhere."""
        partition = owner.partition
        if self._history and await self.session.execute("run_hours", *partition):
            raise StoreUnavailable(
                f"{self.location}: {partition} has runs that are not in the history yet: run the"
                " move again when the database of the tasks responds"
            )
        rows = await self.session.execute("hours", *partition, hour_of(BEFORE_ALL), LAST_HOUR)
        stamp = owner.stamp()
        await self._check_fence(owner)
        await self._write(deletions_of(partition, hour, stamp, stamp, []) for (hour,) in rows)
        for (hour,) in rows:
            await self.session.batch([("drop_hour", (stamp, *partition, hour))])

    def _require_whole(self, owner: ScheduleOwner, reading: DatacentreReading) -> None:
        if not (owner.is_whole and reading.is_whole):
            raise StoreUnavailable(
                f"{self.location}: a datacentre does not respond, and may have tasks that no other"
                " one has: move tasks between partitions when all respond"
            )

    async def _save_horizon(self, owner: ScheduleOwner) -> None:
        through = owner.horizon.raise_through()
        if through is None:
            return
        rows = await self.session.execute("save_horizon", through, *owner.partition, owner.range_id)
        if not rows[0][0]:
            raise _fenced(owner.partition, owner.range_id)
        owner.horizon.stored = through

    async def _clean_runs(self, owner: ScheduleOwner, before: int) -> int:
        """Delete runs that ended before `before` and that every reader has read, by the hours of
        their ends and of their tasks; return the number of pairs of hours."""
        partition = owner.partition
        read = [row[0] for row in await self.session.execute("readers", *partition)]
        last = min([before, owner.horizon.stored, *read]) // HOUR
        pairs = (await self.session.execute("run_hours_before", *partition, last))[:CLEANED_AT_ONCE]
        if not pairs:
            return 0
        stamp = owner.stamp()
        await self._check_fence(owner)
        await self._drop_runs(owner, pairs, stamp)
        owner.runs.drop(map(tuple, pairs))
        return len(pairs)

    async def _drop_runs(
        self, owner: ScheduleOwner, pairs: Sequence[Sequence[int]], stamp: int
    ) -> None:
        """Delete runs by the hours of their ends and of their tasks, and then these hours."""
        partition = owner.partition
        await self._write([("drop_runs", (stamp, *_range_of(partition, hours)))] for hours in pairs)
        await self.session.batch(
            [("drop_run_hour", (stamp, *partition, *hours)) for hours in pairs]
        )

    async def _move_runs(
        self, owner: ScheduleOwner, hours: RunHours, history: HistoryInSql
    ) -> bool:
        """Append the runs of a pair of hours to the history. Return False if some may not be
        there."""
        reading = self._datacentres.reading()
        rows = reading.rows("runs", *_range_of(owner.partition, hours), page=MOVED_AT_ONCE)
        async with contextlib.aclosing(rows):
            some: list[Row] = []
            async for (row,) in rows:
                if (run := read_run(owner.partition, hours, row)) is not None:
                    some.append(run)
                if len(some) == MOVED_AT_ONCE:
                    if not await history.append(some):
                        return False
                    some = []
            if some and not await history.append(some):
                return False
        return reading.is_whole

    async def _unfinished_in(self, owner: ScheduleOwner, hour: int) -> list[TaskKey]:
        """Return the keys of the unfinished tasks of an hour, also of those that cannot be read: at
        most MOST_LEFT and one more."""
        reading = self._datacentres.reading()
        begin = TaskKey(hour * HOUR, "", "")
        found: dict[TaskKey, None] = {}
        rows = reading.rows("unfinished", *owner.partition, hour, *begin)
        async with contextlib.aclosing(rows):
            async for *key, task_id, _, is_done in rows:
                if task_id is not None and not is_done:
                    found[TaskKey(*key)] = None
                    if len(found) > MOST_LEFT:
                        break
        if not reading.is_whole:
            owner.is_whole = False
        return sorted(found)

    def _owner(self, partition: PartitionKey, range_id: int) -> ScheduleOwner:
        owner = self._owners.get(partition)
        if owner is None or owner.range_id != range_id:
            raise _fenced(partition, range_id)
        return owner

    async def _check_fence(self, owner: ScheduleOwner) -> None:
        """Raise Fenced if there was a later take-over."""
        rows = await self.session.execute("range_id", *owner.partition)
        found = rows[0][0] if rows else 0
        if found > owner.range_id:
            raise _fenced(owner.partition, owner.range_id)
        if found < owner.range_id:
            raise StoreUnavailable(
                f"{self.location}: this datacentre has range id {found} of {owner.partition},"
                f" which is {owner.range_id} elsewhere: wait until it has caught up"
            )

    async def _restart_when_whole(self, owner: ScheduleOwner) -> None:
        if not owner.is_whole and await self._datacentres.are_back("range_id", *owner.partition):
            raise StoreUnavailable(
                f"{self.location}: every datacentre responds again; {owner.partition} is loaded"
                " again, from its last safe low-water mark"
            )

    async def _sweep(
        self, owner: ScheduleOwner, stamp: int, done: Iterable[tuple[TaskKey, TaskKey]]
    ) -> None:
        """Delete the rows through the low-water mark, and between the keys of `done` in hours with
        new completions."""
        partition, low_water_mark = owner.partition, owner.low_water_mark
        deletions: list[Write] = []
        if low_water_mark > owner.swept:
            last = hour_of(low_water_mark)
            if (first := hour_of(owner.swept)) < last:
                hours = await self.session.execute("hours", *partition, first, last - 1)
                deletions += [
                    Write(
                        hour,
                        [
                            ("sweep_hour", (stamp, *partition, hour)),
                            ("sweep_keys", (stamp, *partition, hour)),
                        ],
                    )
                    for (hour,) in hours
                ]
            through = ("sweep_through", (stamp, *partition, last, *low_water_mark))
            deletions.append(Write(last, [through]))
        for above, below in done:
            for hour in owner.completed_in:
                if (statement := sweep_between(partition, hour, stamp, above, below)) is not None:
                    deletions.append(Write(hour, [statement]))
        owner.completed_in.clear()
        await self._write(batches_of(deletions))
        owner.swept = low_water_mark

    async def _write(self, batches: Iterable[Sequence[tuple[str, Row]]]) -> None:
        await together(self.session.batch(batch) for batch in batches)

    async def _completed(self, owner: ScheduleOwner, keys: Iterable[TaskKey]) -> set[TaskKey]:
        """Return those of the keys that are completed. The first entries that an owner takes in may
        have been taken in before, and completed in another datacentre, so all are read then."""
        reading = self._datacentres.reading()
        read = self.session.rows if owner.has_persisted else reading.rows
        by_hour: dict[int, list[TaskKey]] = {}
        for key in keys:
            by_hour.setdefault(hour_of(key), []).append(key)
        found = await together(
            _all(read("completed", *owner.partition, hour, list(some)))
            for hour, of_hour in by_hour.items()
            for some in chunks(of_hour, _KEYS_AT_ONCE)
        )
        if not reading.is_whole:
            owner.is_whole = False
        return {TaskKey(*row) for rows in found for row in rows}

    # reading --------------------------------------------------------------------------------------

    async def read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None = None,
        most_bytes: int = ANY_BYTES,
    ) -> Page:
        """Read a page. With an `ordering_key`, the server reads the keys of this ordering key, and
        then their rows."""
        reading = self._datacentres.reading()
        # By key, because rows come again when a datacentre stops responding.
        found: dict[TaskKey, ScheduledTask] = {}
        size, is_cut = 0, False
        for hour in await self._hours(reading, partition, hour_of(after), hour_of(through)):
            if is_cut or len(found) == limit:
                break
            rows = (
                reading.rows(
                    "read",
                    *(*partition, hour, *after, *through),
                    page=limit,
                    sizes=self._sizes[partition.queue],
                )
                if ordering_key is None
                else self._rows_of(reading, partition, hour, ordering_key, after, through, limit)
            )
            async with contextlib.aclosing(rows):
                async for row in rows:
                    scheduled = scheduled_of(partition, row)
                    if scheduled is None:
                        continue
                    if scheduled.key not in found:
                        size += len(row[4] or "")
                        if found and size > most_bytes:
                            is_cut = True
                            break
                    found[scheduled.key] = scheduled
                    if len(found) == limit:
                        break
        owner = self._owners.get(partition)
        if owner is not None and not reading.is_whole:
            owner.is_whole = False
        return Page(list(found.values()), is_cut)

    async def _hours(
        self,
        reading: DatacentreReading,
        partition: PartitionKey,
        first: int,
        last: int,
    ) -> list[int]:
        """Return the hours from `first` to `last` that may have rows, ascending."""
        owner = self._owners.get(partition)
        known = None if owner is None or first < owner.stored_hours.first else owner.stored_hours
        unread = first if known is None else max(first, known.through + 1)
        hours: set[int] = set()
        if unread <= last:
            unread = first if known is None else known.through + 1
            hours = {row[0] async for row in reading.rows("hours", *partition, unread, last)}
            if known is not None and reading.is_whole:
                known.on_read(hours, last)
        if known is not None:
            hours.update(known.within(first, last))
        return sorted(hour for hour in hours if first <= hour)

    async def _rows_of(
        self,
        reading: DatacentreReading,
        partition: PartitionKey,
        hour: int,
        ordering_key: str,
        after: TaskKey,
        through: TaskKey,
        limit: int,
    ) -> AsyncGenerator[Row, None]:
        """Yield the rows of one ordering key in an hour, also of completed tasks."""
        bounds = (*_bound(after, ordering_key), *_bound(through, ordering_key))
        keys = reading.rows("keys_of", *partition, hour, ordering_key, *bounds, page=limit)
        async with contextlib.aclosing(keys):
            async for some in _lists(keys, min(limit, _KEYS_AT_ONCE)):
                found = [
                    row
                    async for row in reading.rows(
                        "read_keys",
                        *(*partition, hour, some),
                        sizes=self._sizes[partition.queue],
                    )
                ]
                for row in found:
                    yield row

    async def now(self) -> int | None:
        rows = await self.session.execute("clock")
        return int(rows[0][0]) * 1000

    async def close(self) -> None:
        """Close the connections to Cassandra; a later call opens new ones. The owner of the task
        store closes that."""
        await self.session.close()


def _fenced(partition: PartitionKey, range_id: int) -> Fenced:
    return Fenced(
        f"partition {partition.partition} of {partition.queue} was taken over: range id {range_id}"
        " is void"
    )


def _range_of(partition: PartitionKey, hours: Sequence[int]) -> tuple[Any, ...]:
    """Return the place of runs: the partition of Cassandra, and the first instant of their ends and
    that after the last."""
    end_hour, hour = hours
    return (*partition, hour, end_hour * HOUR, (end_hour + 1) * HOUR)


def _bound(key: TaskKey, ordering_key: str) -> tuple[int, str]:
    """Return (run_at, unique_key): the tasks of this ordering key at or below the pair are those
    whose keys are at or below `key`. No task has an empty unique key."""
    if key.ordering_key == ordering_key:
        return key.run_at, key.unique_key
    return key.run_at + (ordering_key < key.ordering_key), ""


async def _all(rows: AsyncIterator[Row]) -> list[Row]:
    return [row async for row in rows]


async def _lists(rows: AsyncIterator[Row], most: int) -> AsyncIterator[list[TaskKey]]:
    """Yield the keys of the rows in lists of at most `most`."""
    keys: list[TaskKey] = []
    async for row in rows:
        keys.append(TaskKey(*row))
        if len(keys) == most:
            yield keys
            keys = []
    if keys:
        yield keys
