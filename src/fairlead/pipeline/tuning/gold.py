"""Gold tables for `tune`: a row for each key and hour, read without a Spark job."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from fairlead.backends.sql.sql_file import load
from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.core.tuning.canary import Wait, misallocated
from fairlead.core.tuning.control import Used, declared_weight
from fairlead.core.tuning.limit_control import Workers
from fairlead.pipeline.definitions.windows import HOUR, MINUTE
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.parts import dates_of, hours_between

CLOCKS_DIFFER = timedelta(minutes=5)
"""Assumed greatest difference of two clocks; rows further in the future come from a wrong clock and
are ignored."""

_RECENT = timedelta(hours=2)
_STATEMENTS = load("gold.sql", __package__)


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

    def __init__(self, tables: SmallTables, now: datetime) -> None:
        self._tables = tables
        self._now = now

    def newest(self, within: timedelta) -> datetime | None:
        """Return the end of the newest minute in the tables; None if there is none in the last
        `within`."""
        [row] = self._present("newest", self._now - within)
        start = row["start"]
        return None if start is None else to_datetime(start) + timedelta(seconds=MINUTE)

    def use(self, since: datetime) -> dict[str, dict[str, KeyUse]]:
        """Return the weight and the hourly use of each key, by queue and key."""
        found: dict[str, dict[str, KeyUse]] = {}
        for row in self._present("use", since, queue=None):
            keys, key, weight = (
                found.setdefault(row["queue"], {}),
                row["fairness_key"],
                row["weight"],
            )
            use = keys[key].use if key in keys else []
            use.append(
                Used(
                    self._age(row["start"]),
                    row["busy_us"] / MICROS,
                    row["claimed"],
                    HOUR,
                    # demand_us counts only tasks that ran. A key with waiting tasks all the time
                    # could have used any number of workers.
                    math.inf if row["throughout"] else row["demand_us"] / MICROS,
                    # With claims, `weight` is their harmonic mean.
                    strides=row["claimed"] / weight,
                    weighted=row["weighted_us"] / MICROS,
                )
            )
            keys[key] = KeyUse(weight, use)
        return found

    def at_once(
        self, since: datetime, use: dict[str, dict[str, KeyUse]]
    ) -> dict[str, list[Workers]]:
        """Return the busy workers of each queue, one item for each hour.

        Add to `use`, for each key and hour, the greatest number of workers that the key had at once
        and whether tasks of the key waited throughout a minute.
        """
        workers: dict[str, list[Workers]] = {}
        for row in self._present("workers", since):
            peak = row["most_us"] / MICROS / MINUTE
            hour = Workers(self._age(row["start"]), row["busy_us"] / MICROS, peak)
            workers.setdefault(row["queue"], []).append(hour)
        peaks = {
            (row["queue"], row["fairness_key"], self._age(row["start"])): row
            for row in self._present("peaks", since)
        }
        for queue, keys in use.items():
            for name, of_key in keys.items():
                for number, used in enumerate(of_key.use):
                    found = peaks.get((queue, name, used.age))
                    peak = 0.0 if found is None else found["most_us"] / MICROS / MINUTE
                    waited = found is not None and found["waited"]
                    of_key.use[number] = used._replace(peak=peak, waited=waited)
        return workers

    def misallocated(
        self, queue: str, since: datetime, until: datetime, due: dict[str, float]
    ) -> float | None:
        """Return the fraction of the worker time in these hours that keys received beyond their due
        shares; None if there was no worker time.

        due: the due share of each key, as a weight. A key that is not in `due` has the weight of
        its tasks as its share.
        """
        busy: dict[int, dict[str, float]] = {}
        demand: dict[int, dict[str, float]] = {}
        parts: dict[int, dict[str, float]] = {}
        for row in self._select("use", since, until, queue=queue):
            start, key = row["start"], row["fairness_key"]
            busy.setdefault(start, {})[key] = float(row["busy_us"])
            demand.setdefault(start, {})[key] = float(max(row["busy_us"], row["demand_us"]))
            parts.setdefault(start, {})[key] = due.get(key, row["weight"])
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
        busy = missed = 0.0
        for row in self._select("use", since, until, queue=queue):
            busy += row["busy_us"] / MICROS
            if row["fairness_key"] in limited:
                unused = max(0.0, row["demand_us"] - row["busy_us"]) / MICROS
                missed += math.inf if row["throughout"] else unused
        return busy, missed

    def waits(
        self, queue: str, since: datetime, until: datetime, excluded: Collection[str]
    ) -> dict[str | None, Wait]:
        """Return the waits of the tasks that finished in these hours, by key and, under None, of
        all keys together, without the keys in `excluded`."""
        rows = self._select("waits", since, until, queue=queue, excluded=list(excluded))
        return {
            row["fairness_key"]: Wait(row["tasks"], row["p99_us"] / MICROS)
            for row in rows
            if row["tasks"]
        }

    def pages(self) -> list[str]:
        """Return the objectives that burn their error budget fast enough to page somebody."""
        return [row["slo_id"] for row in self._select("pages", self._now - _RECENT, self._now)]

    def storms(self) -> dict[str, list[str]]:
        """Return, by queue, the names of tasks with a failure storm (see gold.failures) in an hour
        that began in the last two hours, and no later success in that hour."""
        rows = self._select("storms", self._now - _RECENT, self._now)
        return {row["queue"]: row["names"] for row in rows}

    def _age(self, start: int) -> float:
        """Return the seconds since the end of the hour that begins then; 0 during the hour."""
        return max(0.0, (self._now - to_datetime(start)).total_seconds() - HOUR)

    def _present(self, statement: str, since: datetime, **given: Any) -> list[dict[str, Any]]:
        return self._select(statement, since, self._now + CLOCKS_DIFFER, **given)

    def _select(
        self, statement: str, since: datetime, until: datetime, **given: Any
    ) -> list[dict[str, Any]]:
        """Return the rows of a statement of gold.sql in this period."""
        first, end = to_micros(since), to_micros(until)
        hours = hours_between(first, end)
        dates = dates_of(hours)
        return self._tables.select(
            _STATEMENTS[statement],
            lambda table: hours if table.by == "hour" else dates,
            since=first,
            until=end,
            **given,
        )
