"""Pick-up positions: the rank of each task in its partition, and its distance from what fairness
allows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate
from statistics import median

import msgspec

from fairlead.lab.fairness import jain
from fairlead.lab.history import HistoryRun


class TenantPositions(msgspec.Struct, frozen=True):
    """Pick-up positions of one tenant."""

    tenant: str
    tasks: int
    p99: int
    """The position by which 99 % of its tasks had been picked up."""


class Positions(msgspec.Struct, frozen=True):
    """Pick-up positions of all tenants. Positions count the runs of a partition from 1; with
    several partitions they are multiplied by the number of partitions."""

    median_tenant_p99: float
    """Median over tenants of each tenant's 99th percentile. The smaller it is, the less a tenant
    waits for others."""
    heaviest_last: int
    """Position of the last task of the tenant with the most tasks."""
    jain_index: float
    """Jain's index of the share of its tasks that each tenant had received when half of all tasks
    had run. 1 is in proportion to what fair shares allow; 1/n gives everything to one tenant."""
    most_beyond_bound: int
    """Greatest number of positions by which a task was late. With everything pushed first and equal
    weights, the n-th task of a tenant is due at this position: the sum over tenants of min(tasks of
    that tenant, n)."""
    within_bound: float
    """Share of tasks that were not late."""
    tenants: list[TenantPositions]
    """Tenants, those with the most tasks first."""


def positions(runs: Iterable[HistoryRun]) -> Positions | None:
    """Return the positions of all runs that started; None if there are none."""
    partitions: dict[int, list[tuple[int, str, str]]] = defaultdict(list)
    for run in runs:
        if run.started_at is not None and run.attempt == 1:
            partitions[run.partition].append((run.started_at, run.task_id, run.fairness_key))
    if not partitions:
        return None
    ranks: dict[str, list[int]] = defaultdict(list)
    late = total = on_time = 0
    served: Counter[str] = Counter()
    entitled: Counter[str] = Counter()
    for started in partitions.values():
        started.sort()
        order = [key for _, _, key in started]
        due = _due(Counter(order))
        seen: Counter[str] = Counter()
        for rank, key in enumerate(order, 1):
            seen[key] += 1
            ranks[key].append(rank * len(partitions))
            beyond = rank - due[seen[key] - 1]
            late = max(late, beyond)
            total += 1
            on_time += beyond <= 0
        served.update(order[: len(order) // 2])
        entitled.update(_shares(Counter(order), len(order) // 2))
    tenants = [
        TenantPositions(key, len(at), sorted(at)[int(0.99 * (len(at) - 1))])
        for key, at in ranks.items()
    ]
    tenants.sort(key=lambda one: (-one.tasks, one.tenant))
    ratios = [served[key] / entitled[key] for key in entitled if entitled[key]]
    return Positions(
        median_tenant_p99=float(median(one.p99 for one in tenants)),
        heaviest_last=max(ranks[tenants[0].tenant]),
        jain_index=round(jain(ratios), 4),
        most_beyond_bound=late,
        within_bound=round(on_time / total, 4),
        tenants=tenants,
    )


def _due(tasks: Counter[str]) -> list[int]:
    """Return a list whose item n - 1 is the sum over tenants of min(tasks of that tenant, n)."""
    with_at_least = Counter(tasks.values())
    left = len(tasks)
    steps = []
    for n in range(1, max(tasks.values()) + 1):
        steps.append(left)
        left -= with_at_least[n]
    return list(accumulate(steps))


def _shares(tasks: Counter[str], served: int) -> dict[str, float]:
    """Return the share of each tenant in `served` tasks: equal for all, but at most its own tasks
    (water-filling)."""
    shares: dict[str, float] = {}
    left, tenants = float(served), len(tasks)
    for key, count in sorted(tasks.items(), key=lambda item: item[1]):
        shares[key] = min(float(count), left / tenants)
        left -= shares[key]
        tenants -= 1
    return shares
