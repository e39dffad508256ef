"""The pause before a node tries an unavailable store again."""

from __future__ import annotations

import random

SHORTEST, LONGEST = 0.1, 1.0  # seconds


def outage_pause() -> float:
    """Return the seconds until the next try.

    The pause is random, so that not all nodes try at once, and no fault that repeats at an interval
    meets every try.
    """
    return random.uniform(SHORTEST, LONGEST)
