"""The audit log: one row for each action of a person. `SqlStore.audit` returns the log."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from fairlead.ports.statements import Steps


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


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects entries; None selects any value."""

    actor: str | None = None
    verb: str | None = None
    task_id: str | None = None
    queue: str | None = None
    fairness_key: str | None = None
    action: int | None = None
    tenants: Collection[str] | None = None
    """Tenants of the fairness keys that were acted on."""


class AuditLog(Protocol):
    """Log of the actions of people. Entries are never changed."""

    def add(self, entries: Sequence[AuditDraft]) -> Steps[None]:
        """Note the actions, in the transaction that performs them."""

    def entries(
        self, where: AuditFilter, before: int | None, limit: int
    ) -> Steps[list[AuditEntry]]:
        """Return entries with an id below `before` (None for all), newest first, at most
        `limit`."""

    def has_old(self, before: int) -> Steps[bool]:
        """Return whether the oldest entry is older than this instant."""

    def clean(self, before: int, limit: int) -> Steps[int]:
        """Delete at most `limit` of the oldest entries that are older than this instant; return how
        many."""
