"""The audit log of people: it notes each action in the transaction that performs it, and lists the
actions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, Unpack

from fairlead.core import values
from fairlead.errors import InvalidTask, NotSupported
from fairlead.operate.context import OperateContext
from fairlead.operate.filters import scope_of
from fairlead.operate.store.audit import AuditDraft, AuditEntry, AuditFilters, AuditLog
from fairlead.ports.statements import Steps

T = TypeVar("T")


class Recorder:
    """Notes the actions of people in the audit log, if the store is a SQL database."""

    def __init__(self, context: OperateContext) -> None:
        self._context = context

    def noted(self, steps: Steps[T], entries: Callable[[T], Sequence[AuditDraft]]) -> Steps[T]:
        """Run the steps, and note the actions that `entries` returns for their result."""
        result = yield from steps
        log = self._log()
        if log is not None:
            yield from log.add(entries(result))
        return result

    def run(self, steps: Steps[T], actor: str, verb: str, **about: Any) -> T:
        """Run the steps of an action in one transaction, which notes the action if they return that
        something was done; return their result. Raise InvalidTask for a name that is no text."""
        entry = self.entry(actor, verb, **about)
        noted = self.noted(steps, lambda done: [entry] if done else [])
        return self._context.cluster.database.run(noted)

    def note(self, entry: AuditDraft) -> None:
        """Note an action in a transaction of its own."""
        log = self._log()
        if log is not None:
            self._context.cluster.database.run(log.add([entry]))

    def entry(
        self,
        actor: str,
        verb: str,
        **about: Any,
    ) -> AuditDraft:
        """Return an entry for an action of now; `about` has other fields of the entry. Raise
        InvalidTask for a name that is no text."""
        now = self._context.clock.now()
        return AuditDraft(at=now, actor=checked_actor(actor), verb=verb, **about)

    def _log(self) -> AuditLog | None:
        try:
            return AuditLog(self._context.sql_store.database)
        except NotSupported:
            return None


class AuditManagement:
    """Reads the audit log. Raises NotSupported where tasks are not in a SQL database."""

    def __init__(self, context: OperateContext) -> None:
        store = context.sql_store
        self._log = AuditLog(store.database)
        self._database = store.database

    def list(
        self,
        *,
        tenants: Collection[str] | None = None,
        before: int | None = None,
        limit: int = 100,
        **filters: Unpack[AuditFilters],
    ) -> list[AuditEntry]:
        """Return the actions of people, newest first, at most `limit`, with an id below `before`.
        Raise InvalidTask for a value that no entry can have."""
        if unknown := set(filters) - set(AuditFilters.__annotations__):
            raise InvalidTask(f"filters {', '.join(sorted(unknown))} are unknown")
        for what, given in {**filters, "before": before}.items():
            if given is None:
                continue
            if what in ("action", "before"):
                values.whole(what, given, 0, values.MOST_COUNT, InvalidTask)
            else:
                values.text(what, given, may_be_empty=True, error=InvalidTask)
        values.whole("limit", limit, 0, values.MOST_ROWS, InvalidTask)
        return self._database.read_now(self._log.entries(filters, scope_of(tenants), before, limit))


def checked_actor(actor: str) -> str:
    """Return the name of a person. Raise InvalidTask if it is no text."""
    return values.text("actor", actor, may_be_empty=True, error=InvalidTask)
