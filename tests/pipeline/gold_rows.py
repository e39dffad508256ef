"""Gold tables in a lake, written by hand as `build` writes them, so that `tune` can be tested without
Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from fairlead.pipeline.models import ATTEMPTS, FAILURES, SLO, TENANT_SHARE
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import attempt
from tests.pipeline.tables_by_hand import put, row


class GoldRows:
    """Writer of gold rows by hour; each `write` adds a file to the lake."""

    def __init__(self, lake: Warehouse) -> None:
        self.lake = lake

    def hour(
        self,
        start: datetime,
        busy: Mapping[str, float],
        tasks: Mapping[str, int],
        queue: str = "q",
        weight: Mapping[str, float] | None = None,
        demand: float = 1e6,
        waits: Mapping[str, float] | None = None,
        peaks: Mapping[str, float] | None = None,
        throughout: Collection[str] = (),
    ) -> None:
        """Write worker-seconds and dispatches of each key in a past hour, with a demand for far more.

        `waits` has the wait of the tasks of a key in seconds; `peaks` the workers of a key in its one
        busy minute, by default all its time; `throughout` the keys with waiting tasks in the whole
        hour.
        """
        shares = []
        for window_s, at in ((3600, start), (60, start + timedelta(minutes=59))):
            for key in busy:
                share = {
                    "window_start": at,
                    "window_s": window_s,
                    "queue": queue,
                    "fairness_key": key,
                    "busy_us": round(
                        (busy[key] if peaks is None or window_s > 60 else peaks[key] * 60) * 1e6
                    ),
                    "weight": (weight or {}).get(key, 1.0),
                    "weighted_us": busy[key] * 1e6 / (weight or {}).get(key, 1.0),
                    "demand_us": round(demand * 1e6),
                    "claimed": tasks[key],
                    "throughout": key in throughout,
                }
                shares.append(share)
        self.write(TENANT_SHARE, shares)
        if waits is not None:
            runs = [
                attempt(
                    queue=queue,
                    fairness_key=key,
                    submitted_at=start,
                    started_at=start + timedelta(seconds=waits[key]),
                    finished_at=start + timedelta(minutes=59),
                )
                for key in waits
                for _ in range(tasks[key])
            ]
            put(self.lake, ATTEMPTS, runs)

    def page(self, start: datetime, state: str = "page") -> None:
        """Write the state of an objective in the five minutes from `start` on."""
        self.write(SLO, [{"window_start": start, "slo_id": "soon", "state": state}])

    def storm(self, hour: datetime, recovered_at: datetime | None = None, queue: str = "q") -> None:
        """Write that more than half of the runs of `pay` failed in an hour."""
        of = {"hour": hour, "queue": queue, "name": "pay", "storm": True}
        seen = {"first_seen": hour, "last_seen": hour, "recovered_at": recovered_at}
        self.write(FAILURES, [of | seen])

    def write(self, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        put(self.lake, table, [row(table, **dict(each)) for each in rows])
