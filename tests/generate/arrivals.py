"""Arrivals of generated tasks: MMPP-2 under a daily and a weekly wave, each tenant from its own
seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import pi
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from fairlead.clock import MICROS, to_micros
from tests.generate.truth import Truth

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_BATCH = 50_000
_SLICES = 16
"""Number of slices: many, because the largest tenant alone has a sixth of all tasks."""

_DAY, _WEEK = 86_400, 7 * 86_400
_MONDAY = 4 * _DAY
"""1970-01-05, in seconds since 1970."""
_HIGH_TIDES = ((_DAY, 14 * 3600), (_WEEK, 2 * _DAY + 12 * 3600))
"""Period, and time of the highest rate in it, in seconds: 14:00, and Wednesday at noon."""


class TenantArrivals(NamedTuple):
    """Arrays of one length, with an entry for each task."""

    tenant: Any
    task: Any
    submitted: Any
    burst: Any


def arrivals(spark: SparkSession, truth: Truth) -> DataFrame:
    """Return (tenant int, task bigint: its number within the tenant, submitted bigint:
    microseconds, burst boolean)."""
    # By hash, since the order of their numbers would put all large tenants into the first slice.
    tenants = spark.range(truth.tenants).repartition(_SLICES, "id")
    schema = "tenant int, task bigint, submitted bigint, burst boolean"
    return tenants.mapInArrow(partial(_of_tenants, truth), schema)


def _of_tenants(truth: Truth, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    made: list[TenantArrivals] = []
    for tenant in (tenant for batch in batches for tenant in batch["id"].to_pylist()):
        made.append(of_tenant(truth, tenant))
        if sum(len(each.task) for each in made) >= _BATCH:
            yield from _batches(made)
            made = []
    yield from _batches(made)


def _batches(made: Sequence[TenantArrivals]) -> Iterator[pa.RecordBatch]:
    import numpy as np
    import pyarrow as pa

    if made:
        rows = pa.table(
            dict(
                zip(
                    TenantArrivals._fields,
                    map(np.concatenate, zip(*made, strict=True)),
                    strict=True,
                )
            )
        )
        yield from rows.to_batches(_BATCH)


def of_tenant(truth: Truth, tenant: int) -> TenantArrivals:
    """Return the tenant's arrivals, by thinning (Lewis and Shedler 1979): candidates come at the
    highest rate of each spell, and stay with the probability that the waves give."""
    import numpy as np

    chance = np.random.default_rng([truth.seed, tenant])
    begins, ends, rates = _spells(truth, chance)
    start, highest = to_micros(truth.start) / MICROS, 1 + truth.daily + truth.weekly
    # The expected number of tasks is the tenant's share, however its bursts fall.
    level = (
        truth.tasks
        * truth.share(tenant)
        / np.sum(rates * (_tide(truth, start + ends) - _tide(truth, start + begins)))
    )
    counts = chance.poisson(level * rates * (ends - begins) * highest)
    at = (
        start
        + np.repeat(begins, counts)
        + chance.random(counts.sum()) * np.repeat(ends - begins, counts)
    )
    stays = chance.random(len(at)) * highest < _height(truth, at)
    submitted = np.round(at[stays] * MICROS).astype("int64")
    burst = np.repeat(rates > 1, counts)[stays]
    return TenantArrivals(
        np.full(len(submitted), tenant, "int32"), np.arange(len(submitted)), submitted, burst
    )


def _spells(truth: Truth, chance: np.random.Generator) -> tuple[Any, Any, Any]:
    """Return begins, ends and rates of alternating quiet spells (rate 1) and bursts, from the first
    second to the last."""
    import numpy as np

    length, cycle = truth.days * _DAY, truth.quiet_s + truth.burst_s
    spells = 2 * (int(3 * length / cycle) + 20)
    in_burst = (np.arange(spells) + int(chance.random() < truth.burst_s / cycle)) % 2 == 1
    ends = np.minimum(
        np.cumsum(chance.exponential(np.where(in_burst, truth.burst_s, truth.quiet_s))), length
    )
    begins = np.concatenate([[0.0], ends[:-1]])
    there = begins < length
    return begins[there], ends[there], np.where(in_burst, truth.burst_times, 1.0)[there]


def _height(truth: Truth, at: Any) -> Any:
    """Return the waves at instants in seconds since 1970; 1 on average."""
    import numpy as np

    parts = zip((truth.daily, truth.weekly), _HIGH_TIDES, strict=True)
    return 1 + sum(
        part * np.cos(2 * pi * (at - _MONDAY - high) / period) for part, (period, high) in parts
    )


def _tide(truth: Truth, at: Any) -> Any:
    """Return the integral of `_height`."""
    import numpy as np

    parts = zip((truth.daily, truth.weekly), _HIGH_TIDES, strict=True)
    waves = (
        part * period / (2 * pi) * np.sin(2 * pi * (at - _MONDAY - high) / period)
        for part, (period, high) in parts
    )
    return at + sum(waves)
