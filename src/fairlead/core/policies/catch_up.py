"""Policies of periodic tasks: which slots run when they are found late, or while another runs."""

from __future__ import annotations

from enum import StrEnum

MOST_CAUGHT_UP = 1000
"""Maximum number of missed slots that one catch-up submits: the latest ones."""

LATE_SECONDS = 60.0
"""Age above which `CatchUp.NONE` skips a slot."""


class CatchUp(StrEnum):
    """Policy for slots that no node submitted in time, for example while no worker ran."""

    LAST = "last"
    """Submit the latest missed slot and skip the earlier ones."""
    ALL = "all"
    """Submit every missed slot, at most the latest MOST_CAUGHT_UP."""
    NONE = "none"
    """Skip slots that are more than LATE_SECONDS old."""


class Overlap(StrEnum):
    """Policy for a slot that comes while a task of an earlier one waits or runs."""

    ALLOW = "allow"
    """Submit it."""
    SKIP = "skip"
    """Skip it."""
