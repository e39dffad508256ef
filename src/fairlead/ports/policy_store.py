"""Policies: computed weights and limits, published as numbered versions beside the weights and
limits that people set and the code declares."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from fairlead.ports.statements import Steps

EVERY_QUEUE = ""
"""Queue name of a switch that holds for all queues."""

KEPT_VERSIONS = 100
"""Versions kept of each queue; publishing one more deletes the oldest."""


class PolicyState(StrEnum):
    """State of a published version."""

    ACTIVE = "active"
    SUPERSEDED = "superseded"
    ROLLED_BACK = "rolled_back"


class SwitchMode(StrEnum):
    """Effect of the kill switch."""

    OFF = "off"
    """Only declared weights and limits are in force; nothing is published."""
    FROZEN = "frozen"
    """Published weights and limits stay in force; nothing new is published."""


class PolicyDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A version to publish. All mappings are by fairness key. A key missing from `guarded` has no
    computed weight, and a key missing from `limits` has no computed limit."""

    queue: str
    author: str
    why: str
    computed_at: int
    """Microseconds since the epoch, as all instants here."""
    input_from: int | None = None
    input_to: int | None = None
    input_rows: int = 0
    raw: Mapping[str, float] = {}
    """Weights as computed."""
    guarded: Mapping[str, float] = {}
    """Weights to put in force: `raw` within the guard rails."""
    reasons: Mapping[str, str] = {}
    """Reasons for the changes from `raw` to `guarded`."""
    due: Mapping[str, float] = {}
    """Due shares that the version was computed for. The due share of a missing key is the weight of
    its tasks."""
    raw_limits: Mapping[str, float] = {}
    """Limits as computed."""
    limits: Mapping[str, int] = {}
    """Limits to put in force: maximum number of tasks of the key at once on each node; at least 1.
    A limit declared in code holds as well."""
    limit_reasons: Mapping[str, str] = {}
    is_canary: bool = False
    """Whether other queues wait for the verdict on this version."""
    judged_at: int | None = None
    """When the canary window ended (microseconds since the epoch); None while it runs."""
    verdict: str | None = None


class Policy(PolicyDraft, frozen=True, kw_only=True):
    """A published version and its state."""

    version: int
    """Ascending over all queues."""
    state: PolicyState
    supersedes: int | None
    """Version in force before this one; None if the declared weights were in force."""


class Switch(NamedTuple):
    """A kill switch that a person has set."""

    queue: str
    """Name of a queue, or EVERY_QUEUE."""
    mode: SwitchMode
    author: str
    why: str
    at: int
    """Instant at which it was set, in microseconds since the epoch."""


class Weights(NamedTuple):
    """Weights of a queue, by fairness key, that replace the weights of tasks."""

    by_person: dict[str, float]
    by_policy: dict[str, float]


class PolicyStore(Protocol):
    """Store of the versions of computed weights and limits. Each change of a queue's weights or
    limits raises its `QueueSettings.version` in the same transaction, so that running nodes read
    the new weights and limits at their next heartbeat. Times are microseconds since the epoch."""

    def publish(self, draft: PolicyDraft, supersedes: int | None) -> Steps[int | None]:
        """Put the draft's weights and limits in force, replacing all computed ones; return the
        version. A key keeps the weight and the limit that a person has set for it. Return None and
        change nothing if the queue is unknown, switched off or frozen, or if `supersedes` is not
        the version in force."""

    def roll_back(self, draft: PolicyDraft, version: int, verdict: str) -> Steps[int | None]:
        """Put the weights and limits that were in force before `version` back, as a new version;
        return its number. Mark `version`, which must be in force, as ROLLED_BACK with the verdict
        as reason. Return None and change nothing where `publish` would, except that a frozen queue
        is rolled back too; a queue that is switched off has no version to roll back."""

    def judge(self, version: int, verdict: str, now: int) -> Steps[None]:
        """Record that the canary window of the version in force is over and that it stays."""

    def switch(self, switch: Switch) -> Steps[None]:
        """Set the kill switch. OFF removes all computed weights and limits and rolls back the
        version in force."""

    def switch_on(self, queue: str) -> Steps[bool]:
        """Remove the kill switch; return False if none was set."""

    def switches(self) -> Steps[list[Switch]]:
        """Return all switches that are set."""

    def weights(self, queue: str) -> Steps[Weights]:
        """Return the weights of a queue, those of people separate from those of the policy."""

    def limits_by_person(self, queue: str) -> Steps[dict[str, int]]:
        """Return the limits of a queue that people have set, by fairness key."""

    def policy(self, version: int) -> Steps[Policy | None]:
        """Return one version, or None if it is unknown."""

    def policies(self, queue: str | None, limit: int) -> Steps[list[Policy]]:
        """Return at most `limit` versions of a queue (None for all queues), newest first."""

    def newest(self) -> Steps[dict[str, Policy]]:
        """Return the newest version of each queue that has any."""
