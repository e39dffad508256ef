"""Batched reads of the history of a store, and checks whether tasks are still unfinished."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Row, Statement, Steps

_BATCH = 10_000

# In the order of the index on (task_id, attempt), which is the same in both stores and gives no row
# twice.
_ATTEMPTS = {
    "sqlite": (
        """SELECT task_id, attempt, fairness_key, outcome, next_state, ready_at,
        started_at, finished_at FROM fairlead_attempts
        WHERE (task_id, attempt) > (?1, ?2) ORDER BY task_id, attempt LIMIT ?3"""
    ),
    "postgres": (
        """SELECT task_id::text, attempt, fairness_key, outcome, next_state, ready_at,
        started_at, finished_at FROM fairlead_attempts
        WHERE (task_id, attempt) > ($1::uuid, $2::integer) ORDER BY task_id, attempt LIMIT $3"""
    ),
}
_BEFORE_ALL = "00000000-0000-0000-0000-000000000000"
_UNFINISHED = "SELECT 1 FROM fairlead_tasks WHERE state <> 'ERROR' LIMIT 1"
_COUNTS = "SELECT outcome, next_state, count(*) FROM fairlead_attempts GROUP BY outcome, next_state"


class HistoryRun(NamedTuple):
    """One row of the history. Times are microseconds since the epoch."""

    task_id: str
    attempt: int
    fairness_key: str
    outcome: str
    next_state: str
    ready_at: int | None
    started_at: int | None
    finished_at: int

    @property
    def pickup_delay(self) -> int | None:
        """Microseconds from the time the run was due to its start; None if it did not start."""
        return (
            None
            if self.ready_at is None or self.started_at is None
            else max(0, self.started_at - self.ready_at)
        )


class PickupDelays:
    """Exact pick-up delays in microseconds, of eight bytes each."""

    def __init__(self) -> None:
        self._micros = array("q")

    def add(self, micros: int) -> None:
        """Add one delay."""
        self._micros.append(micros)

    def percentiles_ms(self, *shares: float) -> list[float | None]:
        """Return nearest-rank percentiles in milliseconds; None for each if there is no delay."""
        ordered = sorted(self._micros)
        if not ordered:
            return [None] * len(shares)
        return [ordered[max(0, ceil(share * len(ordered)) - 1)] / 1000 for share in shares]


def runs(store: SqlStore) -> Iterator[HistoryRun]:
    """Return every row of the history, in the order of submission."""
    task_id, attempt = _BEFORE_ALL, 0
    while rows := store.database.run(
        _rows(_ATTEMPTS[store.database.dialect], task_id, attempt, _BATCH)
    ):
        for row in rows:
            run = HistoryRun(*row)
            yield run
        task_id, attempt = run.task_id, run.attempt


def counts(store: SqlStore) -> dict[tuple[str, str], int]:
    """Return the number of ended attempts, by (outcome, next state)."""
    return {
        (outcome, next_state): count
        for outcome, next_state, count in store.database.run(_rows(_COUNTS))
    }


def has_unfinished(store: SqlStore) -> bool:
    """Return whether a task waits, may run or runs. A task in ERROR waits for a person, not for a
    worker."""
    return bool(store.database.run(_rows(_UNFINISHED)))


def _rows(sql: str, *params: object) -> Steps[list[Row]]:
    return list((yield Statement(sql, params)))
