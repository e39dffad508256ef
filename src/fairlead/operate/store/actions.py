"""Bulk actions: changes of all tasks that match a filter, kept as rows so that they can be watched,
interrupted and resumed."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from fairlead.backends.sql.rows import batch
from fairlead.operate.store.sql import AgingRows, record
from fairlead.ports.statements import Row, SqlDatabase, Steps
from fairlead.ports.task_records import TaskFilter


class ActionState(StrEnum):
    """State of a bulk action."""

    WAITING = "waiting"
    """No process performs the action yet; a worker will."""
    RUNNING = "running"
    """A process performs the action, or did until its claim expired."""
    INTERRUPTED = "interrupted"
    """A person stopped the action; it can be resumed."""
    DONE = "done"
    FAILED = "failed"
    """An error stopped the action; it can be resumed."""


OPEN_STATES = frozenset({ActionState.WAITING, ActionState.RUNNING})
"""States of actions that a process performs, or soon will."""


class ActionDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk action to add."""

    verb: str
    """Name of the change, such as `retry`."""
    change: str
    """The change as JSON; `fairlead.operate.changes` reads it."""
    where: TaskFilter
    """Tasks that the action is about; its `older_than` is the instant at which the action was
    made, or an earlier one."""
    tenants: tuple[str, ...] | None = None
    """Tenants whose tasks the action may change; None for all."""
    most: int | None = None
    """Greatest number of tasks to look at."""
    actor: str
    asked_at: int
    """Microseconds since the epoch, as all instants here."""


class BulkAction(ActionDraft, frozen=True, kw_only=True):
    """A bulk action as it is stored. A task is looked at once, and is then changed, refused, or
    left alone because it has the new values already."""

    id: int
    unreadable: str | None = None
    """Why this version cannot read which tasks the action is about; `where` then selects none."""
    state: ActionState
    is_stopping: bool = False
    """Whether a person has asked the performer to stop."""
    version: int
    """Number of claims so far. A performer whose claim has another number changes nothing."""
    performer: str | None = None
    """Process that performs the action, or did."""
    expires_at: int | None = None
    """Instant from which another process may claim the action."""
    cursor: str | None = None
    """Id of the last task that was looked at."""
    looked: int = 0
    changed: int = 0
    refused: int = 0
    """Tasks whose state did not allow the change, or that had changed meanwhile."""
    error: str | None = None
    ended_at: int | None = None
    """Instant at which the action ended or was stopped."""


_COLUMNS = (
    "id",
    *(name for name in BulkAction.__struct_fields__ if name not in ("id", "unreadable")),
)
"""Columns of a row, in their order."""


class ActionStore(AgingRows):
    """Store of bulk actions. A change of an action is `hold`, a decision of the caller, and `save`,
    in one transaction, together with the changes of the tasks."""

    def __init__(self, database: SqlDatabase) -> None:
        super().__init__("actions.sql", database)

    def add(self, draft: ActionDraft) -> Steps[BulkAction]:
        """Store the action in WAITING, at version 0, and return it."""
        rows = yield self._statement(
            "add",
            draft.verb,
            draft.change,
            msgspec.json.encode(draft.where, enc_hook=str.__str__).decode(),
            None if draft.tenants is None else batch(draft.tenants),
            draft.most,
            draft.actor,
            draft.asked_at,
        )
        return _action(rows[0])

    def action(self, id: int) -> Steps[BulkAction | None]:
        """Return one action."""
        rows = yield self._statement("action", id)
        return _action(rows[0]) if rows else None

    def actions(
        self, before: int | None, limit: int, tenants: Collection[str] | None
    ) -> Steps[list[BulkAction]]:
        """Return actions with an id below `before` (None for all), newest first, at most `limit`.
        With `tenants`, return only actions that were limited to some of these tenants."""
        given = None if tenants is None else batch(sorted(tenants))
        return [_action(row) for row in (yield self._statement("actions", before, limit, given))]

    def unperformed(self, now: int, limit: int) -> Steps[list[BulkAction]]:
        """Return actions that are WAITING, and RUNNING ones whose claim has expired, oldest
        first."""
        return [_action(row) for row in (yield self._statement("unperformed", now, limit))]

    def hold(self, id: int, version: int | None) -> Steps[BulkAction | None]:
        """Return the action and let no other transaction hold it until the end of this one. Return
        None if it has another version; a `version` of None is any."""
        rows = yield self._statement("hold", id, version)
        return _action(rows[0]) if rows else None

    def save(self, action: BulkAction) -> Steps[None]:
        """Store the action as it is now: state, stop flag, version, performer, cursor, counts,
        error. The caller holds it."""
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


def _action(row: Row) -> BulkAction:
    where, tenants = row[3], row[4]
    unreadable = None
    try:
        selected = msgspec.json.decode(where, type=TaskFilter)
    except msgspec.MsgspecError as later:
        selected, unreadable = TaskFilter(tenants=()), str(later)
    return record(
        BulkAction,
        _COLUMNS,
        row,
        where=selected,
        unreadable=unreadable,
        tenants=None if tenants is None else msgspec.json.decode(tenants),
    )
