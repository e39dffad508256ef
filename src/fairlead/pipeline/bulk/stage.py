"""What bulk submit needs of a store: a place where rows wait, and how they become tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from fairlead.pipeline.bulk.checks import Reject
from fairlead.pipeline.bulk.message import Opened, Piece, Published
from fairlead.ports.statements import Steps

if TYPE_CHECKING:
    import pyarrow as pa

Encoded = tuple["pa.RecordBatch", list[Reject]]


class Stage(Protocol):
    """The stage of one store. Its steps run inside the caller's transaction."""

    sql: dict[str, str]
    """Its statements; those that concern jobs are named alike everywhere."""

    def write(self, job: Opened, part: int, attempt: str, encoded: Iterable[Encoded]) -> None:
        """Put rows and rejects of an attempt in, all or nothing. Raises Superseded when another run
        has taken over."""

    def claim(self, job: int, pieces: Sequence[Piece], now: int) -> Steps[None]:
        """Claim the unique keys of these rows for them, where they are free."""

    def insert(self, job: int, submission_id: str, piece: Piece, now: int) -> Steps[Published]:
        """Make tasks of the rows whose unique keys, if any, were free, in order. Raises StageLost
        when rows are missing."""

    def publish_rejects(
        self, submission_id: str, attempts: Sequence[tuple[str, int]]
    ) -> Steps[None]:
        """The rejects of these (attempt, part) are the job's."""

    def drop(self, job: int, submission_id: str) -> Steps[None]:
        """Delete all that is staged for a job."""
