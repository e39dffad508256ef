"""Policies: weights and limits that were computed, published as numbered versions beside what
people set and the code declares."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from fairlead.ports.statements import Steps

EVERY_QUEUE = ""
"""A switch of this name holds for all queues."""

KEPT_VERSIONS = 100
"""So many versions of a queue are kept; what is older goes when another one is published."""


class PolicyState(StrEnum):
    """Where a version stands."""

    ACTIVE = "active"
    SUPERSEDED = "superseded"
    ROLLED_BACK = "rolled_back"


class SwitchMode(StrEnum):
    """What the kill switch does."""

    OFF = "off"
    """Declared weights and limits count, nothing is published."""
    FROZEN = "frozen"
    """What was published counts on, nothing more is published."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A version to be published. Weights by fairness key; a key that is not in `guarded` has no
    computed weight, one that is not in `limits` no computed limit."""

    queue: str
    author: str
    why: str
    computed_at: int
    """Microseconds, like all instants here."""
    input_from: int | None = None
    input_to: int | None = None
    input_rows: int = 0
    raw: Mapping[str, float] = {}
    guarded: Mapping[str, float] = {}
    reasons: Mapping[str, str] = {}
    due: Mapping[str, float] = {}
    """Contracts it was computed for; the weight of its tasks is due to every other key."""
    raw_limits: Mapping[str, float] = {}
    limits: Mapping[str, int] = {}
    """Slots of each node that tasks of the key may hold at once; at least 1. A limit in the code
    counts beside it."""
    limit_reasons: Mapping[str, str] = {}
    is_canary: bool = False
    """Other queues wait for its trial."""
    judged_at: int | None = None
    """None: it is on trial."""
    verdict: str | None = None


class Policy(Draft, frozen=True, kw_only=True):
    """A version as it was published, and what became of it."""

    version: int
    """Ascending over all queues."""
    state: PolicyState
    supersedes: int | None
    """The version that counted before; None: the declared weights did."""


class Switch(NamedTuple):
    """The kill switch as somebody has set it."""

    queue: str
    """EVERY_QUEUE: all of them."""
    mode: SwitchMode
    author: str
    why: str
    at: int


class Weights(NamedTuple):
    """The weights of a queue that count instead of the tasks' own."""

    by_person: dict[str, float]
    by_policy: dict[str, float]


class PolicyStore(Protocol):
    """Versions of computed weights and limits. Whatever changes them raises the queue's
    `weights_version` in the same transaction, so that running nodes read both with their next
    heartbeat."""

    def publish(self, draft: Draft, supersedes: int | None) -> Steps[int | None]:
        """Let these weights and limits count, and no others that were computed; answers the
        version. A key whose weight a person has set keeps it. None, and nothing changes: the queue
        is unknown, switched off or frozen, or `supersedes` is not the version that counts now."""

    def roll_back(self, draft: Draft, version: int, verdict: str) -> Steps[int | None]:
        """The same, for what counted before; `version`, which must count now, is ROLLED_BACK for
        this reason. A queue that is frozen goes back all the same; one that is switched off has
        nothing to go back from."""

    def judge(self, version: int, verdict: str, now: int) -> Steps[None]:
        """The trial of a version that counts is over, and it stays."""

    def switch(self, switch: Switch) -> Steps[None]:
        """Set the kill switch. OFF takes all computed weights and limits away, and rolls back what
        counts."""

    def switch_on(self, queue: str) -> Steps[bool]:
        """Take it back; False when it was not set."""

    def switches(self) -> Steps[list[Switch]]:
        """All that are set."""

    def weights(self, queue: str) -> Steps[Weights]:
        """Who set which weight."""

    def policy(self, version: int) -> Steps[Policy | None]:
        """One version."""

    def policies(self, queue: str | None, limit: int) -> Steps[list[Policy]]:
        """Of a queue, or of all: newest first, at most `limit`."""

    def newest(self) -> Steps[dict[str, Policy]]:
        """The newest version of each queue that has any."""
