"""The page: one self-contained HTML file without network requests or scripts. Results come first;
tables are folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fairlead import charts
from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.pipeline.models import QUARANTINE
from fairlead.pipeline.reading.history import Steps
from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.numbers import (
    count,
    duration,
    instant,
    key_name,
    percent,
    ratio,
    shortened,
)
from fairlead.pipeline.windows import DAY, HOUR

EVEN = 0.9
"""Median Jain index below which a queue is shown as uneven."""
_LEAST_POINTS = 2
"""Instants below which a chart would be a dot, and is left out: the table has its numbers."""
_FEW_WORKERS = 0.01
"""Busy workers below which a chart shows their time."""
_OLD_US = DAY * MICROS
"""Age of the newest attempt above which the report says that the data is old."""

_FORMATS: dict[str, Callable[[Any], str]] = {
    "amount": numbers.amount,
    "budget": numbers.budget,
    "count": count,
    "duration": duration,
    "percent": percent,
    "ratio": ratio,
    "work": numbers.work,
    "instant": instant,
    "key": key_name,
    "name": shortened,
    "text": lambda text: shortened(" ".join(str(text).split()), 90),
}


class Cell(NamedTuple):
    """A cell of a table. `value` is the exact number, empty for other cells."""

    text: str
    kind: str
    value: str = ""


class Finding(NamedTuple):
    """A sentence about what the numbers say. `state` is ok, look or bad."""

    state: str
    text: str


def render(data: ReportData) -> str:
    """Return the page as text. Equal data makes an equal page."""
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return page.from_string(template).render(
        since=instant(to_datetime(data.period.since)),
        until=instant(to_datetime(data.period.until)),
        made_at=instant(to_datetime(data.made_at)),
        hashed=data.hashed,
        findings=[*_about_runs(data), *_about_data(data)],
        frames=data.frames,
        rows=data.rows,
        cells=cells,
        charts=_charts(data),
    )


def cells(frame: pd.DataFrame, columns: Sequence[Sequence[str]]) -> list[list[Cell]]:
    """Return the rows of a table. A column is its heading, the column of the frame, and the format
    of its values (default: a name)."""
    return [
        [_cell(row, column, *(kind or ["name"])) for _, column, *kind in columns]
        for row in frame.to_dict("records")
    ]


def _cell(row: dict[Any, Any], column: str, kind: str) -> Cell:
    """Return a cell. A null key stands for the other keys; the column `keys` counts them."""
    value = row[column]
    if pd.isna(value):
        return Cell(f"{row['keys']:,} others" if column == "fairness_key" else "-", kind)
    is_number = kind not in ("instant", "key", "name", "text")
    return Cell(_FORMATS[kind](value), kind, str(value) if is_number else "")


# findings -----------------------------------------------------------------------------------------


def _about_runs(data: ReportData) -> Iterator[Finding]:
    queues, fairness, objectives, cost = (
        data.frames[name] for name in ("queues", "fairness", "objectives", "cost")
    )
    if len(queues):
        total = queues[["started", "failed", "busy_us", "wasted_us"]].sum()
        failed = percent(total["failed"] / max(total["started"], 1))
        wasted = percent(total["wasted_us"] / max(total["busy_us"], 1))
        storms = data.frames["failures"]["storm_hours"].sum()
        text = f"{count(total['started'])} runs took {numbers.work(total['busy_us'])} of workers;"
        text += f" {failed} of them failed, and wasted {wasted} of that time"
        text += f"; hours with a storm of one error: {count(storms)}." if storms else "."
        yield Finding("look" if storms else "ok", text)
    for worst in data.frames["pickup"].head(1).to_dict("records"):
        where = f"{shortened(worst['name'])} in {shortened(worst['queue'])}"
        yield Finding("ok", f"99 % of {where} started within {duration(worst['p99'])}.")
    for queue in fairness.to_dict("records"):
        name = shortened(queue["queue"])
        if queue["starved_keys"]:
            text = f"{name}: {count(queue['starved_keys'])} keys starved in the worst window;"
            key, lag = key_name(queue["max_lag_key"]), numbers.work(queue["max_lag_us"])
            yield Finding("bad", f"{text} {key} was owed most, {lag}.")
        if pd.notna(queue["jain_median"]) and queue["jain_median"] < EVEN:
            index = ratio(queue["jain_median"])
            yield Finding("look", f"{name} was uneven: median Jain index {index}, 1 is even.")
    if len(fairness) and not fairness["starved_keys"].any():
        yield Finding("ok", "No key starved.")
    for worst in objectives.head(1).to_dict("records"):
        states = set(objectives["state"])
        state = "bad" if "page" in states else "look" if "ticket" in states else "ok"
        name = shortened(worst["slo_id"])
        if pd.notna(worst["budget_left"]):
            text = f"{name}: error budget {numbers.budget(worst['budget_left'])}"
            others = f", the least of {len(objectives)} objectives" if len(objectives) > 1 else ""
            yield Finding(state, f"{text}{others}.")
    if len(cost) and cost["amount"].any():
        key, part = key_name(cost.iloc[0]["fairness_key"]), percent(cost.iloc[0]["part"])
        total = numbers.amount(cost["amount"].sum())
        yield Finding("ok", f"The cost is {total}; {part} of it for {key}.")


def _about_data(data: ReportData) -> Iterator[Finding]:
    newest, attempts = data.frames["newest"].iloc[0]
    if pd.isna(newest):
        cure = "`fairlead pipeline ingest` brings attempts into the lake."
        yield Finding("look", f"The lake has no attempts: {cure}")
    elif data.made_at - to_micros(newest.tz_localize("UTC")) > _OLD_US:
        yield Finding("look", f"The newest attempt is of {instant(newest)}.")
    if not data.built_until:
        state = "bad" if data.exported_until else "look"
        yield Finding(state, "The tables were never built: run `fairlead pipeline build`.")
    elif data.exported_until > data.built_until:
        until = instant(to_datetime(data.built_until))
        yield Finding("look", f"The tables have only what was exported until {until}.")
    if bad := data.rows.get(QUARANTINE.name, 0):
        part = percent(bad / max(attempts, 1))
        yield Finding("look", f"{count(bad)} rows, {part} of the attempts, are in quarantine.")
    runs = data.frames["runs"]
    for job in runs[(runs["state"] == "failed") | (runs["failed_checks"] != "")]["job"]:
        yield Finding("bad", f"The last run of the job {shortened(job)} failed.")


# charts -------------------------------------------------------------------------------------------


def _charts(data: ReportData) -> dict[str, list[Markup]]:
    """Return the charts of each section: shares by drawn queue, and pickups by percentile."""
    shares, pickups = data.frames["share_over_time"], data.frames["pickup_over_time"]
    when, hours_s = data.period, max(data.period.step_s, HOUR)
    return {
        "share": [
            chart(shortened(queue), *_busy(rows), rows["line"], when)
            for queue, rows in shares.groupby("queue", sort=False)
            if rows["at"].nunique() >= _LEAST_POINTS
        ],
        "pickup": [
            chart(f"Pickup, {part} of the runs", "s", rows, rows["queue"], when, hours_s)
            for part, rows in pickups.groupby("line", sort=False)
            if rows["at"].nunique() >= _LEAST_POINTS
        ],
    }


def _busy(rows: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return the unit of busy workers, and the rows in it: small numbers of workers as the time
    that they work in a minute."""
    if rows["value"].max() >= _FEW_WORKERS:
        return "workers", rows
    return "ms a minute", rows.assign(value=rows["value"] * 60_000)


def chart(
    title: str,
    unit: str,
    rows: pd.DataFrame,
    lines: pd.Series[str],
    when: Steps,
    step_s: int | None = None,
) -> Markup:
    """Return a chart with a line for each key or queue in `lines` (null: all other keys) through
    the points (`at`, `value`) of the rows; a step (default: of the period) without data is a
    gap."""
    times = range(when.since, when.until, (step_s or when.step_s) * MICROS)
    grid = pd.to_datetime(list(times), unit="us")
    series = [
        (
            "others" if pd.isna(name) else key_name(name, 26),
            points.set_index("at")["value"].astype(float).reindex(grid).tolist(),
        )
        for name, points in rows.groupby(lines, sort=False, dropna=False)
    ]
    return charts.line_chart(title, times, series, unit)
