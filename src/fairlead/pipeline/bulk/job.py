"""One run of a bulk submit, from its opening to its end. Each step may fail or be repeated, and
another run may supersede this one."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa

from fairlead.app import App
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import StoreUnavailable
from fairlead.pipeline.bulk import columns
from fairlead.pipeline.bulk.ids import IdSpace
from fairlead.pipeline.bulk.jobs import check_content, end_run, find
from fairlead.pipeline.bulk.message import Opened, StagedPart, SubmissionTotals
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.bulk.publish import Publisher
from fairlead.pipeline.bulk.rows import RowEncoder
from fairlead.pipeline.bulk.stage import Encoded, Stage, stage_of
from fairlead.pipeline.errors import RefusedRows
from fairlead.ports.statements import Statement, Steps

__all__ = ["BulkJob", "SubmissionTotals"]

_MOST_SHOWN = 5


class BulkJob:
    """One run of one submission. After `open`, many processes may unpickle it and call `stage`.

    Call `open`, then `stage` for each part, then `publish` with one message for each part, or
    `abort`.
    """

    def __init__(self, options: BulkOptions, epoch: str | None = None) -> None:
        """`epoch`: the epoch of a run that another process began; None begins a new run."""
        self.options = options
        self.epoch = epoch or uuid.uuid4().hex
        self.submission_id = options.submission_id or f"unnamed/{self.epoch}"
        self.opened: Opened | None = None

    def open(self, schema: pa.Schema) -> str:
        """Check the columns, and take over the job for this run; return the epoch of the run. A
        repeated call changes nothing.

        Afterwards `reads_rows` says whether `stage` needs the rows. Raise InvalidTask with all
        problems of the columns, ContentDiffers when the submission was published with another
        `content`, StoreUnavailable, or SchemaMismatch.
        """
        columns.check(schema, self.options)
        with self._connected() as (app, stage):
            self.opened = app.sql_store.database.run(self._open(app, stage))
        return self.epoch

    @property
    def reads_rows(self) -> bool:
        """Whether rows must be staged, or compared with those published before. Call after
        `open`."""
        assert self.opened is not None, "not opened"
        return self.opened.needs_rows or (
            self.options.on_repeat == "compare" and not self.opened.is_same
        )

    @property
    def partitions(self) -> int:
        """Number of partitions of the queue in the options. Call after `open`."""
        assert self.opened is not None, "not opened"
        return self.options.partitions_of(self.opened.registered, self.options.queue or "")

    def stage(self, batches: Iterable[pa.RecordBatch], part: int) -> StagedPart:
        """Check, encode and stage the rows of one part (partition of the DataFrame), all or
        nothing. If the submission is already published, stage nothing: the message only says what
        the rows are, so that `publish` can compare them.

        Raise RefusedRows with the first rows that do not fit (unless on_error is "quarantine"),
        or RunSuperseded when another run has taken over.
        """
        opened = self.opened
        assert opened is not None, "stage before open"
        attempt = str(uuid.uuid4()) if opened.needs_rows else ""
        space = IdSpace.of(opened.opened_at, self.submission_id, self.epoch, part)
        rows = RowEncoder(self.options, opened.registered, space)
        encoded = self._encoded(rows, batches, part)
        if opened.needs_rows:
            with self._connected() as (_, stage):
                stage.write(opened, part, attempt, encoded)
        else:
            for _ in encoded:
                pass
        return StagedPart(
            self.submission_id,
            self.epoch,
            part,
            attempt,
            rows.rows,
            rows.rejected,
            rows.bytes,
            rows.is_keyed,
            rows.queues,
            rows.digest.text,
        )

    def publish(self, messages: Sequence[StagedPart]) -> SubmissionTotals:
        """Turn the staged rows of these parts into tasks, each once. If the submission is already
        published, only return its totals. Parts without any rows publish nothing, and a later run
        may give rows.

        Raise ContentDiffers when the submission is published with other rows, RunSuperseded when
        another run has taken over, KeyTaken when on_conflict is "error" and a unique key is taken,
        and StageLost when staged rows are missing.
        """
        with self._connected() as (app, stage):
            job = Publisher(app, stage, self.options, self.submission_id, self.epoch).publish(
                messages
            )
            with suppress(StoreUnavailable):  # the janitor deletes what is left
                app.sql_store.database.run(stage.drop(job.number, self.submission_id))
        return job.counts

    def abort(self) -> None:
        """End this run without publishing anything. Another run of the submission starts from the
        beginning."""
        with self._connected() as (app, stage):
            database = app.sql_store.database
            number = database.run(
                end_run(stage.sql, self.submission_id, self.epoch, SYSTEM_CLOCK.now())
            )
            if number is not None:
                database.run(stage.drop(number, self.submission_id))

    def totals(self) -> SubmissionTotals | None:
        """Return the totals of the submission, whichever run published it; None before that."""
        with self._connected() as (app, stage):
            job = app.sql_store.database.read_now(find(stage.sql, self.submission_id))
        return job and job.totals

    def _open(self, app: App, stage: Stage) -> Steps[Opened]:
        now = SYSTEM_CLOCK.now()
        yield Statement(
            stage.sql["open_job"],
            (self.submission_id, self.epoch, now, self.options.publish, self.options.content),
        )
        job = yield from find(stage.sql, self.submission_id)
        assert job is not None
        check_content(job, self.options.content, job.declared)
        is_same = self.options.content is not None and self.options.content == job.declared
        settings = yield from app.sql_store.queue_settings()
        registered = {queue: setting.partitions for queue, setting in settings.items()}
        return Opened(
            job.number,
            self.submission_id,
            self.epoch,
            job.state,
            job.opened_at,
            registered,
            is_same,
        )

    def _encoded(
        self, rows: RowEncoder, batches: Iterable[pa.RecordBatch], part: int
    ) -> Iterator[Encoded]:
        for batch in batches:
            for encoded, rejects in rows.encode(batch):
                if rejects and self.options.on_error == "fail":
                    more = (
                        f"; and {len(rejects) - _MOST_SHOWN:,} more"
                        if len(rejects) > _MOST_SHOWN
                        else ""
                    )
                    raise RefusedRows(
                        f"bulk submit: {len(rejects):,} bad rows among the first"
                        f" {rows.rows + rows.rejected:,} of partition {part}:"
                        f" {'; '.join(map(str, rejects[:_MOST_SHOWN]))}{more}"
                    )
                yield encoded, rejects

    @contextmanager
    def _connected(self) -> Iterator[tuple[App, Stage]]:
        app = App(self.options.url)
        try:
            yield app, stage_of(app.sql_store, self.options.max_connections)
        finally:
            app.close()
