"""The past as a lake has it: counts, waits, shares and costs over any period.

A lake registers as an entry point of the group `fairlead.history`, because nothing below the
pipeline imports the pipeline.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import msgspec

from fairlead.model.lake_history import (
    Costs,
    Fairness,
    HistoryRows,
    Incident,
    Runs,
    Shares,
    Tenant,
    Waits,
)

GROUP = "fairlead.history"
"""Group of the entry points; each is a callable that opens a lake: its folder or URL,
and the URL of its catalog or None."""

By = Literal["queue", "tenant", "name"]
Measure = Literal["pickup", "run", "e2e", "retry_delay"]


class Extent(NamedTuple):
    """Period of which a lake has runs, in microseconds since the epoch: whole hours."""

    since: int
    until: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Period and parts about which a history is asked."""

    since: int | None = None
    """Start of the period, in microseconds since the epoch; None for that of the history. A longer
    period is cut to the hours with runs."""
    until: int | None = None
    """End of the period, in microseconds since the epoch; None for that of the history."""
    by: By = "queue"
    """Parts of runs and waits."""
    measure: Measure = "pickup"
    """Duration of which waits have percentiles."""
    queue: str | None = None
    """Queue that is read; None for all."""
    tenants: frozenset[str] | None = None
    """Tenants whose rows may be read (the first part of a fairness key path); None for all."""
    top: int = 10
    """Maximum number of parts that are named, 1 to 50; the others together are one part."""
    points: int = 200
    """Maximum number of steps, 1 to 200; 1 for the whole period."""


class LakeHistory(Protocol):
    """The past of all tenants, or of some. Safe for several threads; each call sees the newest
    build.

    Each method raises ConfigurationError for a value out of range, and BrokenLake (a FairleadError)
    for a lake that is damaged or gone.
    """

    def extent(self) -> Extent | None:
        """Return the period of which the lake has runs; None without runs."""

    def runs(self, question: Question) -> HistoryRows[Runs]:
        """Return runs, failures and worker time by queue, tenant or name; most worker time
        first."""

    def waits(self, question: Question) -> HistoryRows[Waits]:
        """Return percentiles of the waits, or of another duration, by queue, tenant or name, in
        steps of at least an hour; most runs first."""

    def shares(self, question: Question) -> HistoryRows[Shares]:
        """Return the worker time that each tenant got, and the worker time due to it; most worker
        time first."""

    def fairness(self, question: Question) -> HistoryRows[Fairness]:
        """Return the evenness of each queue, at most 10,000 rows. A reader of some tenants gets no
        rows, because the numbers are about all tenants."""

    def incidents(self, question: Question) -> HistoryRows[Incident]:
        """Return the incidents that overlap the period, the latest first, at most 500. A reader of
        some tenants gets the floods and the starvation of their keys."""

    def costs(self, question: Question) -> HistoryRows[Costs]:
        """Return the cost of each tenant in steps of at least a day (UTC); the dearest first. The
        part '*' has the bills for which no key ran anything."""

    def top_tenants(self, question: Question) -> HistoryRows[Tenant]:
        """Return the tenants with most worker time in the whole period, with their waits, shares
        and costs. The period is rounded to hours for waits, and to days for costs."""

    def close(self) -> None:
        """Close the lake."""
