"""Guard rails of tuning: bounds of each change, and states in which nothing is changed."""

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


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """State of a queue when tuning runs, apart from the measurements of its keys."""

    input_age: float | None
    """Seconds since the newest attempt in the tables; None if they are empty."""
    is_known: bool = True
    """Whether the store knows the queue."""
    failed: str | None = None
    """Name and result of the check that failed."""
    incidents: tuple[str, ...] = ()
    """Incidents that are open now."""
    switch: str | None = None
    """Author and reason of the switch that stops tuning; None if no switch is set."""
    in_canary: int | None = None
    """Version whose canary window has not been judged."""
    rolled_back: tuple[int, float] | None = None
    """Last version that was rolled back, and the seconds since then."""
    canary: str | None = None
    """Queue that is tuned first and whose canary window has not ended."""


def holds(situation: Situation, guards: Guards) -> list[str]:
    """Return every reason why nothing may be published now; an empty list allows it."""
    held = []
    if situation.switch is not None:
        held.append(situation.switch)
    if not situation.is_known:
        held.append("the queue is not in the store, because no worker has served it yet")
    if situation.input_age is None:
        held.append("no input: run `fairlead pipeline ingest` and `build`")
    elif situation.input_age > guards.stale_after:
        held.append(
            f"stale input: the newest attempt in the tables is {situation.input_age / _HOUR:.1f} h"
            f" old, at most {guards.stale_after / _HOUR:.1f} h is allowed; run `fairlead pipeline"
            " ingest` and `build`"
        )
    if situation.failed is not None:
        held.append(situation.failed)
    held += [f"incident: {incident}" for incident in situation.incidents]
    if situation.in_canary is not None:
        held.append(f"version {situation.in_canary} is in its canary window")
    if situation.rolled_back is not None and situation.rolled_back[1] < guards.cool_down:
        version, ago = situation.rolled_back
        held.append(
            f"version {version} was rolled back {ago / _HOUR:.1f} h ago; tuning pauses for"
            f" {guards.cool_down / _HOUR:.0f} h after a rollback"
        )
    if situation.canary is not None:
        held.append(f"queue {situation.canary} is tuned first, and its canary window has not ended")
    return held
