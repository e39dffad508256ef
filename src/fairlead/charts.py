"""Charts as SVG, made on the server: numbers in, markup out. Each has a label, and a table with the
same numbers for readers who do not see it, for copying and for print.

A plot fills any width, so its labels are text beside it and not inside the SVG. Colours and
dashes come from classes, because the Content-Security-Policy of the console allows no styles here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from fairlead.clock import to_datetime

WIDTH, HEIGHT = 1000, 200
"""Units of a plot's own coordinates."""
MOST_SERIES = 6
"""Greatest number of lines in one chart; styles have a class for each."""
MOST_POINTS = 2000
"""Greatest number of points of one line."""

Numbers = Sequence[float | None]
"""Values of a line; None is a gap."""


def line_chart(
    title: str, times: Sequence[int], series: Sequence[tuple[str, Numbers]], unit: str = ""
) -> Markup:
    """Return lines over time, with a legend and a table.

    `times`: microseconds since the epoch, ascending. `series`: the name and the values of each
    line, one value for each time. Raise ValueError for more lines or points than a chart can show.
    """
    if len(series) > MOST_SERIES or len(times) > MOST_POINTS:
        raise ValueError(f"at most {MOST_SERIES} lines of {MOST_POINTS} points in one chart")
    if any(len(values) != len(times) for _, values in series):
        raise ValueError("a line has another number of values than there are times")
    top = _top(value for _, values in series for value in values)
    lines = Markup().join(
        Markup('<path class="line line-{}" d="{}"/>').format(number, _path(times, values, top))
        for number, (_, values) in enumerate(series, 1)
    )
    legend = Markup().join(
        Markup(
            '<li><svg class="swatch" viewBox="0 0 24 4" aria-hidden="true">'
            '<path class="line line-{}" d="M0 2H24"/></svg> {}</li>'
        ).format(number, name)
        for number, (name, _) in enumerate(series, 1)
    )
    rows = [
        (_time(at), *(_number(values[n]) for _, values in series)) for n, at in enumerate(times)
    ]
    return _figure(
        title,
        Markup(
            '<ul class="legend">{}</ul><div class="plot"><div class="axis-y" aria-hidden="true">'
            '<span>{}</span><span>{}</span><span>0</span></div><svg role="img" aria-label="{}"'
            ' viewBox="0 0 {} {}" preserveAspectRatio="none"><path class="grid-line"'
            ' d="M0 0H{}M0 {}H{}M0 {}H{}"/>{}</svg><div class="axis-x" aria-hidden="true">{}</div>'
            "</div>"
        ).format(
            legend,
            _number(top, unit),
            _number(top / 2, unit),
            _described(title, series, unit),
            WIDTH,
            HEIGHT,
            WIDTH,
            HEIGHT // 2,
            WIDTH,
            HEIGHT,
            WIDTH,
            lines,
            Markup().join(Markup("<span>{}</span>").format(_time(at)) for at in _ends(times)),
        ),
        _table(title, ("Time", *(_named(name, unit) for name, _ in series)), rows),
    )


def share_bar(got: float, due: float | None = None) -> Markup:
    """Return a bar for a cell of a table: a share got (0 to 1), with a mark at the share due. The
    cells beside it hold the numbers, so it is hidden from screen readers."""
    mark = (
        Markup()
        if due is None
        else Markup('<path class="mark" d="M{} 0V10"/>').format(_short(100 * _share(due)))
    )
    return Markup(
        '<svg class="share" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="10"/><rect class="fill" width="{}" height="10"/>'
        "{}</svg>"
    ).format(_short(100 * _share(got)), mark)


def _figure(title: str, plot: Markup, table: Markup) -> Markup:
    return Markup(
        '<figure class="chart"><figcaption>{}</figcaption>{}<details class="numbers">'
        "<summary>Numbers</summary>{}</details></figure>"
    ).format(title, plot, table)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Markup]]) -> Markup:
    head = Markup().join(
        Markup('<th scope="col"{}>{}</th>').format(Markup(' class="num"') if n else "", column)
        for n, column in enumerate(columns)
    )
    body = Markup().join(
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            row[0],
            Markup().join(Markup('<td class="num">{}</td>').format(cell) for cell in row[1:]),
        )
        for row in rows
    )
    return Markup(
        '<div class="scroll" role="region" aria-label="{}" tabindex="0"><table><thead><tr>{}</tr>'
        "</thead><tbody>{}</tbody></table></div>"
    ).format(f"Numbers: {title}", head, body)


def _path(times: Sequence[int], values: Numbers, top: float) -> str:
    """Return the data of a path through the values; a gap begins a new part of it."""
    if not times:
        return ""
    first, span = times[0], max(times[-1] - times[0], 1)
    found, is_drawing = [], False
    for at, value in zip(times, values, strict=True):
        if value is None or not math.isfinite(value):
            is_drawing = False
            continue
        x = _short(WIDTH * (at - first) / span)
        y = _short(HEIGHT - HEIGHT * min(max(value, 0), top) / top)
        # A point without neighbours shows as a dot: a line of no length with round caps.
        found.append(f"L{x} {y}" if is_drawing else f"M{x} {y}h0")
        is_drawing = True
    return "".join(found)


def _top(values: Iterable[float | None]) -> float:
    """Return the top of an axis: 1, 2 or 5 times a power of ten, at least the greatest value."""
    most = max((v for v in values if v is not None and math.isfinite(v)), default=0.0)
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next((each * power for each in (1, 2, 5) if most <= each * power), 10 * power)


def _described(title: str, series: Sequence[tuple[str, Numbers]], unit: str) -> str:
    """Return a chart in words: the last and the greatest value of each line."""
    parts = []
    for name, values in series:
        numbers = [value for value in values if value is not None and math.isfinite(value)]
        if numbers:
            last, most = _number(numbers[-1], unit), _number(max(numbers), unit)
            parts.append(f"{name}: last {last}, at most {most}")
    return f"{title}. {'; '.join(parts) or 'No values'}."


def _ends(times: Sequence[int]) -> list[int]:
    return [times[0], times[len(times) // 2], times[-1]] if len(times) > 2 else list(times)


def _time(micros: int) -> Markup:
    at = to_datetime(micros)
    iso = at.isoformat().replace("+00:00", "Z")
    text = at.strftime("%m-%d %H:%M UTC")
    return Markup('<time datetime="{}" title="{}" data-short="">{}</time>').format(iso, iso, text)


def _number(value: float | None, unit: str = "") -> str:
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}" if unit else text


def _named(name: str, unit: str) -> str:
    return f"{name}, {unit}" if unit else name


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
