"""The stage of bulk submit on SQLite: one Arrow file for each attempt of a Spark task, in a folder
beside the database.

SQLite has one writer at a time, so processes stage rows in files, and only the publisher inserts
them. All processes must share the file system.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairlead.backends.sql.sql_file import load
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.file_modes import make_folder
from fairlead.clock import SYSTEM_CLOCK
from fairlead.core.ids import id_text
from fairlead.model import NewTask
from fairlead.pipeline import durable
from fairlead.pipeline.bulk.columns import staged
from fairlead.pipeline.bulk.jobs import touch
from fairlead.pipeline.bulk.message import Opened, Published, StagedPiece, StageLost
from fairlead.pipeline.bulk.stage import Encoded
from fairlead.ports.notification import joined
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Many, Steps

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 10_000
_REJECTS = "rejects"  # metadata key of a batch: its refused rows as JSON


class SqliteStage:
    """A `fairlead.pipeline.bulk.stage.Stage` on SQLite."""

    def __init__(self, store: SqlStore) -> None:
        assert isinstance(store.database, SqliteDatabase)
        self._store = store
        self._database = store.database.path.resolve()
        self._folder = self._database.with_name(f"{store.database.path.name}-bulk")
        self.sql = load("sqlite.sql", __package__)

    def write(self, job: Opened, part: int, attempt: str, encoded: Iterable[Encoded]) -> None:
        def fill(path: Path) -> None:
            import pyarrow as pa

            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, staged()) as writer:
                for batch, rejects in encoded:
                    writer.write_batch(
                        batch, custom_metadata={_REJECTS: msgspec.json.encode(rejects)}
                    )

        make_folder(self._database, self._folder)
        durable.write(durable.folder(self._folder_of(job.submission_id)) / f"{attempt}.arrow", fill)
        self._store.database.run(touch(self.sql, job.submission_id, job.epoch, SYSTEM_CLOCK.now()))

    def claim(self, job: int, pieces: Sequence[StagedPiece], now: int) -> Steps[None]:
        return  # `insert` claims the keys: SQLite has one writer
        yield

    def insert(
        self, job: int, submission_id: str, piece: StagedPiece, now: int
    ) -> Steps[Published]:
        inserted = 0
        notifications = []
        for batch in self._read(submission_id, piece):
            submitted, notification = yield from self._store.submission(_tasks(batch, now))
            inserted += sum(each.is_new for each in submitted)
            notifications.append(notification)
        return Published(inserted, joined(notifications))

    def publish_rejects(
        self, submission_id: str, attempts: Sequence[tuple[str, int]]
    ) -> Steps[None]:
        for attempt, part in attempts:
            with self._open(submission_id, attempt) as reader:
                for number in range(reader.num_record_batches):
                    metadata = reader.get_batch_with_custom_metadata(number).custom_metadata
                    rejects = msgspec.json.decode(metadata[_REJECTS])
                    yield Many(
                        self.sql["insert_reject"],
                        [(submission_id, attempt, part, *reject) for reject in rejects],
                    )

    def drop(self, job: int, submission_id: str) -> Steps[None]:
        shutil.rmtree(self._folder_of(submission_id), ignore_errors=True)
        return
        yield

    def _folder_of(self, submission_id: str) -> Path:
        return self._folder / hashlib.sha256(submission_id.encode()).hexdigest()

    def _read(self, submission_id: str, piece: StagedPiece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece in batches. Raise StageLost unless all are there."""
        start = 0
        with self._open(submission_id, piece.attempt) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                first, last = max(piece.first - start, 0), min(piece.last - start, batch.num_rows)
                start += batch.num_rows
                for at in range(first, last, _ROWS_AT_ONCE):
                    yield batch.slice(at, min(_ROWS_AT_ONCE, last - at))
        if start < piece.last:
            raise StageLost(
                f"submission {submission_id!r}: attempt {piece.attempt} has {start} rows, not"
                f" {piece.last}"
            )

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
