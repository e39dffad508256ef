"""Policies: computed weights and limits, published as numbered versions beside the weights and
limits that people set and the code declares."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from fairlead.backends.sql.rows import batch
from fairlead.operate.store.sql import StatementFile, record
from fairlead.ports.notification import Notification
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Row, Steps

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


_COLUMNS = ("version", *PolicyDraft.__struct_fields__, "state", "supersedes")
"""Columns of a row, in their order."""
MAPS = ("raw", "guarded", "reasons", "due", "raw_limits", "limits", "limit_reasons")
"""Columns of JSON: the weights, limits and reasons of a version, by fairness key."""


class PolicyStore(StatementFile):
    """Store of the versions of computed weights and limits. Each change of a queue's weights or
    limits raises its `QueueSettings.version` in the same transaction, so that running nodes read
    the new weights and limits at their next heartbeat. Times are microseconds since the epoch."""

    def __init__(self, tasks: SqlStore) -> None:
        self.tasks = tasks
        super().__init__("policies.sql", tasks.database)

    def publish(self, draft: PolicyDraft, supersedes: int | None) -> Steps[int | None]:
        """Put the draft's weights and limits in force, replacing all computed ones; return the
        version. A key keeps the weight and the limit that a person has set for it. Return None and
        change nothing if the queue is unknown, switched off or frozen, or if `supersedes` is not
        the version in force."""
        yield self.tasks.statement("change_queues")
        if not (yield self._statement("lock", draft.queue)):
            return None
        if (yield self._statement("is_switched", draft.queue, "")):
            return None
        if (yield from self._active(draft.queue)) != supersedes:
            return None
        if supersedes is not None:
            yield self._statement(
                "end", supersedes, PolicyState.SUPERSEDED, draft.computed_at, None
            )
        return (yield from self._put(draft, supersedes))

    def roll_back(self, draft: PolicyDraft, version: int, verdict: str) -> Steps[int | None]:
        """Put the weights and limits that were in force before `version` back, as a new version;
        return its number. Mark `version`, which must be in force, as ROLLED_BACK with the verdict
        as reason. Return None and change nothing where `publish` would, except that a frozen queue
        is rolled back too; a queue that is switched off has no version to roll back."""
        yield self.tasks.statement("change_queues")
        if not (yield self._statement("lock", draft.queue)):
            return None
        if (yield self._statement("is_switched", draft.queue, SwitchMode.OFF)):
            return None
        if (yield from self._active(draft.queue)) != version:
            return None
        yield self._statement("end", version, PolicyState.ROLLED_BACK, draft.computed_at, verdict)
        return (yield from self._put(draft, version))

    def judge(self, version: int, verdict: str, now: int) -> Steps[None]:
        """Record that the canary window of the version in force is over and that it stays."""
        yield self._statement("judge", version, now, verdict)

    def switch(self, switch: Switch) -> Steps[None]:
        """Set the kill switch. OFF removes all computed weights and limits and rolls back the
        version in force."""
        yield self._statement("set_switch", *switch)
        if switch.mode == SwitchMode.OFF:
            # Lock the queues after the switch is set: an earlier publish has committed when we get
            # the lock, and a later one is refused.
            yield self.tasks.statement("change_queues")
            yield self._statement("lock_some", switch.queue)
            yield self._statement(
                "end_some",
                switch.queue,
                switch.at,
                f"switched off by {switch.author}: {switch.why}",
            )
            yield self._statement("clear_weights", switch.queue)
            yield self._statement("clear_limits", switch.queue)
            yield from self.tasks.announce(Notification(control=True))

    def switch_on(self, queue: str) -> Steps[bool]:
        """Remove the kill switch; return False if none was set."""
        return bool((yield self._statement("clear_switch", queue)))

    def switches(self) -> Steps[list[Switch]]:
        """Return all switches that are set."""
        rows = yield self._statement("switches")
        return [
            Switch(queue, SwitchMode(mode), author, why, at)
            for queue, mode, author, why, at in rows
        ]

    def weights(self, queue: str) -> Steps[Weights]:
        """Return the weights of a queue, those of people separate from those of the policy."""
        found = Weights({}, {})
        for key, weight, policy in (yield self._statement("weights", queue)):
            (found.by_person if policy is None else found.by_policy)[key] = weight
        return found

    def limits_by_person(self, queue: str) -> Steps[dict[str, int]]:
        """Return the limits of a queue that people have set, by fairness key."""
        return dict((yield self._statement("limits_by_person", queue)))  # type: ignore[arg-type]

    def policy(self, version: int) -> Steps[Policy | None]:
        """Return one version, or None if it is unknown."""
        rows = yield self._statement("policy", version)
        return _policy(rows[0]) if rows else None

    def policies(self, queue: str | None, limit: int) -> Steps[list[Policy]]:
        """Return at most `limit` versions of a queue (None for all queues), newest first."""
        return [_policy(row) for row in (yield self._statement("policies", queue, limit))]

    def newest(self) -> Steps[dict[str, Policy]]:
        """Return the newest version of each queue that has any."""
        return {policy.queue: policy for policy in map(_policy, (yield self._statement("newest")))}

    # helpers --------------------------------------------------------------------------------------

    def _active(self, queue: str) -> Steps[int | None]:
        rows = yield self._statement("active", queue)
        return rows[0][0] if rows else None

    def _put(self, draft: PolicyDraft, supersedes: int | None) -> Steps[int]:
        values = asdict(draft) | {name: _json(getattr(draft, name)) for name in MAPS}
        rows = yield self._statement("insert", *values.values(), supersedes)
        version: int = rows[0][0]
        yield self._statement("clear_weights", draft.queue)
        yield self._statement(
            "put_weights", draft.queue, version, batch(sorted(draft.guarded.items()))
        )
        yield self._statement("clear_limits", draft.queue)
        yield self._statement(
            "put_limits", draft.queue, version, batch(sorted(draft.limits.items()))
        )
        yield self._statement("drop_old", draft.queue, KEPT_VERSIONS)
        yield from self.tasks.announce(Notification(control=True))
        return version


def _json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


def _policy(row: Row) -> Policy:
    values = dict(zip(_COLUMNS, row, strict=True))
    maps = {name: msgspec.json.decode(values[name]) for name in MAPS}
    return record(Policy, _COLUMNS, row, **maps)
