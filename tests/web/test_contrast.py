"""Colours of console.css: enough contrast in light and in dark (WCAG 2.2, 1.4.3 and 1.4.11)."""

from __future__ import annotations

import re
from importlib import resources

import pytest

CSS = resources.files("fairlead.web").joinpath("static/console.css").read_text()

TEXT = [
    *((ink, ground) for ink in ("ink", "soft", "link") for ground in ("paper", "card", "tint")),
    ("accent-ink", "accent"),
    ("danger", "card"),
    *((kind, f"{kind}-tint") for kind in ("danger", "warn", "good", "busy")),
]
GRAPHICS = [
    *((f"series-{n}", ground) for n in range(1, 7) for ground in ("paper", "card", "tint")),
    ("busy", "paper"),  # the outline of the focus
    ("busy", "card"),
    ("soft", "card"),  # the border of fields
]


def themes() -> list[dict[str, str]]:
    """Return the colours of each block that sets them: light, dark by the system, dark by choice."""
    blocks = re.findall(r":root[^{]*\{([^}]*--paper[^}]*)\}", CSS)
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block)) for block in blocks]


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * each for each in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", range(3), ids=["light", "dark", "chosen dark"])
def test_text_and_graphics_stand_out_from_their_ground(theme: int) -> None:
    colours = themes()[theme]
    weak = [
        (front, ground, round(contrast(colours[front], colours[ground]), 2))
        for pairs, least in ((TEXT, 4.5), (GRAPHICS, 3.0))
        for front, ground in pairs
        if contrast(colours[front], colours[ground]) < least
    ]
    assert weak == []


def test_both_dark_themes_are_the_same() -> None:
    found = themes()
    assert len(found) == 3 and found[1] == found[2] and found[0].keys() == found[1].keys()


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_hidden_from_the_keyboard() -> None:
    assert "url(" not in CSS and "@import" not in CSS
    assert ":focus-visible" in CSS and "prefers-reduced-motion" in CSS and "@media print" in CSS
