"""Publish staged rows: insert each as a task once, in one transaction or in chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from fairlead.app import App
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.bulk.content import joined_content
from fairlead.pipeline.bulk.jobs import JobRow, check_content, end_run, lock, superseded, touch
from fairlead.pipeline.bulk.message import KeyTaken, StagedPart, pieces
from fairlead.pipeline.bulk.options import BulkOptions
from fairlead.pipeline.bulk.stage import Stage
from fairlead.ports.notification import Notification, joined
from fairlead.ports.statements import Statement, Steps

BACKLOG_POLL_SECONDS = 1.0
"""Seconds between two reads of a backlog that is too long for the next chunk."""


class Publisher:
    """Publisher of one run of one submission. The store must be open."""

    def __init__(
        self, app: App, stage: Stage, options: BulkOptions, submission_id: str, epoch: str
    ) -> None:
        self._app = app
        self._stage = stage
        self._options = options
        self._submission_id = submission_id
        self._epoch = epoch

    def publish(self, messages: Sequence[StagedPart]) -> JobRow:
        """Publish the parts (see `BulkJob.publish`), and return the committed job. Without any
        rows, return the job aborted, so that a later run may give rows."""
        database = self._app.sql_store.database
        self._check(messages)
        staged = [message for message in messages if message.attempt]
        queues = {queue: count for message in staged for queue, count in message.queues.items()}
        # In a transaction of its own: the settings of all queues are locked until its end.
        database.run(self._app.sql_store.registration(queues))
        if self._options.publish == "atomic":
            job, notification = database.run(self._begin_and_advance(messages))
            self._app.channel.announce(notification)
        else:
            job = database.run(self._begin(messages))
        # If an earlier run began to publish the job in chunks, publish the rest in chunks as well.
        while job.state == "publishing":
            self._wait_for_room(job)
            job, notification = database.run(self._advance(self._options.rows_per_chunk))
            self._app.channel.announce(notification)
        return job

    def _begin_and_advance(
        self, messages: Sequence[StagedPart]
    ) -> Steps[tuple[JobRow, Notification]]:
        job = yield from self._begin(messages)
        return (
            (yield from self._advance(job.staged))
            if job.publish == "atomic" and job.state != "aborted"
            else (job, Notification())
        )

    def _begin(self, messages: Sequence[StagedPart]) -> Steps[JobRow]:
        """Store which parts the job publishes; a later run continues with the same parts."""
        job = yield from lock(self._stage.sql, self._submission_id, self._epoch)
        rows, rejected = sum(m.rows for m in messages), sum(m.rejected for m in messages)
        content = joined_content(messages)
        if job.state != "open":
            check_content(job, content if messages else None, job.content)
            return job
        if not all(message.attempt for message in messages):
            raise superseded(self._submission_id)  # the published job was deleted meanwhile
        if not rows + rejected:
            yield from end_run(
                self._stage.sql, self._submission_id, self._epoch, SYSTEM_CLOCK.now()
            )
            return job._replace(state="aborted")
        ordered = sorted(messages, key=lambda message: message.part)
        parts = msgspec.json.encode(ordered).decode()
        now = SYSTEM_CLOCK.now()
        yield Statement(
            self._stage.sql["begin_publishing"],
            (self._submission_id, parts, rows, rejected, now, content),
        )
        if rejected:
            attempts = [(message.attempt, message.part) for message in ordered if message.rejected]
            yield from self._stage.publish_rejects(self._submission_id, attempts)
        return (yield from lock(self._stage.sql, self._submission_id, self._epoch))

    def _check(self, messages: Sequence[StagedPart]) -> None:
        parts = [message.part for message in messages]
        foreign = {(m.submission_id, m.epoch) for m in messages} - {
            (self._submission_id, self._epoch)
        }
        if foreign or len(parts) != len(set(parts)):
            raise ValueError(
                "messages of another run, or two messages of one part, cannot be published:"
                f" {messages}"
            )

    def _advance(self, most: int) -> Steps[tuple[JobRow, Notification]]:
        """Publish at most the next `most` rows."""
        sql = self._stage.sql
        job = yield from lock(sql, self._submission_id, self._epoch)
        if job.state == "committed":
            return job, Notification()
        first, last = job.published_through, min(job.published_through + most, job.staged)
        messages, now = job.messages, SYSTEM_CLOCK.now()
        chunk = pieces(messages, first, last)
        if any(message.is_keyed for message in messages) and chunk:
            yield from self._stage.claim(job.number, chunk, now)
        published = []
        for piece in chunk:
            published.append(
                (yield from self._stage.insert(job.number, self._submission_id, piece, now))
            )
        inserted = sum(done.inserted for done in published)
        duplicates = last - first - inserted
        if duplicates and self._options.on_conflict == "error":
            more = "more " if first else ""  # chunks of an earlier run
            raise KeyTaken(
                f"submission {self._submission_id!r}: {duplicates:,} of {last:,} rows have unique"
                f" keys that are taken, and nothing {more}was published; leave them out, or use"
                " on_conflict=ignore"
            )
        notification = joined([done.notification for done in published])
        if not notification.is_empty:
            yield from self._app.sql_store.announce(notification)
        yield Statement(sql["advance"], (self._submission_id, last, inserted, duplicates, now))
        return (yield from lock(sql, self._submission_id, self._epoch)), notification

    def _wait_for_room(self, job: JobRow) -> None:
        """Wait until the queues of the job have fewer runnable, unclaimed tasks than max_backlog.
        Raise RunSuperseded if another run has taken over."""
        most = self._options.max_backlog
        queues = sorted({queue for message in job.messages for queue in message.queues})
        while (
            most is not None
            and self._app.sql_store.database.run(self._backlog(queues, most)) >= most
        ):
            time.sleep(BACKLOG_POLL_SECONDS)

    def _backlog(self, queues: Sequence[str], most: int) -> Steps[int]:
        yield from touch(self._stage.sql, self._submission_id, self._epoch, SYSTEM_CLOCK.now())
        return (yield from self._app.sql_store.count_ready(queues, most))
