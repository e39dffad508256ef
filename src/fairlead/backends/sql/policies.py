"""The policy store over SQL, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.ports.notification import Notification
from fairlead.ports.policy_store import (
    KEPT_VERSIONS,
    Policy,
    PolicyDraft,
    PolicyState,
    Switch,
    SwitchMode,
    Weights,
)
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Row, Statement, Steps


class SqlPolicies:
    """A `fairlead.ports.policy_store.PolicyStore` in the database of a task store."""

    def __init__(self, tasks: SqlStore) -> None:
        self.tasks = tasks
        self._sql = load("policies.sql", package_of(tasks.database))

    def publish(self, draft: PolicyDraft, supersedes: int | None) -> Steps[int | None]:
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
        yield self._statement("judge", version, now, verdict)

    def switch(self, switch: Switch) -> Steps[None]:
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
        return bool((yield self._statement("clear_switch", queue)))

    def switches(self) -> Steps[list[Switch]]:
        rows = yield self._statement("switches")
        return [
            Switch(queue, SwitchMode(mode), author, why, at)
            for queue, mode, author, why, at in rows
        ]

    def weights(self, queue: str) -> Steps[Weights]:
        found = Weights({}, {})
        for key, weight, policy in (yield self._statement("weights", queue)):
            (found.by_person if policy is None else found.by_policy)[key] = weight
        return found

    def limits_by_person(self, queue: str) -> Steps[dict[str, int]]:
        return dict((yield self._statement("limits_by_person", queue)))  # type: ignore[arg-type]

    def policy(self, version: int) -> Steps[Policy | None]:
        rows = yield self._statement("policy", version)
        return _policy(rows[0]) if rows else None

    def policies(self, queue: str | None, limit: int) -> Steps[list[Policy]]:
        return [_policy(row) for row in (yield self._statement("policies", queue, limit))]

    def newest(self) -> Steps[dict[str, Policy]]:
        return {policy.queue: policy for policy in map(_policy, (yield self._statement("newest")))}

    # helpers --------------------------------------------------------------------------------------

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)

    def _active(self, queue: str) -> Steps[int | None]:
        rows = yield self._statement("active", queue)
        return rows[0][0] if rows else None

    def _put(self, draft: PolicyDraft, supersedes: int | None) -> Steps[int]:
        rows = yield self._statement(
            "insert",
            draft.queue,
            draft.author,
            draft.why,
            draft.computed_at,
            draft.input_from,
            draft.input_to,
            draft.input_rows,
            *map(_json, (draft.raw, draft.guarded, draft.reasons, draft.due)),
            *map(_json, (draft.raw_limits, draft.limits, draft.limit_reasons)),
            draft.is_canary,
            supersedes,
            draft.judged_at,
            draft.verdict,
        )
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
    (
        version,
        queue,
        author,
        why,
        computed_at,
        input_from,
        input_to,
        input_rows,
        raw,
        guarded,
        reasons,
        due,
        raw_limits,
        limits,
        limit_reasons,
        is_canary,
        state,
        supersedes,
        judged_at,
        verdict,
    ) = row
    return Policy(
        version=version,
        queue=queue,
        author=author,
        why=why,
        computed_at=computed_at,
        input_from=input_from,
        input_to=input_to,
        input_rows=input_rows,
        raw=msgspec.json.decode(raw),
        guarded=msgspec.json.decode(guarded),
        reasons=msgspec.json.decode(reasons),
        due=msgspec.json.decode(due),
        raw_limits=msgspec.json.decode(raw_limits),
        limits=msgspec.json.decode(limits),
        limit_reasons=msgspec.json.decode(limit_reasons),
        is_canary=bool(is_canary),
        state=PolicyState(state),
        supersedes=supersedes,
        judged_at=judged_at,
        verdict=verdict,
    )
