"""The audit log over SQL, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.model.keys import tenant_of
from fairlead.ports.audit_log import AuditDraft, AuditEntry, AuditFilter, AuditOutcome
from fairlead.ports.statements import Many, Row, SqlDatabase, Statement, Steps


class SqlAudit:
    """A `fairlead.ports.audit_log.AuditLog` in the database of a task store."""

    def __init__(self, database: SqlDatabase) -> None:
        self._sql = load("audit.sql", package_of(database))

    def add(self, entries: Sequence[AuditDraft]) -> Steps[None]:
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
        self, where: AuditFilter, before: int | None, limit: int
    ) -> Steps[list[AuditEntry]]:
        rows = yield self._statement(
            "entries",
            before,
            limit,
            where.actor,
            where.verb,
            where.task_id,
            where.queue,
            where.fairness_key,
            where.action,
            None if where.tenants is None else batch(sorted(where.tenants)),
        )
        return [_entry(row) for row in rows]

    def has_old(self, before: int) -> Steps[bool]:
        return bool((yield self._statement("has_old", before)))

    def clean(self, before: int, limit: int) -> Steps[int]:
        return len((yield self._statement("clean", before, limit)))

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)


def _entry(row: Row) -> AuditEntry:
    id, at, actor, verb, outcome, task_id, queue, fairness_key, subject, action, details = row
    return AuditEntry(
        id=id,
        at=at,
        actor=actor,
        verb=verb,
        outcome=AuditOutcome(outcome),
        task_id=task_id,
        queue=queue,
        fairness_key=fairness_key,
        subject=subject,
        action=action,
        details=details,
    )
