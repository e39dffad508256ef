"""The stage of bulk submit on PostgreSQL: COPY rows into a table, and insert tasks from that table
inside the server."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterable, Sequence

from fairlead.backends.postgres.copy_format import HEADER, TRAILER
from fairlead.backends.sql.sql_file import load
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import FairleadError
from fairlead.pipeline.bulk.binary_rows import binary_rows
from fairlead.pipeline.bulk.columns import staged
from fairlead.pipeline.bulk.jobs import touch
from fairlead.pipeline.bulk.message import Opened, Published, StagedPiece, StageLost
from fairlead.pipeline.bulk.stage import Encoded
from fairlead.ports.notification import Lane, Notification
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Copy, Many, Statement, Steps

# "fair" in ASCII: class of the advisory locks that limit how many processes stage at once
_SLOTS = 0x66616972
FIRST_PAUSE, LAST_PAUSE = 0.05, 2.0
"""Shortest and longest pause between two tries to get a slot, in seconds; each try doubles it."""


class PostgresStage:
    """A `fairlead.pipeline.bulk.stage.Stage` on PostgreSQL."""

    def __init__(self, store: SqlStore, slots: int) -> None:
        self._store = store
        self._slots = slots
        self.sql = load("postgres.sql", __package__)

    def write(self, job: Opened, part: int, attempt: str, encoded: Iterable[Encoded]) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                return self._store.database.run(self._write(job, part, attempt, encoded))
            except _NoSlot:
                # Close the connection while waiting: the slots limit the number of connections.
                self._store.database.close()
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, LAST_PAUSE)

    def _write(
        self, job: Opened, part: int, attempt: str, encoded: Iterable[Encoded]
    ) -> Steps[None]:
        if not (yield Statement(self.sql["take_slot"], (_SLOTS, self._slots))):
            raise _NoSlot
        columns = ("job", "attempt", *staged().names)
        for batch, rejects in encoded:
            if batch.num_rows:
                rows = binary_rows(batch, job.number, uuid.UUID(attempt).bytes)
                yield Copy("fairlead_bulk_stage", columns, [HEADER, rows, TRAILER])
            if rejects:
                rejected = [(job.submission_id, attempt, part, *reject) for reject in rejects]
                yield Many(self.sql["insert_reject"], rejected)
        # Touch the job last, because this locks its row until the commit.
        yield from touch(self.sql, job.submission_id, job.epoch, SYSTEM_CLOCK.now())

    def claim(self, job: int, pieces: Sequence[StagedPiece], now: int) -> Steps[None]:
        attempts, firsts, lasts = (list(column) for column in zip(*pieces, strict=True))
        yield Statement(self.sql["claim_keys"], (job, attempts, firsts, lasts, now))

    def insert(
        self, job: int, submission_id: str, piece: StagedPiece, now: int
    ) -> Steps[Published]:
        rows = yield Statement(self.sql["insert_piece"], (job, *piece, now))
        inserted = sum(row[5] for row in rows)
        if inserted < piece.last - piece.first:
            found = (yield Statement(self.sql["count_piece"], (job, *piece)))[0][0]
            if found < piece.last - piece.first:
                raise StageLost(
                    f"submission {submission_id!r}: of {piece.last - piece.first} staged rows"
                    f" {found} are left"
                )
        due = min((row[4] for row in rows if row[4] is not None), default=None)
        return Published(
            inserted,
            Notification(ready=[Lane(*row[:4]) for row in rows if row[3] is not None], due=due),
        )

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
