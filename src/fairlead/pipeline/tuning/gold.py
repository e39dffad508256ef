"""Gold tables for `tune`: a row for each key and hour, read without a Spark job."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from fairlead.backends.sql.sql_file import load
from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.operate.store.policies import PolicyDraft
from fairlead.pipeline.partitions import dates_of, hours_between
from fairlead.pipeline.quality import IS_SOUND
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.tuning.canary import Measured, Wait, misallocated
from fairlead.pipeline.tuning.control import Used, declared_weight
from fairlead.pipeline.tuning.limit_control import Workers
from fairlead.pipeline.windows import HOUR, MINUTE

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

    def __init__(self, tables: Frames, now: datetime) -> None:
        self._tables = tables
        self._now = now

    def newest(self, within: float) -> datetime | None:
        """Return the end of the newest minute in the tables; None if there is none in the last
        `within` seconds."""
        [row] = self._select("newest", self._now - timedelta(seconds=within))
        start = row["start"]
        return None if start is None else to_datetime(start) + timedelta(seconds=MINUTE)

    def use(self, since: datetime, peaks: bool) -> dict[str, dict[str, KeyUse]]:
        """Return the weight and the hourly use of each key, by queue and key; with `peaks` also the
        greatest number of workers that the key had at once in an hour, and whether tasks of the key
        waited throughout a minute."""
        found: defaultdict[str, dict[str, KeyUse]] = defaultdict(dict)
        for row in self._select("use", since, queue=None, peaks=peaks):
            keys, key, weight = found[row["queue"]], row["fairness_key"], row["weight"]
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
                    row["most_us"] / MICROS / MINUTE,
                    row["waited"],
                    # With claims, `weight` is their harmonic mean.
                    strides=row["claimed"] / weight,
                    weighted=row["weighted_us"] / MICROS,
                )
            )
            keys[key] = KeyUse(weight, use)
        return found

    def workers(self, since: datetime) -> dict[str, list[Workers]]:
        """Return the busy workers of each queue, one item for each hour."""
        found: defaultdict[str, list[Workers]] = defaultdict(list)
        for row in self._select("workers", since):
            peak = row["most_us"] / MICROS / MINUTE
            hour = Workers(self._age(row["start"]), row["busy_us"] / MICROS, peak)
            found[row["queue"]].append(hour)
        return found

    def measured(self, policy: PolicyDraft, since: datetime, until: datetime) -> Measured:
        """Return the measurements of the queue of a version in these hours."""
        busy = beyond_due = kept_waiting = 0.0
        rows = self._select("use", since, until, queue=policy.queue, peaks=False)
        for _, of_hour in groupby(rows, itemgetter("start")):
            by_key = {row["fairness_key"]: row for row in of_hour}
            used = {key: row["busy_us"] / MICROS for key, row in by_key.items()}
            demand = {key: max(used[key], row["demand_us"] / MICROS) for key, row in by_key.items()}
            # The due share of a key without one is the weight of its tasks.
            due = {key: policy.due.get(key, row["weight"]) for key, row in by_key.items()}
            busy += sum(used.values())
            beyond_due += misallocated(used, demand, due)
            for key in by_key.keys() & policy.limits.keys():
                is_endless = by_key[key]["throughout"]
                kept_waiting += math.inf if is_endless else demand[key] - used[key]
        waits = self._waits(policy.queue, since, until, policy.raw)
        others = self._waits(policy.queue, since, until, policy.limits) if policy.limits else {}
        return Measured(
            {key: wait for key, wait in waits.items() if key is not None},
            beyond_due / busy if busy else None,
            busy,
            kept_waiting,
            others.get(None),
        )

    def incidents(self) -> list[tuple[str | None, str]]:
        """Return (None, name) of each objective that burns its error budget fast enough to page
        somebody, and (queue, name) of each task name with a failure storm (see gold.failures) in an
        hour that began in the last two hours, and no later success in that hour."""
        rows = self._select("incidents", self._now - _RECENT, self._now)
        return [(row["queue"], row["name"]) for row in rows]

    def _waits(
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

    def _age(self, start: int) -> float:
        """Return the seconds since the end of the hour that begins then; 0 during the hour."""
        return max(0.0, (self._now - to_datetime(start)).total_seconds() - HOUR)

    def _select(
        self, statement: str, since: datetime, until: datetime | None = None, **given: Any
    ) -> list[dict[str, Any]]:
        """Return the rows of a statement of gold.sql in this period, by default up to now."""
        first, end = to_micros(since), to_micros(until or self._now + CLOCKS_DIFFER)
        hours = hours_between(first, end)
        dates = dates_of(hours)
        return self._tables.totals(
            _STATEMENTS[statement].replace("{sound}", f"({IS_SOUND})"),
            lambda table: hours if table.by == "hour" else dates,
            {**given, "since": first, "until": end},
        )
