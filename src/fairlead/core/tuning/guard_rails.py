"""The guard rails of the feedback: numbers that bound each change, and states in which nothing is
changed at all."""

from __future__ import annotations

import msgspec

from fairlead.errors import ConfigurationError

_HOUR = 3600.0


class Guards(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the feedback may go. Times in seconds. Raises ConfigurationError for a number that
    makes no sense."""

    half_life: float = 24 * _HOUR
    """What was used so long ago counts half."""
    prior_tasks: float = 30.0
    """A key's mean run time is drawn to the queue's as if so many more of its tasks had run like
    the queue's."""
    least_tasks: int = 100
    """A key with fewer is not touched."""
    least_time: float = 2 * _HOUR
    """Nor is one that had tasks in less time than this."""
    lowest: float = 0.1
    """No weight goes below this multiple of the key's due."""
    highest: float = 10.0
    """Nor above this one."""
    step: float = 1.25
    """No weight grows or shrinks by more than this factor in one publish."""
    dead_band: float = 0.10
    """A weight so near to what it should be, by ratio, stays."""
    stale_after: float = 2 * _HOUR
    """Input older than this is refused."""
    cool_down: float = 24 * _HOUR
    """Nothing is published in a queue for so long after a version was rolled back."""
    trial_hours: int = 1
    """A version is compared over so many full hours with as many before it."""
    worse_wait: float = 1.5
    """Rolled back when a key that was not touched waits this many times as long (p99)."""
    worse_wait_seconds: float = 1.0
    """And this much longer: a wait of milliseconds may double."""
    worse_share: float = 0.05
    """Rolled back when this much more of the worker time goes to others than it was due to."""
    headroom: float = 1.25
    """A limit is this multiple of the slots that are due to the key. Above 1, or limits would
    tighten by themselves: a key at its limit is due what it gets, as long as nobody else asks for
    more."""
    worse_use: float = 0.05
    """Rolled back when limits leave this part of the worker time unused and nobody waits less for
    it."""

    def __post_init__(self) -> None:
        positive = (
            "half_life",
            "prior_tasks",
            "least_time",
            "stale_after",
            "trial_hours",
            "lowest",
        )
        wrong = [name for name in positive if not getattr(self, name) > 0]
        not_negative = (
            "least_tasks",
            "dead_band",
            "cool_down",
            "worse_wait_seconds",
            "worse_share",
            "worse_use",
        )
        wrong += [name for name in not_negative if not getattr(self, name) >= 0]
        wrong += [
            name for name in ("step", "worse_wait", "headroom") if not getattr(self, name) > 1
        ]
        if not self.lowest <= 1 <= self.highest:
            wrong.append("lowest and highest")
        if wrong:
            raise ConfigurationError(
                f"guard rails: {', '.join(wrong)} out of range; step, worse_wait and headroom are"
                " above 1, lowest <= 1 <= highest, the others positive"
            )


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when the feedback runs, beside the numbers of the keys."""

    input_age: float | None
    """Seconds since the newest attempt that the tables know; None: they know none."""
    is_known: bool = True
    """Whether the store knows the queue."""
    failed: str | None = None
    """What failed its checks."""
    incidents: tuple[str, ...] = ()
    """What is going wrong just now."""
    switch: str | None = None
    """Who has switched the feedback off, or frozen it, and why."""
    on_trial: int | None = None
    """The version that has not been judged yet."""
    rolled_back: tuple[int, float] | None = None
    """The last version that was rolled back, and how many seconds ago."""
    canary: str | None = None
    """The queue that goes first and has not come through."""


def holds(situation: Situation, guards: Guards) -> list[str]:
    """Every reason why nothing may be published now; none: go on."""
    held = []
    if situation.switch is not None:
        held.append(situation.switch)
    if not situation.is_known:
        held.append("the store does not know this queue: no worker has served it yet")
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
    if situation.on_trial is not None:
        held.append(f"version {situation.on_trial} is on trial")
    if situation.rolled_back is not None and situation.rolled_back[1] < guards.cool_down:
        version, ago = situation.rolled_back
        held.append(
            f"version {version} was rolled back {ago / _HOUR:.1f} h ago:"
            f" {guards.cool_down / _HOUR:.0f} h of rest"
        )
    if situation.canary is not None:
        held.append(f"queue {situation.canary} goes first, and has not come through its trial")
    return held
