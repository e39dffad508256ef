"""The history from the tables of the lake, over any period: shares, waits, runs, fairness,
incidents and costs; of all tenants, or of one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from markupsafe import Markup
from msgspec.structs import replace
from starlette.responses import Response

from fairlead import charts
from fairlead.clock import MICROS
from fairlead.errors import ConfigurationError, NotSupported
from fairlead.model.lake_history import Fairness, Part
from fairlead.ports.lake_history import By, LakeHistory, Measure, Question
from fairlead.web.lake import question_of
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="History", route="history", order=100)

PERIODS = [
    ("6", "6 hours"),
    ("24", "24 hours"),
    ("168", "7 days"),
    ("720", "30 days"),
    ("8760", "1 year"),
    ("0", "all"),
]
"""Hours before the latest run of the lake, and their names; 0 is all."""
GROUPS: dict[By, str] = {"tenant": "tenant", "queue": "queue", "name": "task name"}
MEASURES: dict[Measure, str] = {
    "pickup": "wait until the run starts",
    "run": "run time",
    "e2e": "time from submit to end",
    "retry_delay": "delay of retries",
}

_NO_LAKE = "Whoever runs this console can make one from what the workers keep."
_MOST_HOURS = 100 * 366 * 24
_POINTS = 120
_LINES = 5
_TOP = 20
P = TypeVar("P", bound=Part)


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/history", show_history, name="history", scoped=True)]


def show_history(page: Page) -> Response:
    """Show the history of a period; without a lake, how to make one."""
    hours = page.query.whole("hours", 0, _MOST_HOURS, 24)
    chosen = {
        "hours": str(hours),
        "queue": page.query.text("queue"),
        "tenant": page.query.exact("tenant"),
        "by": page.query.one_of("by", list(GROUPS), "tenant"),
        "measure": page.query.one_of("measure", list(MEASURES), "pickup"),
        "since": page.query.text("since", 64),
        "until": page.query.text("until", 64),
    }
    shown: dict[str, object] = {}
    missing = ""
    try:
        history = page.parts.lake.history()
        extent = history.extent()
    except (ConfigurationError, NotSupported) as error:
        is_operator = page.access.tenants is None
        extent, missing = None, str(error) if is_operator else _NO_LAKE
    if extent is not None:
        asked: dict[str, Any] = {name: value for name, value in chosen.items() if value}
        question = question_of(page.caller, extent, **asked | {"hours": hours})
        shown = page.shared(("history", question), lambda: _read(history, question))
    return page.render(
        "history.html",
        chosen=chosen,
        missing=missing,
        periods=PERIODS,
        groups=list(GROUPS.items()),
        measures=list(MEASURES.items()),
        folder=page.parts.lake.folder if page.access.tenants is None else None,
        **shown,
    )


def _read(history: LakeHistory, question: Question) -> dict[str, object]:
    """Return what the screen shows: a chart of each measure, and the totals of the period."""
    lines = replace(question, top=_LINES, points=_POINTS)
    whole = replace(question, top=_TOP, points=1)
    runs, totals = history.runs(lines), history.runs(whole)
    waits, wait_totals = history.waits(lines), history.waits(whole)
    shares, fairness, costs = history.shares(lines), history.fairness(lines), history.costs(whole)
    step, what = runs.step_s or 1, MEASURES[question.measure]
    return {
        "as_of": runs.as_of,
        "since": runs.since,
        "until": runs.until,
        "notes": list(
            dict.fromkeys(each.note for each in (runs, waits, shares, fairness, costs) if each.note)
        ),
        "runs_chart": _lines("Runs started a second", runs.rows, lambda r: r.started / step, "/s"),
        "failed_chart": _lines("Failed runs a second", runs.rows, lambda r: r.failed / step, "/s"),
        "p50_chart": _lines(f"p50 of the {what}", waits.rows, lambda r: r.p50_us / MICROS, "s"),
        "p99_chart": _lines(f"p99 of the {what}", waits.rows, lambda r: r.p99_us / MICROS, "s"),
        "busy_chart": _lines(
            "Workers busy: got",
            shares.rows,
            lambda r: r.busy_us / shares.step_s / MICROS,
            "workers",
        ),
        "due_chart": _lines(
            "Workers busy: due",
            shares.rows,
            lambda r: r.entitled_us / shares.step_s / MICROS,
            "workers",
        ),
        "totals": totals.rows,
        "waits": {row.part: row for row in wait_totals.rows},
        "tenants": history.top_tenants(whole).rows,
        "fairness": _least_even(fairness.rows),
        "incidents": history.incidents(question).rows[:100],
        "costs": costs.rows,
        "busy_total": sum(row.busy_us for row in totals.rows) or 1,
    }


def _lines(title: str, rows: Sequence[P], value: Callable[[P], float], unit: str) -> Markup | None:
    """Return a chart with a line for each part; None without rows."""
    if not rows:
        return None
    times = sorted({row.at for row in rows})
    at = {time: number for number, time in enumerate(times)}
    series: defaultdict[tuple[int, str], list[float | None]] = defaultdict(
        lambda: [None] * len(times)
    )
    for row in rows:
        name = "all others" if row.part is None else row.part or "(no key)"
        series[row.rank, name][at[row.at]] = value(row)
    return charts.line_chart(
        title, times, [(name, values) for (_, name), values in sorted(series.items())], unit
    )


def _least_even(rows: Sequence[Fairness]) -> list[Fairness]:
    """Return the step with the least Jain's index of each queue, the least even queue first."""
    worst: dict[str, tuple[float, Fairness]] = {}
    for row in rows:
        if row.jain_least is not None and (
            row.queue not in worst or row.jain_least < worst[row.queue][0]
        ):
            worst[row.queue] = (row.jain_least, row)
    return [row for _, row in sorted(worst.values(), key=lambda pair: pair[0])]
