"""Gold tables for `tune`: a row for each key and hour, in memory, read without a Spark job."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.clock import to_micros
from fairlead.core.tuning.canary import Wait, misallocated
from fairlead.core.tuning.control import Used, declared_weight
from fairlead.core.tuning.limit_control import Workers
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.latency import GROWTH, LATENCY_HIST
from fairlead.pipeline.definitions.slo import SLO
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.definitions.windows import ALL, HOUR, MINUTE
from fairlead.pipeline.parts import dates_of, hours_between
from fairlead.pipeline.schema import Table

CLOCKS_DIFFER = timedelta(minutes=5)
"""Assumed greatest difference of two clocks; rows further in the future come from a wrong clock and
are ignored."""

_RECENT = timedelta(hours=2)
_MICROS = 1e6

Load = Callable[[Table, Collection[str], list[str]], "pa.Table"]
"""Function that returns rows of a table: only these dates, only these columns."""


class KeyUse(NamedTuple):
    """Weight and use of a key of a queue."""

    weight: float
    """Weight of the key in the latest hour; see gold.tenant_share."""
    use: list[Used]

    def declared(self, half_life: float) -> float:
        """Return the weight that the tasks of the key were submitted with."""
        return declared_weight(self.use, half_life) or self.weight


class Gold:
    """Gold tables up to `now`, an aware instant."""

    def __init__(self, load: Load, now: datetime) -> None:
        self._load = load
        self._now = now

    def newest(self, within: timedelta) -> datetime | None:
        """Return the end of the newest minute in the tables; None if there is none in the last
        `within`."""
        rows = self._shares(self._now - within, self._now + CLOCKS_DIFFER, MINUTE, ["window_start"])
        starts = rows["window_start"].to_pylist()
        return max(starts) + timedelta(seconds=MINUTE) if starts else None

    def use(self, since: datetime) -> dict[str, dict[str, KeyUse]]:
        """Return the weight and the hourly use of each key, by queue and key."""
        found: dict[str, dict[str, KeyUse]] = {}
        columns = [
            "window_start",
            "queue",
            "fairness_key",
            "weight",
            "busy_us",
            "weighted_us",
            "claimed",
            "demand_us",
            "throughout",
        ]
        rows = self._shares(since, self._now + CLOCKS_DIFFER, HOUR, columns).sort_by("window_start")
        for (
            start,
            queue,
            key,
            weight,
            busy_us,
            weighted_us,
            claimed,
            demand_us,
            throughout,
        ) in _tuples(rows, columns):
            known = found.setdefault(queue, {}).get(key)
            use = [] if known is None else known.use
            # demand_us counts only tasks that ran. A key with waiting tasks all the time could have
            # used any number of workers.
            asked = math.inf if throughout else demand_us / _MICROS
            # Rows of an earlier release have no weighted_us.
            weighted = (weighted_us or busy_us / weight) / _MICROS
            use.append(
                Used(
                    self._age(start),
                    busy_us / _MICROS,
                    claimed,
                    HOUR,
                    asked,
                    # With claims, `weight` is their harmonic mean.
                    strides=claimed / weight,
                    weighted=weighted,
                )
            )
            found[queue][key] = KeyUse(weight, use)
        return found

    def at_once(
        self, since: datetime, use: dict[str, dict[str, KeyUse]]
    ) -> dict[str, list[Workers]]:
        """Return the busy workers of each queue, one item for each hour.

        Add to `use`, for each key and hour, the greatest number of workers that the key had at once
        and whether tasks of the key waited throughout a minute.
        """
        columns = ["window_start", "queue", "fairness_key", "busy_us", "throughout"]
        rows = self._shares(since, self._now + CLOCKS_DIFFER, MINUTE, columns)
        rows = rows.append_column("hour", pc.floor_temporal(rows["window_start"], unit="hour"))
        sums = rows.group_by(["hour", "queue", "window_start"]).aggregate([("busy_us", "sum")])
        hours = sums.group_by(["hour", "queue"]).aggregate(
            [("busy_us_sum", "sum"), ("busy_us_sum", "max")]
        )
        workers: dict[str, list[Workers]] = {}
        for start, queue, busy_us, most_us in _tuples(
            hours.sort_by("hour"), ["hour", "queue", "busy_us_sum_sum", "busy_us_sum_max"]
        ):
            workers.setdefault(queue, []).append(
                Workers(self._age(start), busy_us / _MICROS, most_us / _MICROS / MINUTE)
            )
        of_keys = rows.group_by(["hour", "queue", "fairness_key"]).aggregate(
            [("busy_us", "max"), ("throughout", "max")]
        )
        found = {
            (queue, key, self._age(start)): (busy_us / _MICROS / MINUTE, waited)
            for start, queue, key, busy_us, waited in _tuples(
                of_keys, ["hour", "queue", "fairness_key", "busy_us_max", "throughout_max"]
            )
        }
        for queue, keys in use.items():
            for name, of_key in keys.items():
                for number, used in enumerate(of_key.use):
                    peak, waited = found.get((queue, name, used.age), (0.0, False))
                    of_key.use[number] = used._replace(peak=peak, waited=waited)
        return workers

    def _age(self, hour: datetime) -> float:
        """Return the seconds since the end of this hour; 0 during the hour."""
        return max(0.0, (self._now - hour).total_seconds() - HOUR)

    def misallocated(
        self, queue: str, since: datetime, until: datetime, due: dict[str, float]
    ) -> float | None:
        """Return the fraction of the worker time in these hours that keys received beyond their due
        shares; None if there was no worker time.

        due: the due share of each key, as a weight. A key that is not in `due` has the weight of
        its tasks as its share.
        """
        columns = ["window_start", "queue", "fairness_key", "weight", "busy_us", "demand_us"]
        busy: dict[datetime, dict[str, float]] = {}
        demand: dict[datetime, dict[str, float]] = {}
        parts: dict[datetime, dict[str, float]] = {}
        for start, of, key, weight, busy_us, demand_us in _tuples(
            self._shares(since, until, HOUR, columns), columns
        ):
            if of == queue:
                busy.setdefault(start, {})[key] = float(busy_us)
                demand.setdefault(start, {})[key] = float(max(busy_us, demand_us))
                parts.setdefault(start, {})[key] = due.get(key, weight)
        total = sum(sum(of_hour.values()) for of_hour in busy.values())
        if not total:
            return None
        return sum(misallocated(busy[hour], demand[hour], parts[hour]) for hour in busy) / total

    def kept_waiting(
        self, queue: str, since: datetime, until: datetime, limited: Collection[str]
    ) -> tuple[float, float]:
        """Return two numbers of worker-seconds in these hours: the use of the whole queue, and the
        use that the keys in `limited` could have had in addition, which is infinite if one of them
        had tasks waiting all the time."""
        columns = ["queue", "fairness_key", "busy_us", "demand_us", "throughout"]
        busy = missed = 0.0
        for of, key, busy_us, demand_us, throughout in _tuples(
            self._shares(since, until, HOUR, columns), columns
        ):
            if of == queue:
                busy += busy_us / _MICROS
                if key in limited:
                    missed += math.inf if throughout else max(0.0, demand_us - busy_us) / _MICROS
        return busy, missed

    def waits(
        self, queue: str, since: datetime, until: datetime, excluded: Collection[str]
    ) -> dict[str, Wait]:
        """Return the waits of the tasks that finished in these hours, by key, without the keys in
        `excluded`."""
        buckets: dict[str, list[tuple[int, int]]] = {}
        for key, bucket, n in self._pickups(queue, since, until, excluded):
            buckets.setdefault(key, []).append((bucket, n))
        return {key: _wait(of_key) for key, of_key in buckets.items()}

    def wait(
        self, queue: str, since: datetime, until: datetime, excluded: Collection[str]
    ) -> Wait | None:
        """Return the wait over all keys except those in `excluded`; None if no task finished."""
        counts: dict[int, int] = {}
        for _, bucket, n in self._pickups(queue, since, until, excluded):
            counts[bucket] = counts.get(bucket, 0) + n
        return _wait(sorted(counts.items())) if counts else None

    def _pickups(
        self, queue: str, since: datetime, until: datetime, excluded: Collection[str]
    ) -> Iterator[tuple[str, int, int]]:
        """Yield (key, bucket, count), ascending by bucket."""
        columns = ["hour", "queue", "fairness_key", "measure", "bucket", "n"]
        rows = self._load(LATENCY_HIST, _dates(since, until), columns)
        wanted = pc.and_(pc.equal(rows["queue"], queue), pc.equal(rows["measure"], "pickup"))
        rows = _between(rows.filter(wanted), "hour", since, until)
        counts = (
            rows.group_by(["fairness_key", "bucket"]).aggregate([("n", "sum")]).sort_by("bucket")
        )
        for key, bucket, n in _tuples(counts, ["fairness_key", "bucket", "n_sum"]):
            if key != ALL and key not in excluded:
                yield key, bucket, n

    def pages(self) -> list[str]:
        """Return the objectives that burn their error budget fast enough to page somebody."""
        columns = ["window_start", "slo_id", "state"]
        rows = self._load(SLO, _dates(self._now - _RECENT, self._now), columns)
        rows = _between(rows, "window_start", self._now - _RECENT, self._now).sort_by(
            "window_start"
        )
        newest = {slo_id: state for _, slo_id, state in _tuples(rows, columns)}
        return sorted(slo_id for slo_id, state in newest.items() if state == "page")

    def storms(self) -> dict[str, list[str]]:
        """Return, by queue, the names of tasks with a failure storm (see gold.failures) in an hour
        that began in the last two hours, and no later success in that hour."""
        columns = ["hour", "queue", "name", "recovered_at", "storm"]
        rows = self._load(FAILURES, _dates(self._now - _RECENT, self._now), columns)
        found: dict[str, list[str]] = {}
        for _, queue, name, recovered_at, storm in _tuples(
            _between(rows, "hour", self._now - _RECENT, self._now), columns
        ):
            if storm and recovered_at is None and name not in found.setdefault(queue, []):
                found[queue].append(name)
        return {queue: names for queue, names in found.items() if names}

    def _shares(
        self, since: datetime, until: datetime, window_s: int, columns: list[str]
    ) -> pa.Table:
        wanted = ["window_s", *columns, *({"window_start"} - set(columns))]
        rows = self._load(TENANT_SHARE, _dates(since, until), wanted)
        return _between(
            rows.filter(pc.equal(rows["window_s"], window_s)), "window_start", since, until
        )


def _wait(buckets: list[tuple[int, int]]) -> Wait:
    """Return the wait from (bucket, count) pairs, ascending. The p99 is computed as in the report:
    nearest rank, middle of the bucket."""
    total, counted = sum(n for _, n in buckets), 0
    for bucket, n in buckets:
        counted += n
        if counted * 100 >= total * 99:
            return Wait(total, 2 * GROWTH**bucket / (GROWTH + 1) / _MICROS)
    raise AssertionError("a key without a bucket")


def _dates(since: datetime, until: datetime) -> list[str]:
    return dates_of(hours_between(to_micros(since), to_micros(until)))


def _between(rows: pa.Table, column: str, since: datetime, until: datetime) -> pa.Table:
    kind = pa.timestamp("us", tz="UTC")
    low, high = pa.scalar(since, kind), pa.scalar(until, kind)
    return rows.filter(pc.and_(pc.greater_equal(rows[column], low), pc.less(rows[column], high)))


def _tuples(rows: pa.Table, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows[column].to_pylist() for column in columns), strict=True)
