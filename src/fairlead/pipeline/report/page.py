"""The page: one self-contained HTML file without network requests or scripts. Results come first;
tables are folded."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

import matplotlib
import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.pipeline.bronze import QUARANTINE
from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.numbers import count, duration, instant, percent, ratio, shortened
from fairlead.pipeline.report.period import HOUR_S, Period

COLOURS = ("#332288", "#DDCC77", "#117733", "#CC6677", "#88CCEE", "#882255", "#44AA99", "#BBBBBB")
"""Colours that colour-blind people can distinguish: the scheme `muted` of Paul Tol, Colour Schemes,
SRON/EPS/TN/09-002, 2021; the last one for all other keys."""
EVEN = 0.9
"""Median Jain index below which a queue is shown as uneven."""
_OLD_US = 24 * HOUR_S * MICROS
"""Age of the newest attempt above which the report says that the data is old."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    # The widest of the fonts that a browser may use instead, so that all text fits there.
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.parse_math": False,  # a key may contain a dollar sign
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e4e8ec",
    "legend.frameon": False,
}
_TAG = re.compile(r"<[^>]+>")
_NAMESPACE = re.compile(r'\s(?:xmlns(?::xlink)?|version)="[^"]*"')
_ID = re.compile(r'(\bid="|href="#|url\(#)')

_FORMATS: dict[str, Callable[[Any], str]] = {
    "amount": numbers.amount,
    "count": count,
    "duration": duration,
    "percent": percent,
    "ratio": ratio,
    "work": numbers.work,
    "instant": instant,
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
        since=instant(data.period.since),
        until=instant(data.period.until),
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
    is_number = kind not in ("instant", "name", "text")
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
            key, lag = shortened(queue["max_lag_key"] or ""), numbers.work(queue["max_lag_us"])
            yield Finding("bad", f"{text} {key} was owed most, {lag}.")
        if pd.notna(queue["jain_median"]) and queue["jain_median"] < EVEN:
            index = ratio(queue["jain_median"])
            yield Finding("look", f"{name} was uneven: median Jain index {index}, 1 is even.")
    if len(fairness) and not fairness["starved_keys"].any():
        yield Finding("ok", "No key starved.")
    for worst in objectives.head(1).to_dict("records"):
        left, states = worst["budget_left"], set(objectives["state"])
        state = "bad" if "page" in states else "look" if "ticket" in states else "ok"
        name = shortened(worst["slo_id"])
        if pd.notna(left):
            rest = f"has {percent(left)} of its error budget left"
            rest = rest if left >= 0 else f"has overspent its error budget by {percent(-left)}"
            yield Finding(state, f"{name} {rest}, the least of {len(objectives)} objectives.")
    if len(cost) and cost["amount"].any():
        key, part = shortened(cost.iloc[0]["fairness_key"]), percent(cost.iloc[0]["part"])
        total = numbers.amount(cost["amount"].sum())
        yield Finding("ok", f"The cost is {total}; {part} of it for {key}.")


def _about_data(data: ReportData) -> Iterator[Finding]:
    newest, attempts = data.frames["newest"].iloc[0]
    if pd.isna(newest):
        cure = "`fairlead pipeline ingest` brings attempts into the lake."
        yield Finding("look", f"The lake has no attempts: {cure}")
    elif data.made_at - to_micros(newest.tz_localize("UTC")) > _OLD_US:
        yield Finding("look", f"The newest attempt is of {instant(newest)}.")
    if data.unexported:
        behind = count(data.unexported)
        yield Finding("look", f"{behind} finished attempts are not in the lake yet.")
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


def _charts(data: ReportData) -> dict[str, list[tuple[str, Markup]]]:
    """Return the title and the picture of each chart, by section: one for each drawn queue."""
    pickup_s = data.period.step_of(HOUR_S)
    charts: dict[str, list[tuple[str, Markup]]] = {}
    for section, step_s in (("share", data.period.step_s), ("pickup", pickup_s)):
        steps = data.frames[f"{section}_over_time"]
        charts[section] = [
            (shortened(queue), chart(f"{section}-{number}", rows, data.period, step_s))
            for number, (queue, rows) in enumerate(steps.groupby("queue", sort=False))
        ]
    return charts


def chart(name: str, rows: pd.DataFrame, period: Period, step_s: int) -> Markup:
    """Return a picture with a line for each value of `line` (null: all other keys) through the
    points (`at`, `value`); a step without data is a gap. Durations (of pickup) have a logarithmic
    scale. `name` must be unique on the page, because the ids of the parts contain it."""
    is_duration = name.startswith("pickup")
    grid = pd.date_range(*period.naive, freq=f"{step_s}s")
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # Letters that the font lacks are measured a little wrong, but the browser shows them.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=(11, 2.6), layout="constrained")
        axes = figure.subplots()
        for number, (line, points) in enumerate(rows.groupby("line", sort=False, dropna=False)):
            # Matplotlib leaves labels that begin with an underscore out of a legend.
            label = "others" if pd.isna(line) else "\u200b" + shortened(line, 26)
            steps = points.set_index("at")["value"].reindex(grid).astype(float)
            shape: dict[str, Any] = {"drawstyle": "steps-post", "marker": ".", "markersize": 3}
            shape["color"] = COLOURS[-1] if pd.isna(line) else COLOURS[number % 7]
            axes.plot(steps.index, steps.clip(lower=int(is_duration)), label=label, **shape)
        locator = AutoDateLocator(minticks=4, maxticks=8)  # type: ignore[no-untyped-call]
        axes.set_xlim(*period.naive)  # type: ignore[arg-type]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))  # type: ignore[no-untyped-call]
        axes.set_ylabel("pickup" if is_duration else "busy workers")
        if is_duration:
            axes.set_yscale("log")
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: duration(us)))
        figure.legend(loc="outside right upper", alignment="left")
        drawn = io.StringIO()
        without = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(drawn, metadata=without)  # type: ignore[no-untyped-call]
    svg = drawn.getvalue()
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)

    def inline(tag: re.Match[str]) -> str:
        """Return a tag for SVG inside HTML: without namespaces, with ids unique on the page."""
        plain = _NAMESPACE.sub("", tag[0]).replace("xlink:href", "href")
        return _ID.sub(rf"\g<1>{name}-", plain)

    return Markup(_TAG.sub(inline, svg).strip())  # noqa: S704 - Matplotlib escapes all texts
