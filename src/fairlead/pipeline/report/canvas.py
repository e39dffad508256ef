"""Figures that become SVG inside a page. Equal data makes an equal SVG, which contains no URLs."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fairlead.clock import MICROS
from fairlead.pipeline.report.numbers import duration, shortened
from fairlead.pipeline.report.period import Period

COLOURS = ("#332288", "#DDCC77", "#117733", "#CC6677", "#88CCEE", "#882255", "#44AA99", "#999933")
"""Colours that colour-blind people can distinguish: the scheme `muted` of Paul Tol, Colour Schemes,
SRON/EPS/TN/09-002, 2021."""

REST = "#BBBBBB"
INK, SOFT = "#1f2933", "#6b7785"
GOOD, WARN, BAD = "#117733", "#DDAA33", "#BB2244"

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    # The widest of the fonts that a browser may use instead, so that all text fits there.
    "font.family": "DejaVu Sans",
    "font.size": 9,
    # A key may contain a dollar sign.
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e4e8ec",
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
}
_ROUND = [
    *(10**n for n in range(6)),
    *(n * MICROS for n in (1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000)),
]
"""Durations that an axis may show, in microseconds."""

_DATES = ["%Y", "%b", "%a %d", "%H:%M", "%H:%M", "%H:%M:%S"]
_FIRST_DATES = ["", "%b %Y", "%d %b", "%a %d", "%H:%M", "%H:%M"]
"""Date formats by the unit of the ticks (years, months, days, hours, minutes, seconds), and for
ticks that begin a larger unit."""

LONGEST_LABEL = 26
_WIDTH = 11  # inches

_TAG = re.compile(r"<[^>]+>")
_NAMESPACE = re.compile(r'\s(?:xmlns(?::xlink)?|version)="[^"]*"')
_LONG_NUMBER = re.compile(r"(\d\.\d\d)\d+")
_ID = re.compile(r'(\bid="|href="#|url\(#)')


@dataclass
class Canvas:
    """A figure, and the SVG that it becomes."""

    figure: Figure
    svg: Markup = field(default_factory=Markup)


@contextmanager
def drawing(name: str, height: float) -> Iterator[Canvas]:
    """Yield a canvas of the width of the page, whose `svg` is ready at the end.

    `name` must be unique on the page, because the ids of the parts contain it; `height` is in
    inches.
    """
    with (
        matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}),
        warnings.catch_warnings(),
    ):
        # Letters that the font lacks are measured a little wrong, but the browser shows them.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        canvas = Canvas(Figure(figsize=(_WIDTH, height), layout="constrained"))
        yield canvas
        # All texts in it are escaped by Matplotlib.
        canvas.svg = Markup(_svg(name, canvas.figure))  # noqa: S704


def _svg(name: str, figure: Figure) -> str:
    """Return a figure as SVG inside HTML: without namespaces, with ids unique on the page, and with
    numbers no finer than visible."""
    drawn = io.StringIO()
    without = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # Call the backend, because `savefig` lays everything out twice.
    FigureCanvasSVG(figure).print_svg(drawn, metadata=without)  # type: ignore[no-untyped-call]
    svg = drawn.getvalue()
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)

    def inline(tag: re.Match[str]) -> str:
        plain = _NAMESPACE.sub("", _LONG_NUMBER.sub(r"\1", tag[0])).replace("xlink:href", "href")
        return _ID.sub(rf"\g<1>{name}-", plain)

    return _TAG.sub(inline, svg).strip()


def label(text: str) -> str:
    """Return a key or a name short enough for a legend."""
    short = shortened(text, LONGEST_LABEL)
    # Matplotlib leaves labels that begin with an underscore out of a legend.
    return f"\u200b{short}" if short.startswith("_") else short


def time_axis(axes: Axes, period: Period) -> None:
    """Make the horizontal axis show the period, in dates and hours UTC."""
    locator = AutoDateLocator(minticks=4, maxticks=8)  # type: ignore[no-untyped-call]
    axes.set_xlim(*period.naive)  # type: ignore[arg-type]
    axes.xaxis.set_major_locator(locator)
    formats = {"formats": _DATES, "zero_formats": _FIRST_DATES, "show_offset": False}
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, **formats))  # type: ignore[no-untyped-call]


def on_grid(steps: pd.DataFrame, period: Period, step_s: int | None = None) -> pd.DataFrame:
    """Return a row for every step of the period. A step without data is a gap in the line."""
    return steps.reindex(pd.date_range(*period.naive, freq=f"{step_s or period.step_s}s"))


def duration_axis(axis: Axis, least_us: float, greatest_us: float) -> None:
    """Put the ticks of a logarithmic axis of microseconds at round durations."""
    inside = [us for us in _ROUND if least_us / 2 <= us <= greatest_us * 2]
    axis.set_major_locator(FixedLocator(inside))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda us, _: duration(us)))


def legend_right(
    owner: Axes | Figure, handles: list[Any], labels: list[str], title: str | None = None
) -> None:
    """Draw a legend beside the axes or the whole figure."""
    if isinstance(owner, Figure):
        where: dict[str, Any] = {"loc": "outside right upper"}
    else:
        where = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02)}
    owner.legend(handles, labels, title=title, alignment="left", **where)
