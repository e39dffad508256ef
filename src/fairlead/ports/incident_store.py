"""The incident store: keeps each incident until it has been delivered and is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fairlead.model import Incident, IncidentKind, IncidentReport
from fairlead.ports.statements import Steps

IncidentCounts = dict[tuple[str, str, str], int]
"""Number of open incidents by (kind, queue, name of the task)."""


class IncidentStore(Protocol):
    """Store of incidents. The task store itself records `error`, in the transaction that moves a
    task to ERROR or at the latest with the next `sweep`; the parts of nodes report the other kinds.
    Instants are in microseconds since the epoch. All methods raise StoreUnavailable."""

    async def report(self, reports: Sequence[IncidentReport], now: int) -> None:
        """Record the incidents, to be delivered from `now` on. A report of an incident that the
        store has (same kind, subject and version) only renews its time and its details; one within
        20 seconds of the report before may leave them. After INCIDENT_ENDS seconds without a
        report, the incident begins anew at the `since` of the next one."""

    async def claim(self, now: int, until: int, limit: int) -> list[Incident]:
        """Return at most `limit` incidents that are due for delivery, ascending by id, and hide
        them from other claims before `until`. Leave out and drop each `error` whose task has left
        ERROR."""

    async def delivered(self, ids: Sequence[int], now: int) -> None:
        """Record that these incidents were delivered; no claim returns them again."""

    async def retry(self, retries: Sequence[tuple[int, int]]) -> None:
        """Make undelivered incidents due again: pairs of (id, instant)."""

    async def sweep(self, after: int, now: int, limit: int) -> int:
        """Check the `limit` incidents with the lowest ids above `after`, and drop those that are
        over. Return the highest id checked, or 0 at the end.

        An `error` is over when its task has left ERROR; any other delivered kind, an hour after
        its last report."""

    async def counts(self, since: int = 0) -> IncidentCounts:
        """Return the numbers of open incidents, delivered or not: those of the kind `error`, and
        others last reported at `since` or later."""

    def latest(self, below: int | None, limit: int, since: int = 0) -> Steps[list[Incident]]:
        """Return incidents without their tasks, delivered or not, descending by id, for people:
        at most `limit` whose ids are below `below`; None is no bound. Those of the kind `error`,
        and others last reported at `since` or later."""

    def undelivered(self, limit: int) -> Steps[list[Incident]]:
        """Return undelivered incidents without their tasks, ascending by id, for people. If there
        are more than `limit`, return any of them."""

    def open(
        self, kinds: Sequence[IncidentKind], limit: int, since: int = 0
    ) -> Steps[list[Incident]]:
        """Return open incidents of these kinds without their tasks, delivered or not, last reported
        at `since` or later, the latest first, at most `limit`, for people. Reads at most `limit`
        incidents of each kind."""
