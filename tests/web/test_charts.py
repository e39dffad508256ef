"""Charts: numbers in, markup out."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from fairlead.charts import line_chart

HOUR = 3_600_000_000


def test_a_line_chart_has_a_label_a_legend_and_a_table_with_its_numbers() -> None:
    chart = line_chart(
        "Waits", [0, HOUR, 2 * HOUR], [("p50", [1, 3, 2]), ("p99", [4, None, 8])], "s"
    )
    figure = ElementTree.fromstring(chart)
    svg = figure.find(".//div[@class='plot']/svg")
    assert svg is not None and svg.get("role") == "img"
    assert svg.get("aria-label") == "Waits. p50: last 2 s, at most 3 s; p99: last 8 s, at most 8 s."
    cells = [["".join(cell.itertext()) for cell in row] for row in figure.findall(".//tbody/tr")]
    assert cells[1] == ["01-01 01:00 UTC", "3", "\N{EN DASH}"]
    # The gap begins a new part of the line; a part of one point is a dot.
    lines = [path.get("d") or "" for path in svg if path.get("class") == "line line-2"]
    assert lines[0].count("M") == lines[0].count("h0") == 2


def test_hostile_names_stay_text() -> None:
    name = '"><script>alert(1)</script>'
    chart = line_chart(name, [0], [(name, [1])], name)
    assert "<script" not in chart
    ElementTree.fromstring(chart)


@pytest.mark.parametrize("values", [[], [None], [0.0], [float("nan")], [float("inf"), 1.0], [-3.0]])
def test_odd_values_make_a_chart_too(values: list[float | None]) -> None:
    times = list(range(len(values)))
    ElementTree.fromstring(line_chart("Odd", times, [("a", values)]))
