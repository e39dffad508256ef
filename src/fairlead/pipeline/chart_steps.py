"""Steps in which a period of any length is shown: few enough to be distinguished, and whole windows
of gold. Pure."""

from __future__ import annotations

MOST_POINTS = 200
"""Maximum number of points of a line; more cannot be distinguished on a page."""

_DAY_S = 86_400
_MINUTES, _HOURS, _DAYS = (1, 2, 5, 10, 20, 30), (1, 2, 3, 6, 12), (1, 2, 7)
_STEPS = (*(60 * n for n in _MINUTES), *(3600 * n for n in _HOURS), *(_DAY_S * n for n in _DAYS))
"""Steps in seconds. Each is a whole number of windows of a size in gold."""


def step_for(length_s: float, most: int = MOST_POINTS) -> int:
    """Return the seconds of the shortest step that makes at most `most` points of a period of
    `length_s` seconds."""
    for step_s in _STEPS:
        if length_s <= step_s * most:
            return step_s
    return _DAY_S * -(-int(length_s) // (_DAY_S * most))
