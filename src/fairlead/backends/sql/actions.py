"""The store of bulk actions over SQL, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.ports.action_store import ActionDraft, ActionState, BulkAction
from fairlead.ports.statements import Row, SqlDatabase, Statement, Steps
from fairlead.ports.task_records import TaskFilter


class SqlActions:
    """A `fairlead.ports.action_store.ActionStore` in the database of a task store."""

    def __init__(self, database: SqlDatabase) -> None:
        self._sql = load("actions.sql", package_of(database))

    def add(self, draft: ActionDraft) -> Steps[BulkAction]:
        rows = yield self._statement(
            "add",
            draft.verb,
            draft.change,
            msgspec.json.encode(draft.where).decode(),
            None if draft.tenants is None else batch(draft.tenants),
            draft.most,
            draft.actor,
            draft.asked_at,
        )
        return _action(rows[0])

    def action(self, id: int) -> Steps[BulkAction | None]:
        rows = yield self._statement("action", id)
        return _action(rows[0]) if rows else None

    def actions(
        self, before: int | None, limit: int, tenants: Collection[str] | None
    ) -> Steps[list[BulkAction]]:
        given = None if tenants is None else batch(sorted(tenants))
        return [_action(row) for row in (yield self._statement("actions", before, limit, given))]

    def unperformed(self, now: int, limit: int) -> Steps[list[BulkAction]]:
        return [_action(row) for row in (yield self._statement("unperformed", now, limit))]

    def hold(self, id: int, version: int | None) -> Steps[BulkAction | None]:
        rows = yield self._statement("hold", id, version)
        return _action(rows[0]) if rows else None

    def save(self, action: BulkAction) -> Steps[None]:
        yield self._statement(
            "save",
            action.id,
            action.state,
            action.is_stopping,
            action.version,
            action.performer,
            action.expires_at,
            action.cursor,
            action.looked,
            action.changed,
            action.refused,
            action.error,
            action.ended_at,
        )

    def has_old(self, before: int) -> Steps[bool]:
        return bool((yield self._statement("has_old", before)))

    def clean(self, before: int, limit: int) -> Steps[int]:
        return len((yield self._statement("clean", before, limit)))

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)


def _action(row: Row) -> BulkAction:
    (
        id,
        verb,
        change,
        where,
        tenants,
        most,
        actor,
        asked_at,
        state,
        is_stopping,
        version,
        performer,
        expires_at,
        cursor,
        looked,
        changed,
        refused,
        error,
        ended_at,
    ) = row
    unreadable = None
    try:
        selected = msgspec.json.decode(where, type=TaskFilter)
    except msgspec.MsgspecError as later:
        selected, unreadable = TaskFilter(tenants=()), str(later)
    return BulkAction(
        id=id,
        unreadable=unreadable,
        verb=verb,
        change=change,
        where=selected,
        tenants=None if tenants is None else msgspec.json.decode(tenants, type=tuple[str, ...]),
        most=most,
        actor=actor,
        asked_at=asked_at,
        state=ActionState(state),
        is_stopping=bool(is_stopping),
        version=version,
        performer=performer,
        expires_at=expires_at,
        cursor=cursor,
        looked=looked,
        changed=changed,
        refused=refused,
        error=error,
        ended_at=ended_at,
    )
