"""Guard rails of tuning: bounds of each change, and times without a change."""

from __future__ import annotations

from typing import Annotated

import msgspec

_HOUR = 3600.0

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
AboveOne = Annotated[float, msgspec.Meta(gt=1)]


class Guards(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of tuning; times in seconds. A settings file may have only numbers in the range of
    their types."""

    half_life: Positive = 24 * _HOUR
    """Age at which a key's past use of workers counts half."""
    prior_tasks: Positive = 30.0
    """Number of tasks with the queue's mean run time that are added to each key's tasks, so that a
    key with few tasks has nearly the queue's mean."""
    least_tasks: Annotated[int, msgspec.Meta(ge=0)] = 100
    """Number of tasks below which a key is not tuned."""
    least_time: Positive = 2 * _HOUR
    """Time with tasks below which a key is not tuned."""
    lowest: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    """Lower bound of a weight, as a multiple of the key's share."""
    highest: Annotated[float, msgspec.Meta(ge=1)] = 10.0
    """Upper bound of a weight, as a multiple of the key's share."""
    step: AboveOne = 1.25
    """Greatest factor by which a weight grows or shrinks in one publish."""
    daily: AboveOne = 4.0
    """Greatest factor between any two weights that a key has within 24 hours."""
    dead_band: NotNegative = 0.10
    """Fraction by which a weight may differ from the computed one and still stay. No weight of a
    queue moves while all stay."""
    stale_after: Positive = 2 * _HOUR
    """Age above which input is refused."""
    cool_down: NotNegative = 24 * _HOUR
    """Time after a rollback in which nothing is published in the queue."""
    canary_hours: Annotated[int, msgspec.Meta(gt=0)] = 1
    """Full hours of the canary window, compared with as many full hours before the version."""
    worse_wait: AboveOne = 1.5
    """Factor by which the wait (p99) of a key that the version does not change may grow; above it
    the version is rolled back."""
    worse_wait_seconds: NotNegative = 1.0
    """Seconds by which that wait may always grow, because a wait of milliseconds easily doubles."""
    worse_share: NotNegative = 0.05
    """Increase of the misallocated fraction of the worker time above which a version is rolled
    back."""
    headroom: AboveOne = 1.25
    """Limit of a key, as a multiple of its share of the slots in use. A multiple of 1 would lower
    the limit step by step: a key that runs alone never uses more slots than its limit, and the
    next limit follows from that use."""
    worse_use: NotNegative = 0.05
    """Fraction of the worker time that limits may leave unused. A version that leaves more unused
    is rolled back, unless other keys wait less."""
