"""Findings: a number and a short note each, about the data of the report and about what stands out
in it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import NamedTuple

import pandas as pd

from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.pipeline.bronze import ATTEMPTS, QUARANTINE
from fairlead.pipeline.report.cost import is_billed, parts_of_whole
from fairlead.pipeline.report.data import STATES, ReportData
from fairlead.pipeline.report.numbers import (
    amount,
    count,
    duration,
    instant,
    percent,
    ratio,
    shortened,
    work,
)

OK, LOOK, BAD = "ok", "look", "bad"
EVEN = 0.9
"""Least Jain's index at which the report calls a queue even."""
_OLD_US = 86_400 * MICROS
"""Microseconds without a finished attempt after which the report warns."""
_QUEUE, _NAME = 20, 30
"""Longest names of queues, and of keys, tasks and objectives, in characters."""


class Tile(NamedTuple):
    """A tile of the page, with one finding. `state` is ok, look (worth a look) or bad; `section` is
    the anchor with more details."""

    title: str
    value: str
    note: str
    state: str
    section: str = ""


def trust(data: ReportData) -> list[Tile]:
    """Return one finding for each check of the data."""
    return [_fresh(data), _exported(data), _built(data), _sound(data), _jobs(data)]


def _fresh(data: ReportData) -> Tile:
    title, newest = "Newest attempt", _of_table(data, ATTEMPTS.name)["newest"]
    if pd.isna(newest):
        cure = "`fairlead pipeline ingest` brings attempts into the lake"
        return Tile(title, "none", cure, LOOK)
    age = data.made_at - to_micros(newest.replace(tzinfo=UTC))
    note = f"before this report: {instant(newest)}"
    return Tile(title, duration(age), note, LOOK if age > _OLD_US else OK)


def _exported(data: ReportData) -> Tile:
    title, behind = "Not yet exported", data.unexported
    if behind is None:
        return Tile(title, "not known", "the store was not asked", OK)
    if behind:
        return Tile(title, count(behind), "finished attempts that are not in the lake", LOOK)
    return Tile(title, count(behind), "every finished attempt is in the lake", OK)


def _built(data: ReportData) -> Tile:
    title = "Tables built"
    if not data.built_until:
        state = BAD if data.exported_until else LOOK
        return Tile(title, "never", "`fairlead pipeline build` builds them", state)
    until = f"with all rows exported until {instant(to_datetime(data.built_until))}"
    if data.exported_until > data.built_until:
        return Tile(title, "behind", f"{until}; more was exported since", LOOK)
    return Tile(title, "up to date", until, OK)


def _sound(data: ReportData) -> Tile:
    bad, attempts = (_of_table(data, table.name)["rows"] for table in (QUARANTINE, ATTEMPTS))
    if not attempts:
        note = "no attempts yet"
    elif bad:
        note = f"{percent(bad / attempts)} of the attempts are not valid"
    else:
        note = "every attempt is valid"
    return Tile("In quarantine", count(bad), note, LOOK if bad else OK)


def _jobs(data: ReportData) -> Tile:
    runs = data.runs
    failed = runs[(runs["state"] == "failed") | (runs["failed_checks"] != "")]
    if len(failed):
        return Tile("Jobs", "failed", ", ".join(failed["job"]), BAD)
    if not len(runs):
        return Tile("Jobs", "none", "no job has run yet", LOOK)
    return Tile("Jobs", "done", f"{count(runs['checks'].sum())} checks hold", OK)


def _of_table(data: ReportData, name: str) -> pd.Series:
    return data.freshness.set_index("table").loc[name]


def standing_out(data: ReportData) -> Iterator[Tile]:
    """Yield the findings; tables without rows have none."""
    if len(data.queues):
        yield from _of_runs(data)
    if len(data.names):
        worst = data.names.iloc[0]
        name, queue = shortened(worst["name"], _NAME), shortened(worst["queue"], _QUEUE)
        note = f"99 % of {name} in {queue} started within this time"
        yield Tile("Slowest pickup", duration(worst["p99"]), note, OK, "pickup")
    if len(data.fairness_by_queue):
        yield from _of_fairness(data.fairness_by_queue)
    if len(data.objectives):
        states, least = data.objectives["state"].value_counts(), data.objectives.iloc[0]
        worst = BAD if "page" in states else LOOK if "ticket" in states else OK
        left = least["budget_left"]
        budget = f"{percent(left)} of its budget left"
        if left < 0:
            budget = f"budget overspent by {percent(-left)}"
        counts = ", ".join(f"{states[each]} {each}" for each in STATES[::-1] if each in states)
        note = f"{shortened(least['slo_id'], _NAME)}: {budget}"
        yield Tile("Objectives", counts, note, worst, "objectives")
    if len(data.cost) and is_billed(data.cost):
        key = shortened(data.cost.iloc[0]["fairness_key"], _NAME)
        note = f"{percent(parts_of_whole(data.cost).iloc[0])} for {key}"
        yield Tile("Cost", amount(data.cost["amount"].sum()), note, OK, "cost")


def _of_runs(data: ReportData) -> Iterator[Tile]:
    total = data.queues[["started", "failed", "busy_us", "wasted_us"]].sum()
    workers = ratio(total["busy_us"] / data.period.length_us)
    note = f"{workers} workers busy on average; queues: {len(data.queues)}"
    yield Tile("Worker time", work(total["busy_us"]), note, OK, "load")
    failed = percent(total["failed"] / max(total["started"], 1))
    wasted = percent(total["wasted_us"] / max(total["busy_us"], 1))
    storms, state = ("; there were storms", LOOK) if len(data.storms) else ("", OK)
    note = f"{failed} failed; {wasted} of the worker time wasted{storms}"
    yield Tile("Runs", count(total["started"]), note, state, "failures")


def _of_fairness(queues: pd.DataFrame) -> Iterator[Tile]:
    judged = queues.dropna(subset=["jain_median"])
    if len(judged):
        worst = judged.loc[judged["jain_median"].idxmin()]
        queue, jain = shortened(worst["queue"], _QUEUE), worst["jain_median"]
        note = f"median Jain index of {queue}, the least even queue; 1 is even"
        yield Tile("Evenness", ratio(jain), note, OK if jain >= EVEN else LOOK, "fairness")
    worst = queues.loc[queues["starved_keys"].idxmax()]
    if worst["starved_keys"]:
        note, state = f"in the worst window, in {shortened(worst['queue'], _QUEUE)}", BAD
    else:
        note, state = "none waited long without being served", OK
    yield Tile("Starved keys", count(worst["starved_keys"]), note, state, "fairness")
    worst = queues.loc[queues["max_lag_us"].idxmax()]
    if worst["max_lag_us"] > 0:
        key, queue = shortened(worst["max_lag_key"], _NAME), shortened(worst["queue"], _QUEUE)
        yield Tile(
            "Greatest lag", work(worst["max_lag_us"]), f"owed to {key} in {queue}", OK, "lag"
        )
