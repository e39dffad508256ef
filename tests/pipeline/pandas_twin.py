"""Silver and gold computed a second time, in plain pandas and loops, from the definitions and not
from the Spark code.

Instants are whole microseconds since 1970, as Int64 where they may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from fairlead.pipeline.warehouse.table import WarehouseTable

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
FAILED = ("failed", "retried", "timed_out", "lost")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
MEASURES = ("pickup", "run", "e2e", "retry_delay")


def rows_of(table: WarehouseTable) -> pd.DataFrame:
    """Return the whole table, with instants as microseconds."""
    rows = table.load()
    for position, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(position, field.name, rows[field.name].cast(pa.int64()))
    frame = rows.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame.astype(
        {
            name: "int64"
            for name in frame
            if frame[name].dtype == "Int64" and frame[name].notna().all()
        }
    )


def sound(attempts: pd.DataFrame) -> pd.DataFrame:
    """Return the attempts whose clock did not go back, the only fault of generated attempts."""
    return attempts[~(attempts.finished_at < attempts.started_at).fillna(False)]


def runs_of(attempts: pd.DataFrame) -> pd.DataFrame:
    """Return the sound attempts that ran, with their run times."""
    ran = sound(attempts)
    ran = ran[ran.started_at.notna()]
    return ran.assign(
        started_at=ran.started_at.astype("int64"),
        run_us=(ran.finished_at - ran.started_at).astype("int64"),
    )


class Piece(NamedTuple):
    """The part of a run that falls into one minute."""

    minute: int
    queue: str
    fairness_key: str
    name: str
    weight: float
    busy_us: int
    weighted_us: float
    longest_run_us: int
    wasted_us: int
    attempts_started: int
    attempts_done: int
    failed: int


def pieces(runs: pd.DataFrame) -> pd.DataFrame:
    """Return all runs, cut at full minutes."""
    return pd.DataFrame(piece for run in runs.itertuples() for piece in _pieces(run))


def _pieces(run: Any) -> Iterator[Piece]:
    minute = run.started_at // MINUTE * MINUTE
    while minute <= run.finished_at:
        busy = min(run.finished_at, minute + MINUTE) - max(run.started_at, minute)
        ends = run.finished_at < minute + MINUTE
        yield Piece(
            minute,
            run.queue,
            run.fairness_key,
            run.name,
            run.weight,
            busy,
            busy / run.weight,
            run.run_us if busy else 0,
            0 if run.outcome == "done" else busy,
            int(run.started_at >= minute),
            int(ends and run.outcome == "done"),
            int(ends and run.outcome in FAILED),
        )
        minute += MINUTE


def service(cut: pd.DataFrame) -> pd.DataFrame:
    """Return silver.service from `pieces`."""
    sums = ["busy_us", "weighted_us", "wasted_us", "attempts_started", "attempts_done", "failed"]
    how = dict.fromkeys(sums, "sum") | dict.fromkeys(["weight", "longest_run_us"], "max")
    return cut.groupby(["minute", "queue", "fairness_key", "name"]).agg(how)


class Stays:
    """Waiting and running times of the tasks of one key of a queue."""

    def __init__(self, attempts: pd.DataFrame) -> None:
        rows = attempts[attempts.ready_at.notna()]
        ran = rows.started_at.notna().to_numpy()
        self.ready = rows.ready_at.to_numpy("int64")
        finished = rows.finished_at.to_numpy("int64")
        self.left = np.maximum(
            self.ready, np.where(ran, rows.claimed_at.fillna(0).to_numpy("int64"), finished)
        )
        started = rows.started_at.fillna(0).to_numpy("int64")
        self.start = np.where(ran, np.maximum(self.ready, started), self.ready)
        self.finish = np.where(ran, finished, self.ready)
        self.run_us = np.where(ran, finished - started, 0)

    def work_at(self, instant: int) -> int:
        """Return the worker time still needed at `instant` by tasks that were ready before."""
        left = np.maximum(0, self.finish - np.maximum(self.start, instant))
        return int(left[self.ready < instant].sum())

    def demand(self, since: int, until: int) -> int:
        """Return the worker time that the key could use in an interval."""
        arrived = (self.ready >= since) & (self.ready < until)
        return self.work_at(since) + int(self.run_us[arrived].sum())

    def waiting_in(self, second: int) -> Any:
        """Return which tasks wait in this second, on a grid of seconds."""
        return (self.ready // SECOND * SECOND <= second) & (second < self.left // SECOND * SECOND)

    def throughout(self, minute: int) -> bool:
        """Return whether a task waited in each second of the minute, whatever came before it."""
        return all(self.waiting_in(minute + n * SECOND).any() for n in range(60))


def entitlements(demand: Sequence[int], weight: Sequence[float], capacity: int) -> list[Fraction]:
    """Return exact shares by water-filling: fill all keys that fit at the present level, and repeat."""
    entitled = [Fraction(0)] * len(demand)
    left, thirsty = Fraction(min(capacity, sum(demand))), set(range(len(demand)))
    while thirsty:
        level = left / sum(Fraction(weight[i]) for i in thirsty)
        full = {i for i in thirsty if demand[i] <= level * Fraction(weight[i])}
        if not full:
            for i in thirsty:
                entitled[i] = level * Fraction(weight[i])
            break
        for i in full:
            entitled[i] = Fraction(demand[i])
            left -= demand[i]
        thirsty -= full
    return entitled


def measured(attempts: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each attempt and measure: hour, queue, name, fairness_key, measure, us."""
    rows = sound(attempts)
    took = {
        "pickup": rows.started_at - rows.ready_at,
        "run": rows.finished_at - rows.started_at,
        "e2e": (rows.finished_at - rows.submitted_at).where(rows.next_state == "DONE"),
        "retry_delay": (rows.started_at - rows.run_at).where(rows.attempt > 1),
    }
    keys = rows[["queue", "name", "fairness_key"]].assign(hour=rows.finished_at // HOUR * HOUR)
    parts = [keys.assign(measure=name, us=us)[us.notna()] for name, us in took.items()]
    return pd.concat(parts).astype({"us": "int64"})


def nearest_ranks(us: pd.Series) -> dict[str, int]:
    """Return the percentiles by nearest rank: for q, the value of rank ceil(q n)."""
    ordered = np.sort(us.to_numpy())
    return {
        name: int(ordered[ceil(round(q * len(ordered), 9)) - 1]) for name, q in QUANTILES.items()
    }


def failures(attempts: pd.DataFrame) -> pd.DataFrame:
    """Return gold.failures, with a row for each hour, queue, name and fingerprint."""
    runs = runs_of(attempts)
    runs = runs.assign(hour=runs.finished_at // HOUR * HOUR)
    found = []
    for work, all_runs in runs.groupby(["hour", "queue", "name"]):
        failed = all_runs[all_runs.outcome.isin(FAILED)]
        for error_fp, alike in failed.groupby("error_fp"):
            last = alike.finished_at.max()
            good = all_runs[
                (all_runs.outcome == "done") & (all_runs.finished_at > last)
            ].finished_at
            found.append(
                {
                    **dict(zip(("hour", "queue", "name"), work, strict=True)),
                    "error_fp": error_fp,
                    "n": len(alike),
                    "tasks": alike.task_id.nunique(),
                    "retry_amplification": len(all_runs) / all_runs.task_id.nunique(),
                    "wasted_us": alike.run_us.sum(),
                    "error_type": alike.error_type.iloc[0],
                    "error_text": alike.sort_values(["finished_at", "task_id"]).error_text.iloc[0],
                    "first_seen": alike.finished_at.min(),
                    "last_seen": last,
                    "recovered_at": good.min() if len(good) else float("nan"),
                    "storm": len(alike) >= 100 and 2 * len(alike) > len(all_runs),
                }
            )
    return pd.DataFrame(found).set_index(["hour", "queue", "name", "error_fp"])


def good_and_bad(
    attempts: pd.DataFrame, queue: str, measure: str, threshold_us: int
) -> pd.DataFrame:
    """Return (good, bad) runs of an objective in each five minutes."""
    runs = runs_of(attempts)
    runs = runs[runs.queue == queue]
    failed = runs.outcome.isin(FAILED)
    if measure == "e2e":
        kept = runs.next_state.isin(["DONE", "ERROR"])
        runs, failed = runs[kept], failed[kept]
    took = {
        "pickup": runs.started_at - runs.ready_at,
        "run": runs.run_us,
        "e2e": runs.finished_at - runs.submitted_at,
    }[measure]
    bad = failed | (took > threshold_us)
    window = runs.finished_at // (5 * MINUTE) * (5 * MINUTE)
    return pd.DataFrame({"good": (~bad).groupby(window).sum(), "bad": bad.groupby(window).sum()})
