"""Results that a lake has about the past: rows of numbers, and the state of their tables.

Instants are microseconds since the epoch; durations (`_us`) are microseconds.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Generic, TypeVar

import msgspec

Row = TypeVar("Row")


class AsOf(msgspec.Struct, frozen=True):
    """State of the tables of a result."""

    built_at: int | None
    """Instant at which the table was last written; None if the table has not been made."""
    history_until: int | None
    """Instant up to which the tables have the history of the store; None before the first build."""


class HistoryRows(msgspec.Struct, Generic[Row], frozen=True):
    """Rows of a period in steps, by rank of their part and then by time. Steps without data have no
    row."""

    rows: list[Row]
    since: int
    """Start of the first step."""
    until: int
    """End of the last step."""
    step_s: int
    as_of: AsOf
    note: str = ""
    """Cause and cure if rows are missing; empty otherwise."""


class Part(msgspec.Struct, frozen=True):
    """One part (a queue, a tenant or a name of tasks) in one step."""

    at: int
    """Start of the step."""
    part: str | None
    """None: all parts after the top ones, together."""
    rank: int
    """1 for the part with the most; top + 1 for the rest."""


class Runs(Part, frozen=True):
    """Runs of tasks, as silver.service counts them."""

    started: int
    done: int
    failed: int
    """Runs that failed, were retried, timed out or were lost."""
    busy_us: int
    """Worker time inside the step."""
    wasted_us: int
    """Part of busy_us in runs that neither succeeded nor snoozed."""


class Waits(Part, frozen=True):
    """Durations of runs that finished in the step; percentiles are off by at most 1 %."""

    n: int
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: int


class Shares(Part, frozen=True):
    """Worker time that a tenant got, and the worker time that was due to its keys."""

    busy_us: int
    entitled_us: int
    demand_us: int
    """Worker time that the tenant could have used."""
    claimed: int
    lag_us: int
    """Greatest lag of a key of the tenant; see gold.tenant_share."""
    starved: bool
    """Whether a key of the tenant was starved in some minute."""


class Costs(Part, frozen=True):
    """Part of the bills of whole days (UTC)."""

    amount: Decimal
    busy_us: int
    wasted_us: int
    idle_us: int
    """Part of the worker time that was paid for and not used."""


class Fairness(msgspec.Struct, frozen=True):
    """Evenness of a queue's service in a step: the mean and the worst of its windows."""

    at: int
    queue: str
    jain: float | None
    """Mean of Jain's index, from 1/n to 1 (even); None with fewer than 2 backlogged keys."""
    jain_least: float | None
    keys: int
    """Greatest number of backlogged keys."""
    starved_keys: int
    lag_us: int
    lag_key: str
    noisy_score: float | None
    """Greatest ratio of a key's share of service to its share of entitlement."""
    noisy_key: str | None


class Incident(msgspec.Struct, frozen=True):
    """Period in which a queue, a key or a node had a problem. Numbers about all keys are None for a
    reader who may see some tenants only."""

    id: str
    kind: str
    queue: str
    subject: str
    start_at: int
    end_at: int
    is_over: bool
    keys_hit: int | None
    tasks_delayed: int | None
    extra_wait_us: int | None


class Tenant(msgspec.Struct, frozen=True):
    """One tenant over a whole period; None where the table has not been made or has no row."""

    tenant: str
    started: int
    failed: int
    busy_us: int
    entitled_us: int | None
    starved: bool | None
    wait_p50_us: float | None
    wait_p99_us: float | None
    amount: Decimal | None
