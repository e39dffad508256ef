"""Rows of silver for tests of gold: a minute of service, a minute of backlog, in seconds and
minutes after T0."""

from __future__ import annotations

from typing import Any

from tests.pipeline.frames import at

SECOND = 1_000_000
"""Microseconds."""


def served(minute: int, key: str, busy_s: float, **fields: Any) -> dict[str, Any]:
    """Return a row of silver.service: one run of `busy_s` seconds of a key in a minute after T0."""
    busy_us = round(busy_s * SECOND)
    return {
        "window_start": at(60 * minute),
        "window_s": 60,
        "queue": "q",
        "fairness_key": key,
        "name": "work",
        "weight": 1.0,
        "busy_us": busy_us,
        "weighted_us": busy_us / fields.get("weight", 1.0),
        "attempts_started": 1,
        "attempts_done": 1,
        "failed": 0,
        "wasted_us": 0,
        "longest_run_us": busy_us,
    } | fields


def waited(minute: int, key: str, **fields: Any) -> dict[str, Any]:
    """Return a row of silver.backlog: one task of a key waits throughout a minute after T0, with no known
    work."""
    return {
        "minute": at(60 * minute),
        "queue": "q",
        "fairness_key": key,
        "weight": 1.0,
        "arrived": 0,
        "arrived_us": 0,
        "claimed": 0,
        "strides": fields.get("claimed", 0) / fields.get("weight", 1.0),
        "depth_end": 1,
        "depth_min": 1,
        "backlogged_us": 60 * SECOND,
        "work_us": 0,
        "oldest_ready_at": at(0) if fields.get("depth_end", 1) else None,
    } | fields
