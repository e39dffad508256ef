"""One run of a bulk submit, from its opening to its end. Each step may fail or be repeated, and
another run may supersede this one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
import pyarrow as pa

from fairlead.app import App
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import StoreUnavailable
from fairlead.pipeline.bulk import columns
from fairlead.pipeline.bulk.checks import Reject
from fairlead.pipeline.bulk.ids import IdSpace
from fairlead.pipeline.bulk.jobs import (
    DIGEST_MODULUS,
    JobRow,
    KeyTaken,
    StagedPart,
    SubmissionTotals,
    end_run,
    find,
    joined_content,
    lock,
    superseded,
    touch,
)
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.bulk.rows import RowEncoder
from fairlead.pipeline.bulk.stage import Stage, stage_of
from fairlead.pipeline.errors import RefusedRows
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Statement, Steps

BACKLOG_POLL_SECONDS = 1.0
"""Seconds between two reads of a backlog that is too long for the next chunk."""
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
        self._row: JobRow | None = None
        self._registered: Mapping[str, int] = {}

    def open(self, schema: pa.Schema) -> None:
        """Check the columns, and take over the job for this run. A repeated call changes nothing.

        Afterwards `reads_rows` says whether `stage` needs the rows. Raise InvalidTask with all
        problems of the columns, ContentDiffers when the submission was published with another
        `content`, StoreUnavailable, or SchemaMismatch.
        """
        columns.check(schema, self.options)
        with self._connected() as (_, stage):
            self._row, self._registered = stage.store.database.run(self._open(stage))

    @property
    def opened(self) -> JobRow:
        """The row of the job as this run opened it. Call after `open`."""
        assert self._row is not None, "not opened"
        return self._row

    @property
    def reads_rows(self) -> bool:
        """Whether rows must be staged, or compared with those published before. Call after
        `open`."""
        is_same = self.options.content is not None and self.options.content == self.opened.declared
        return self.opened.needs_rows or (self.options.on_repeat == "compare" and not is_same)

    @property
    def partitions(self) -> int:
        """Number of partitions of the queue in the options. Call after `open`."""
        return self.options.partitions_of(self._registered, self.options.queue or "")

    def stage(self, batches: Iterable[pa.RecordBatch], part: int) -> StagedPart:
        """Check, encode and stage the rows of one part (partition of the DataFrame), all or
        nothing. If the submission is already published, stage nothing: the message only says what
        the rows are, so that `publish` can compare them.

        Raise RefusedRows with the first rows that do not fit (unless on_error is "quarantine"),
        or RunSuperseded when another run has taken over.
        """
        opened = self.opened
        attempt = str(uuid.uuid4()) if opened.needs_rows else ""
        space = IdSpace.of(opened.opened_at, self.submission_id, self.epoch, part)
        rows = RowEncoder(self.options, self._registered, space)
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
            rows.is_keyed,
            rows.queues,
            f"{rows.digest % DIGEST_MODULUS:032x}",
        )

    def publish(self, messages: Sequence[StagedPart]) -> SubmissionTotals:
        """Turn the staged rows of these parts into tasks, each once. If the submission is already
        published, only return its totals. Parts without any rows publish nothing, and a later run
        may give rows.

        Raise ContentDiffers when the submission is published with other rows, RunSuperseded when
        another run has taken over, KeyTaken when on_conflict is "error" and a unique key is taken,
        StageLost when staged rows are missing, and ValueError for messages of another run.
        """
        foreign = {(m.submission_id, m.epoch) for m in messages} - {self._key}
        if foreign or len({m.part for m in messages}) < len(messages):
            raise ValueError(
                "messages of another run, or two messages of one part, cannot be published:"
                f" {messages}"
            )
        with self._connected() as (app, stage):
            row = self._publish(app, stage, messages)
            with suppress(StoreUnavailable):  # a sweep deletes what is left
                stage.store.database.run(stage.drop(row.number, self.submission_id))
        return row.totals

    def abort(self) -> None:
        """End this run without publishing anything. Another run of the submission starts from the
        beginning."""
        with self._connected() as (_, stage):
            run = stage.store.database.run
            number = run(end_run(stage.sql, *self._key, SYSTEM_CLOCK.now()))
            if number is not None:
                run(stage.drop(number, self.submission_id))

    def totals(self) -> SubmissionTotals | None:
        """Return the totals of the submission, whichever run published it; None before that."""
        with self._connected() as (_, stage):
            row = stage.store.database.read_now(find(stage.sql, self.submission_id))
        return row.totals if row is not None and row.state == "committed" else None

    @property
    def _key(self) -> tuple[str, str]:
        return self.submission_id, self.epoch

    @contextmanager
    def _connected(self) -> Iterator[tuple[App, Stage]]:
        app = App(self.options.url)
        try:
            yield app, stage_of(app.sql_store, self.options.max_connections)
        finally:
            app.close()

    def _open(self, stage: Stage) -> Steps[tuple[JobRow, dict[str, int]]]:
        options = self.options
        given = (*self._key, SYSTEM_CLOCK.now(), options.publish, options.content)
        yield Statement(stage.sql["open_job"], given)
        row = yield from find(stage.sql, self.submission_id)
        assert row is not None
        row.check_content(options.content, row.declared)
        settings = yield from stage.store.queue_settings()
        return row, {queue: setting.partitions for queue, setting in settings.items()}

    def _encoded(
        self, rows: RowEncoder, batches: Iterable[pa.RecordBatch], part: int
    ) -> Iterator[tuple[pa.RecordBatch, list[Reject]]]:
        for encoded, rejects in (pair for batch in batches for pair in rows.encode(batch)):
            if rejects and self.options.on_error == "fail":
                more = len(rejects) - _MOST_SHOWN
                raise RefusedRows(
                    f"bulk submit: {len(rejects):,} bad rows among the first"
                    f" {rows.rows + rows.rejected:,} of partition {part}:"
                    f" {'; '.join(map(str, rejects[:_MOST_SHOWN]))}"
                    f"{f'; and {more:,} more' if more > 0 else ''}"
                )
            yield encoded, rejects

    def _publish(self, app: App, stage: Stage, messages: Sequence[StagedPart]) -> JobRow:
        """Return the committed job. Without any rows, return the job aborted, so that a later run
        may give rows."""
        database = stage.store.database
        queues = {q: count for m in messages if m.attempt for q, count in m.queues.items()}
        # In a transaction of its own: the settings of all queues are locked until its end.
        database.run(stage.store.registration(queues))
        row, notification = database.run(self._begin_and_advance(stage, messages))
        while True:
            if not notification.is_empty:
                app.channel.announce(notification)
            # If an earlier run began to publish the job in chunks, publish the rest in chunks too.
            if row.state != "publishing":
                return row
            self._wait_for_room(stage, row)
            most = self.options.rows_per_chunk
            row, notification = database.run(self._advance(stage, most))

    def _begin_and_advance(
        self, stage: Stage, messages: Sequence[StagedPart]
    ) -> Steps[tuple[JobRow, Notification]]:
        row = yield from self._begin(stage, messages)
        if row.publish == "atomic" and row.state == "publishing":
            return (yield from self._advance(stage, row.staged))
        return row, Notification()

    def _begin(self, stage: Stage, messages: Sequence[StagedPart]) -> Steps[JobRow]:
        """Store which parts the job publishes; a later run continues with the same parts."""
        row = yield from lock(stage.sql, *self._key)
        content = joined_content(messages)
        if row.state != "open":
            row.check_content(content if messages else None, row.content)
            return row
        if not all(message.attempt for message in messages):
            raise superseded(self.submission_id)  # the published job was deleted meanwhile
        rows, rejected = sum(m.rows for m in messages), sum(m.rejected for m in messages)
        now = SYSTEM_CLOCK.now()
        if not rows + rejected:
            yield from end_run(stage.sql, *self._key, now)
            return row._replace(state="aborted")
        ordered = sorted(messages, key=lambda message: message.part)
        parts = msgspec.json.encode(ordered).decode()
        given = (self.submission_id, parts, rows, rejected, now, content)
        yield Statement(stage.sql["begin_publishing"], given)
        if rejected:
            attempts = [(message.attempt, message.part) for message in ordered if message.rejected]
            yield from stage.publish_rejects(self.submission_id, attempts)
        return (yield from lock(stage.sql, *self._key))

    def _advance(self, stage: Stage, most: int) -> Steps[tuple[JobRow, Notification]]:
        """Publish at most the next `most` rows."""
        row = yield from lock(stage.sql, *self._key)
        if row.state == "committed":
            return row, Notification()
        first, last = row.published_through, min(row.published_through + most, row.staged)
        now = SYSTEM_CLOCK.now()
        inserted, notification = yield from stage.insert(row, row.pieces(first, last), now)
        duplicates = last - first - inserted
        if duplicates and self.options.on_conflict == "error":
            more = "more " if first else ""  # chunks of an earlier run
            raise KeyTaken(
                f"submission {self.submission_id!r}: {duplicates:,} of {last:,} rows have unique"
                f" keys that are taken, and nothing {more}was published; leave them out, or use"
                " on_conflict=ignore"
            )
        if not notification.is_empty:
            yield from stage.store.announce(notification)
        given = (self.submission_id, last, inserted, duplicates, now)
        yield Statement(stage.sql["advance"], given)
        return (yield from lock(stage.sql, *self._key)), notification

    def _wait_for_room(self, stage: Stage, row: JobRow) -> None:
        """Wait until the queues of the job have fewer runnable, unclaimed tasks than max_backlog.
        Raise RunSuperseded if another run has taken over."""
        most = self.options.max_backlog
        queues = sorted({queue for message in row.messages for queue in message.queues})

        def backlog(most: int) -> Steps[int]:
            yield from touch(stage.sql, *self._key, SYSTEM_CLOCK.now())
            return (yield from stage.store.count_ready(queues, most))

        while most is not None and stage.store.database.run(backlog(most)) >= most:
            time.sleep(BACKLOG_POLL_SECONDS)
