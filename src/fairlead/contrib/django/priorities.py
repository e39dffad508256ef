"""Priorities: Django's from -100 to 100, larger first, and Fairlead's from 0 to 9, 0 first."""

from __future__ import annotations

BAND = 20
"""Number of Django's priorities that one of Fairlead's stands for."""
MIDDLE = 5
"""Priority of Fairlead for Django's default, 0."""


def fairlead_priority(priority: int) -> int:
    """Return the priority of Fairlead: 100 to 81 give 0, ..., 20 to 1 give 4, 0 to -19 give 5, ...,
    -80 to -100 give 9."""
    return min(max(MIDDLE + (-priority) // BAND, 0), 9)


def django_priority(priority: int) -> int:
    """Return the greatest priority of Django that Fairlead's stands for."""
    return (MIDDLE - priority) * BAND
