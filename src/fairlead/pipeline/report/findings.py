"""Findings: the summary of the report, a number and a short note each."""

from __future__ import annotations

from typing import NamedTuple

from fairlead.clock import to_micros
from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.cost import is_billed, parts_of_whole
from fairlead.pipeline.report.data import ReportData

OK, LOOK, BAD = "ok", "look", "bad"
EVEN = 0.9
"""Least Jain's index at which the report calls a queue even."""


class Tile(NamedTuple):
    """A tile of the page, with one finding. `state` is ok, look (worth a look) or bad; `section` is
    the anchor with more details."""

    title: str
    value: str
    note: str
    state: str
    section: str = ""


def standing_out(data: ReportData) -> list[Tile]:
    """Return the findings; tables without rows have none."""
    found = [
        _load(data),
        _runs(data),
        _pickup(data),
        _evenness(data),
        _starved(data),
        _lag(data),
        _objectives(data),
    ]
    return [finding for finding in [*found, _cost(data)] if finding is not None]


def _load(data: ReportData) -> Tile | None:
    if not len(data.queues):
        return None
    busy = data.queues["busy_us"].sum()
    workers = busy / (to_micros(data.period.until) - to_micros(data.period.since))
    note = f"{numbers.ratio(workers)} workers busy on average; queues: {len(data.queues)}"
    return Tile("Worker time", numbers.work(busy), note, OK, "load")


def _runs(data: ReportData) -> Tile | None:
    if not len(data.queues):
        return None
    total = data.queues[["started", "failed", "busy_us", "wasted_us"]].sum()
    failed = total["failed"] / max(total["started"], 1)
    wasted = total["wasted_us"] / max(total["busy_us"], 1)
    note = f"{numbers.percent(failed)} failed; {numbers.percent(wasted)} of the worker time wasted"
    storms = "; there were storms" if len(data.storms) else ""
    return Tile(
        "Runs", numbers.count(total["started"]), note + storms, LOOK if storms else OK, "failures"
    )


def _pickup(data: ReportData) -> Tile | None:
    if not len(data.names):
        return None
    worst = data.names.iloc[0]
    name, queue = numbers.shortened(worst["name"], 30), numbers.shortened(worst["queue"], 20)
    note = f"99 % of {name} in {queue} started within this time"
    return Tile("Slowest pickup", numbers.duration(worst["p99"]), note, OK, "pickup")


def _evenness(data: ReportData) -> Tile | None:
    judged = data.fairness_by_queue.dropna(subset=["jain_median"])
    if not len(judged):
        return None
    worst = judged.loc[judged["jain_median"].idxmin()]
    note = (
        f"median Jain index of {numbers.shortened(worst['queue'], 20)}, the least even queue; 1 is"
        " even"
    )
    state = OK if worst["jain_median"] >= EVEN else LOOK
    return Tile("Evenness", numbers.ratio(worst["jain_median"]), note, state, "fairness")


def _starved(data: ReportData) -> Tile | None:
    if not len(data.fairness_by_queue):
        return None
    most = int(data.fairness_by_queue["starved_keys"].max())
    if not most:
        return Tile("Starved keys", "0", "none waited long without being served", OK, "fairness")
    queues = data.fairness_by_queue
    queue = numbers.shortened(queues.loc[queues["starved_keys"].idxmax(), "queue"], 20)
    return Tile(
        "Starved keys", numbers.count(most), f"in the worst window, in {queue}", BAD, "fairness"
    )


def _lag(data: ReportData) -> Tile | None:
    behind = data.fairness_by_queue
    if not len(behind) or behind["max_lag_us"].max() <= 0:
        return None
    worst = behind.loc[behind["max_lag_us"].idxmax()]
    note = (
        f"owed to {numbers.shortened(worst['max_lag_key'], 30)} in"
        f" {numbers.shortened(worst['queue'], 20)}"
    )
    return Tile("Greatest lag", numbers.work(worst["max_lag_us"]), note, OK, "lag")


def _objectives(data: ReportData) -> Tile | None:
    if not len(data.objectives):
        return None
    states = data.objectives["state"].value_counts()
    worst = BAD if "page" in states else LOOK if "ticket" in states else OK
    least = data.objectives.iloc[0]
    note = f"{numbers.shortened(least['slo_id'], 30)}: {_budget(least['budget_left'])}"
    counts = ", ".join(
        f"{states[state]} {state}" for state in ("page", "ticket", "ok") if state in states
    )
    return Tile("Objectives", counts, note, worst, "objectives")


def _budget(left: float) -> str:
    if left < 0:
        return f"budget overspent by {numbers.percent(-left)}"
    return f"{numbers.percent(left)} of its budget left"


def _cost(data: ReportData) -> Tile | None:
    if not len(data.cost) or not is_billed(data.cost):
        return None
    dearest = data.cost.iloc[0]
    note = (
        f"{numbers.percent(parts_of_whole(data.cost).iloc[0])} for"
        f" {numbers.shortened(dearest['fairness_key'], 30)}"
    )
    return Tile("Cost", numbers.amount(data.cost["amount"].sum()), note, OK, "cost")
