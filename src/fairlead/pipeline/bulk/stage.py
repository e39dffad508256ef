"""The stage of a bulk submit: where rows wait, and how they become tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from fairlead.pipeline.bulk.checks import Reject
from fairlead.pipeline.bulk.message import Opened, Published, StagedPiece
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Steps

if TYPE_CHECKING:
    import pyarrow as pa

Encoded = tuple["pa.RecordBatch", list[Reject]]


class Stage(Protocol):
    """Stage of one store. Its steps run inside the caller's transaction."""

    sql: dict[str, str]
    """SQL statements by name; statements about jobs have the same names in every stage."""

    def write(self, job: Opened, part: int, attempt: str, encoded: Iterable[Encoded]) -> None:
        """Write rows and rejects of an attempt of a Spark task, all or nothing. Raise RunSuperseded
        when another run has taken over."""

    def claim(self, job: int, pieces: Sequence[StagedPiece], now: int) -> Steps[None]:
        """Claim the free unique keys of these rows."""

    def insert(
        self, job: int, submission_id: str, piece: StagedPiece, now: int
    ) -> Steps[Published]:
        """Insert tasks for the rows without a taken unique key, in order. Raise StageLost when rows
        are missing."""

    def publish_rejects(
        self, submission_id: str, attempts: Sequence[tuple[str, int]]
    ) -> Steps[None]:
        """Assign the rejects of these (attempt, part) pairs to the job."""

    def drop(self, job: int, submission_id: str) -> Steps[None]:
        """Delete all staged rows of a job."""


def stage_of(store: SqlStore, max_connections: int = 4) -> Stage:
    """Return the stage of a task store. At most `max_connections` processes write to a server at
    once."""
    if store.database.dialect == "sqlite":
        from fairlead.pipeline.bulk.sqlite import SqliteStage

        return SqliteStage(store)
    from fairlead.pipeline.bulk.postgres import PostgresStage

    return PostgresStage(store, max_connections)
