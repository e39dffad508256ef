"""The audit log: one row for each action of a person."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import TypedDict

import msgspec

from fairlead.backends.sql.rows import batch
from fairlead.model.keys import tenant_of
from fairlead.operate.store.sql import AgingRows, record
from fairlead.ports.statements import Many, SqlDatabase, Steps


class AuditOutcome(StrEnum):
    """Outcome of an action of a person."""

    DONE = "done"
    ASKED = "asked"
    """The action goes on after the transaction that noted it: a bulk action, a message to the
    owner of an ordered task, a submit."""
    REFUSED = "refused"
    """The state, the version or the rights did not allow the action; nothing was changed."""


class AuditDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An action of a person, to be noted."""

    at: int
    """Microseconds since the epoch."""
    actor: str
    verb: str
    """Name of the action, such as `retry`, `pause_queue` or `set_weight`."""
    outcome: AuditOutcome = AuditOutcome.DONE
    task_id: str | None = None
    queue: str | None = None
    fairness_key: str | None = None
    subject: str | None = None
    """Name of another thing that was acted on: a periodic task, an ordered task, a policy."""
    action: int | None = None
    """Id of a bulk action."""
    details: str | None = None
    """New values, or the reason for a refusal."""


class AuditEntry(AuditDraft, frozen=True, kw_only=True):
    """An action of a person, as noted."""

    id: int


class AuditFilters(TypedDict, total=False):
    """Conditions on entries; all must hold. One that is absent or None selects any value."""

    actor: str | None
    verb: str | None
    task_id: str | None
    queue: str | None
    fairness_key: str | None
    action: int | None


class AuditLog(AgingRows):
    """Log of the actions of people. Entries are never changed."""

    def __init__(self, database: SqlDatabase) -> None:
        super().__init__("audit.sql", database)

    def add(self, entries: Sequence[AuditDraft]) -> Steps[None]:
        """Note the actions, in the transaction that performs them."""
        rows = [
            (
                each.at,
                each.actor,
                each.verb,
                each.outcome,
                each.task_id,
                each.queue,
                each.fairness_key,
                None if each.fairness_key is None else tenant_of(each.fairness_key),
                each.subject,
                each.action,
                each.details,
            )
            for each in entries
        ]
        if rows:
            yield Many(self._sql["add"], rows)

    def entries(
        self,
        filters: AuditFilters,
        tenants: Collection[str] | None,
        before: int | None,
        limit: int,
    ) -> Steps[list[AuditEntry]]:
        """Return entries with an id below `before` (None for all), newest first, at most `limit`.
        `tenants`: those of the fairness keys that were acted on, None for all."""
        rows = yield self._statement(
            "entries",
            before,
            limit,
            *(filters.get(name) for name in AuditFilters.__annotations__),
            None if tenants is None else batch(sorted(tenants)),
        )
        return [record(AuditEntry, AuditEntry.__struct_fields__, row) for row in rows]
