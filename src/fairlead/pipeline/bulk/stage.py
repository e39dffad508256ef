"""The stage of a bulk submit: where rows wait, how they become tasks, and the end of abandoned
stages. Its steps run in the caller's transaction.

PostgreSQL stages rows by COPY into a table, and inserts tasks from that table inside the server.
SQLite has one writer at a time, so processes stage rows in files, one Arrow file for each attempt
of a Spark task in a folder beside the database, and only the publisher inserts them. All processes
must share the file system.

Workers sweep without PyArrow, so it is imported where rows are written or read.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from fairlead.backends.postgres.copy_format import HEADER, TRAILER
from fairlead.backends.sql.sql_file import load
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.file_modes import make_folder
from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.core.ids import id_text
from fairlead.errors import FairleadError
from fairlead.model import NewTask
from fairlead.pipeline import durable
from fairlead.pipeline.bulk.jobs import JobRow, StagedPiece, StageLost, touch
from fairlead.ports.notification import Lane, Notification, joined
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Copy, Many, Row, Statement, Steps

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.pipeline.bulk.checks import Reject

    Encoded = tuple[pa.RecordBatch, list[Reject]]

DAY = 86_400 * MICROS

# Microseconds since the last change of a job, after which the job loses its stage or is deleted.
KEEP_STAGE = DAY
KEEP_STAGE_OF_PUBLISHING = 7 * DAY
"""For a job that has published some of its rows, which can never be completed without its stage."""
KEEP_JOB = 30 * DAY
"""Microseconds for which a job is kept after its last change. While the job is kept, a repeated
submission submits nothing again."""

# "fair" in ASCII: class of the advisory locks that limit how many processes stage at once
_SLOTS = 0x66616972
FIRST_PAUSE, LAST_PAUSE = 0.05, 2.0
"""Shortest and longest pause between two tries to get a slot, in seconds; each try doubles it."""
_ROWS_AT_ONCE = 10_000
_REJECTS = "rejects"  # metadata key of a batch in a file: its refused rows as JSON


class Stage(Protocol):
    """Stage of one store."""

    store: SqlStore
    sql: dict[str, str]
    """SQL statements by name; statements about jobs have the same names in every stage."""

    def write(self, job: JobRow, part: int, attempt: str, encoded: Iterable[Encoded]) -> None:
        """Write rows and rejects of an attempt of a Spark task, all or nothing. Raise RunSuperseded
        when another run has taken over."""

    def insert(
        self, job: JobRow, pieces: Sequence[StagedPiece], now: int
    ) -> Steps[tuple[int, Notification]]:
        """Claim the free unique keys of the rows, and insert tasks for the rows without a taken
        key, in order; return their number. Raise StageLost when rows are missing."""

    def publish_rejects(
        self, submission_id: str, attempts: Sequence[tuple[str, int]]
    ) -> Steps[None]:
        """Assign the rejects of these (attempt, part) pairs to the job."""

    def drop(self, job: int, submission_id: str) -> Steps[None]:
        """Delete all staged rows of a job."""


def stage_of(store: SqlStore, max_connections: int = 4) -> Stage:
    """Return the stage of a task store. At most `max_connections` processes write to a server at
    once."""
    if isinstance(store.database, SqliteDatabase):
        return SqliteStage(store, store.database.path)
    return PostgresStage(store, max_connections)


def sweep(store: SqlStore, now: int) -> Steps[int]:
    """Delete up to a hundred abandoned stages, and all jobs older than KEEP_JOB; return how many
    stages were deleted. `now` in microseconds."""
    stage = stage_of(store)
    abandoned = yield Statement(
        stage.sql["abandoned_jobs"], (now - KEEP_STAGE, now - KEEP_STAGE_OF_PUBLISHING)
    )
    for submission_id, number in abandoned:
        yield Statement(stage.sql["sweep_job"], (submission_id,))
        yield from stage.drop(number, submission_id)
    for (submission_id,) in (yield Statement(stage.sql["delete_old_jobs"], (now - KEEP_JOB,))):
        yield Statement(stage.sql["delete_rejects"], (submission_id,))
    return len(abandoned)


class PostgresStage:
    """A `Stage` on PostgreSQL."""

    def __init__(self, store: SqlStore, slots: int) -> None:
        self.store = store
        self._slots = slots
        self.sql = load("jobs.sql", __package__) | load("postgres.sql", __package__)

    def write(self, job: JobRow, part: int, attempt: str, encoded: Iterable[Encoded]) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                return self.store.database.run(self._write(job, part, attempt, encoded))
            except _NoSlot:
                # Close the connection while waiting: the slots limit the number of connections.
                self.store.database.close()
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, LAST_PAUSE)

    def _write(
        self, job: JobRow, part: int, attempt: str, encoded: Iterable[Encoded]
    ) -> Steps[None]:
        from fairlead.pipeline.bulk.binary_rows import binary_rows
        from fairlead.pipeline.bulk.columns import STAGED

        if not (yield Statement(self.sql["take_slot"], (_SLOTS, self._slots))):
            raise _NoSlot
        for batch, rejects in encoded:
            if batch.num_rows:
                rows = binary_rows(batch, job.number, uuid.UUID(attempt).bytes)
                columns = ("job", "attempt", *STAGED.names)
                yield Copy("fairlead_bulk_stage", columns, [HEADER, rows, TRAILER])
            if rejects:
                rejected = [(job.submission_id, attempt, part, *row, False) for row in rejects]
                yield Many(self.sql["insert_reject"], rejected)
        # Touch the job last, because this locks its row until the commit.
        yield from touch(self.sql, job.submission_id, job.epoch, SYSTEM_CLOCK.now())

    def insert(
        self, job: JobRow, pieces: Sequence[StagedPiece], now: int
    ) -> Steps[tuple[int, Notification]]:
        if pieces and any(message.is_keyed for message in job.messages):
            attempts, firsts, lasts = (list(column) for column in zip(*pieces, strict=True))
            yield Statement(self.sql["claim_keys"], (job.number, attempts, firsts, lasts, now))
        inserted: list[Row] = []
        for piece in pieces:
            rows = yield Statement(self.sql["insert_piece"], (job.number, *piece, now))
            inserted += rows
            if sum(row[5] for row in rows) < (wanted := piece.last - piece.first):
                left = (yield Statement(self.sql["count_piece"], (job.number, *piece)))[0][0]
                if left < wanted:
                    raise StageLost(
                        f"submission {job.submission_id!r}: of {wanted} staged rows {left} are left"
                    )
        due = min((row[4] for row in inserted if row[4] is not None), default=None)
        ready = [Lane(*row[:4]) for row in inserted if row[3] is not None]
        return sum(row[5] for row in inserted), joined([Notification(ready=ready, due=due)])

    def publish_rejects(
        self, submission_id: str, attempts: Sequence[tuple[str, int]]
    ) -> Steps[None]:
        yield Statement(
            self.sql["publish_rejects"], (submission_id, [attempt for attempt, _ in attempts])
        )

    def drop(self, job: int, submission_id: str) -> Steps[None]:
        yield Statement(self.sql["drop_stage"], (job,))
        yield Statement(self.sql["drop_rejects"], (submission_id,))


class _NoSlot(FairleadError):
    """All slots for staging are taken."""


class SqliteStage:
    """A `Stage` on SQLite."""

    def __init__(self, store: SqlStore, path: Path) -> None:
        self.store = store
        self._database = path.resolve()
        self._folder = self._database.with_name(f"{path.name}-bulk")
        self.sql = {
            name: re.sub("FOR UPDATE( SKIP LOCKED)?", "", text).replace("$", "?")
            for name, text in load("jobs.sql", __package__).items()
        }

    def write(self, job: JobRow, part: int, attempt: str, encoded: Iterable[Encoded]) -> None:
        def fill(path: Path) -> None:
            import pyarrow as pa

            from fairlead.pipeline.bulk.columns import STAGED

            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, STAGED) as writer:
                for batch, rejects in encoded:
                    metadata = {_REJECTS: msgspec.json.encode(rejects)}
                    writer.write_batch(batch, custom_metadata=metadata)

        make_folder(self._database, self._folder)
        durable.write(durable.folder(self._folder_of(job.submission_id)) / f"{attempt}.arrow", fill)
        self.store.database.run(touch(self.sql, job.submission_id, job.epoch, SYSTEM_CLOCK.now()))

    def insert(
        self, job: JobRow, pieces: Sequence[StagedPiece], now: int
    ) -> Steps[tuple[int, Notification]]:
        inserted = 0
        notifications = []
        for batch in (batch for piece in pieces for batch in self._read(job.submission_id, piece)):
            # Also claims the keys: SQLite has one writer.
            submitted, notification = yield from self.store.submission(_tasks(batch, now))
            inserted += sum(each.is_new for each in submitted)
            notifications.append(notification)
        return inserted, joined(notifications)

    def publish_rejects(
        self, submission_id: str, attempts: Sequence[tuple[str, int]]
    ) -> Steps[None]:
        for attempt, part in attempts:
            with self._open(submission_id, attempt) as reader:
                for number in range(reader.num_record_batches):
                    metadata = reader.get_batch_with_custom_metadata(number).custom_metadata
                    rejects = msgspec.json.decode(metadata[_REJECTS])
                    rows = [(submission_id, attempt, part, *reject, True) for reject in rejects]
                    yield Many(self.sql["insert_reject"], rows)

    def drop(self, job: int, submission_id: str) -> Steps[None]:
        shutil.rmtree(self._folder_of(submission_id), ignore_errors=True)
        return
        yield

    def _folder_of(self, submission_id: str) -> Path:
        return self._folder / hashlib.sha256(submission_id.encode()).hexdigest()

    def _read(self, submission_id: str, piece: StagedPiece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece in batches. Raise StageLost unless all are there."""
        with self._open(submission_id, piece.attempt) as reader:
            rows = reader.read_all()  # reads no row yet: the file is mapped into memory
            if rows.num_rows < piece.last:
                raise StageLost(
                    f"submission {submission_id!r}: attempt {piece.attempt} has {rows.num_rows}"
                    f" rows, not {piece.last}"
                )
            wanted = rows.slice(piece.first, piece.last - piece.first)
            yield from wanted.to_batches(_ROWS_AT_ONCE)

    @contextmanager
    def _open(self, submission_id: str, attempt: str) -> Iterator[pa.RecordBatchFileReader]:
        """Open the staged rows of an attempt. Raise StageLost when they are missing or
        incomplete."""
        import pyarrow as pa

        path = self._folder_of(submission_id) / f"{attempt}.arrow"
        try:
            with pa.memory_map(str(path)) as file:
                yield pa.ipc.open_file(file)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise StageLost(
                f"submission {submission_id!r}: staged rows are missing or incomplete: {error}"
            ) from error


def _tasks(batch: pa.RecordBatch, now: int) -> list[NewTask]:
    """Return the rows as new tasks, submitted now."""
    columns = batch.to_pydict()
    columns["id"] = [id_text(int.from_bytes(id)) for id in columns["id"]]
    columns["run_at"] = [now if run_at is None else run_at for run_at in columns["run_at"]]
    columns["submitted_at"] = [now] * batch.num_rows
    in_order = (columns[name] for name in NewTask.__struct_fields__)
    return [NewTask(*values) for values in zip(*in_order, strict=True)]
