"""The stage of a bulk submit: pieces of checked tasks wait in one table, and become tasks in one
transaction."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from fairlead.app import App
from fairlead.backends.sql.sql_file import load
from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.core.ids import IdSource, id_text
from fairlead.core.sharding.partitions import partition_of
from fairlead.declare.queue import DEFAULT_PARTITIONS
from fairlead.errors import FairleadError
from fairlead.model import NewTask
from fairlead.ports.notification import Notification, joined
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Statement, Steps

DAY = 86_400 * MICROS
KEEP_STAGE = DAY
"""Microseconds for which a staged piece waits for its publishing."""
KEEP_JOB = 30 * DAY
"""Microseconds for which a submission is known, so that a repeat of it submits nothing again."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[NewTask]).decode
_ids = IdSource()


class StageLost(FairleadError):
    """Some staged tasks are missing, so the others must not be published as if they were
    complete."""


class ContentDiffers(FairleadError):
    """The submission was published with other content; nothing more was submitted."""


class StagedPart(msgspec.Struct, frozen=True):
    """Message that an attempt of a Spark task staged one part (a partition of the DataFrame)."""

    part: int
    attempt: str
    """Id of this attempt of the Spark task."""
    pieces: int


class SubmissionTotals(msgspec.Struct, frozen=True):
    """Totals of the tasks of a submission."""

    submission_id: str
    inserted: int = 0
    duplicate: int = 0
    """Number of rows without a task, because their unique keys were taken."""
    is_repeat: bool = False
    """Whether the submission was published before, so that this run submitted nothing."""


class BulkStore:
    """The stage and the submissions of one task store."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._store = app.sql_store
        self._sql = statements(self._store)

    def stage(self, part: int, pieces: Iterable[Sequence[NewTask]]) -> StagedPart:
        """Stage the tasks of one part under the id of a new attempt. They count only when `publish`
        gets the message that this returns."""
        attempt, count = str(uuid.uuid4()), 0
        for count, tasks in enumerate(pieces, 1):
            given = (attempt, count, SYSTEM_CLOCK.now(), _encode(tasks))
            self._store.database.run(self._steps("stage", *given))
        return StagedPart(part, attempt, count)

    def totals(self, submission_id: str, content: str | None = None) -> SubmissionTotals | None:
        """Return the totals of a published submission, None before. Raise ContentDiffers if it was
        published with another `content`."""
        return self._store.database.read_now(self._published(submission_id, content))

    def publish(
        self, submission_id: str, parts: Sequence[StagedPart], content: str | None = None
    ) -> SubmissionTotals:
        """Turn the staged tasks of these parts into tasks, in order, all or none. If the submission
        is already published, only return its totals. Parts without any row publish nothing, and a
        later run may give rows. Raise ContentDiffers, or StageLost when staged tasks are
        missing."""
        database = self._store.database
        ordered = sorted(parts, key=lambda part: part.part)
        first = next((part for part in ordered if part.pieces), None)
        if first is None:
            return self.totals(submission_id, content) or SubmissionTotals(submission_id)
        queue = database.read_now(self._piece(first, 1))[0].queue
        # In a transaction of its own: the settings of all queues are locked until its end.
        settings = database.run(self._store.registration({queue: DEFAULT_PARTITIONS}))
        partitions = settings[queue].partitions
        totals, notification = database.run(
            self._publishing(submission_id, ordered, partitions, content)
        )
        if not notification.is_empty:
            self._app.channel.announce(notification)
        return totals

    def drop(self, parts: Iterable[StagedPart]) -> None:
        """Delete the staged tasks of these parts."""
        for part in parts:
            self._store.database.run(self._steps("drop_attempt", part.attempt))

    def _publishing(
        self, submission_id: str, parts: Sequence[StagedPart], partitions: int, content: str | None
    ) -> Steps[tuple[SubmissionTotals, Notification]]:
        if not self._store.database.has_one_writer:
            yield from self._steps("one_publisher")
        totals = yield from self._published(submission_id, content)
        notifications: list[Notification] = []
        if totals is None:
            inserted = duplicate = 0
            for part in parts:
                for number in range(1, part.pieces + 1):
                    staged = yield from self._piece(part, number)
                    tasks = _submitted_now(staged, partitions)
                    submitted, notification = yield from self._store.submission(tasks)
                    notifications += [] if notification is None else [notification]
                    inserted += sum(each.is_new for each in submitted)
                    duplicate += sum(not each.is_new for each in submitted)
            now = SYSTEM_CLOCK.now()
            yield from self._steps("insert_job", submission_id, content, inserted, duplicate, now)
            totals = SubmissionTotals(submission_id, inserted, duplicate)
        for part in parts:
            yield from self._steps("drop_attempt", part.attempt)
        return totals, joined(notifications)

    def _piece(self, part: StagedPart, number: int) -> Steps[list[NewTask]]:
        rows = yield Statement(self._sql["staged"], (part.attempt, number))
        if not rows:
            raise StageLost(
                f"piece {number} of partition {part.part} is no longer in the stage, which keeps it"
                " for a day, and nothing was submitted; repeat the submission"
            )
        return _decode(rows[0][0])

    def _published(self, submission_id: str, content: str | None) -> Steps[SubmissionTotals | None]:
        rows = yield Statement(self._sql["job"], (submission_id,))
        if not rows:
            return None
        known, inserted, duplicate = rows[0]
        if None not in (known, content) and known != content:
            raise ContentDiffers(
                f"submission {submission_id!r} was published with other content, and nothing more"
                " was submitted; give new rows a submission_id of their own"
            )
        return SubmissionTotals(submission_id, inserted, duplicate, is_repeat=True)

    def _steps(self, name: str, *params: object) -> Steps[None]:
        yield Statement(self._sql[name], params)


@contextmanager
def opened(url: str) -> Iterator[BulkStore]:
    """Open the stage of the task store at this URL."""
    app = App(url)
    try:
        yield BulkStore(app)
    finally:
        app.close()


def statements(store: SqlStore) -> dict[str, str]:
    """Return the statements of bulk submit in the dialect of the store."""
    sql = load("bulk.sql", __package__)
    if store.database.dialect == "sqlite":
        return {name: re.sub(r"\$(\d)", r"?\1", text) for name, text in sql.items()}
    return sql


def sweep(store: SqlStore, now: int) -> Steps[None]:
    """Delete what abandoned submissions left in the stage, and submissions older than KEEP_JOB.
    `now` in microseconds."""
    sql = statements(store)
    yield Statement(sql["sweep_stage"], (now - KEEP_STAGE,))
    yield Statement(sql["sweep_jobs"], (now - KEEP_JOB,))


def _submitted_now(tasks: Sequence[NewTask], partitions: int) -> list[NewTask]:
    """Return the staged tasks as submitted now, with ascending ids."""
    now = SYSTEM_CLOCK.now()
    return [
        msgspec.structs.replace(
            task,
            id=id_text(id),
            partition=partition_of(task.ordering_key, id, partitions),
            run_at=now if task.run_at == task.submitted_at else task.run_at,
            submitted_at=now,
            unique_until=None
            if task.unique_until is None
            else now + task.unique_until - task.submitted_at,
        )
        for id, task in zip(_ids.block(len(tasks), now), tasks, strict=True)
    ]
