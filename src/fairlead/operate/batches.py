"""Batches of a bulk action: which tasks each batch changes, and the transaction that changes them.

A performer claims an action, reads a page of tasks, and changes them in one transaction with the
row of the action. A performer that lost its claim, or whose page is old, changes nothing. So each
task is looked at and counted once, wherever a performer dies.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from fairlead.clock import MICROS
from fairlead.core import values
from fairlead.errors import InvalidTask, NotAllowed
from fairlead.model import FINAL_STATES, TaskRecord, tenant_of
from fairlead.operate.changes import (
    Change,
    KeyChange,
    NewValues,
    StoredChange,
    as_text,
    check_change,
    check_key_change,
)
from fairlead.operate.filters import scope_of
from fairlead.operate.store.actions import (
    OPEN_STATES,
    ActionDraft,
    ActionState,
    ActionStore,
    BulkAction,
)
from fairlead.ports.notification import Notification
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Steps
from fairlead.ports.task_records import TaskFilter

MOST_CHANGED = 500
"""Greatest number of tasks that one transaction of a bulk action changes."""

CLAIM_SECONDS = 30.0
"""Seconds after its last batch from which another process may go on with an action."""


class Judged(NamedTuple):
    """Tasks of one page that an action changes, and what it counts and notes of the page."""

    allowed: list[TaskRecord]
    """Tasks whose state allows the change."""
    fit: list[TaskRecord]
    """Tasks to change: those of `allowed` that would differ afterwards."""
    looked: int
    refused: int
    """Tasks whose state does not allow the change."""
    cursor: str | None
    is_last: bool


# values -------------------------------------------------------------------------------------------


def draft_of(
    change: Change,
    where: TaskFilter | None,
    limit: int | None,
    tenants: Collection[str] | None,
    now: int,
) -> ActionDraft:
    """Return the bulk action of a person. Raise InvalidTask for a wrong change, filter or limit,
    and the state of finished tasks; NotAllowed for a fairness key of another tenant."""
    check_change(change)
    if not isinstance(where, TaskFilter):
        raise InvalidTask(f"where {values.brief(where)}: use a TaskFilter")
    check_scope(change, tenants)
    if limit is not None:
        values.whole("limit", limit, 0, values.MOST_COUNT, InvalidTask)
    if where.state in FINAL_STATES:
        raise InvalidTask(f"state {where.state}: finished tasks cannot be {change.done}")
    scope = scope_of(tenants)
    within = where.tenants if scope is None else tuple(sorted(scope))
    if scope is not None and where.tenants is not None:
        within = tuple(sorted(scope & {*where.tenants}))
    # Tasks that arrive meanwhile are not meant.
    before = now + 1 if where.older_than is None else min(where.older_than, now + 1)
    where = msgspec.structs.replace(where, older_than=before, tenants=within)
    return ActionDraft(
        verb=change.verb,
        change=as_text(change),
        where=where,
        tenants=None if scope is None else tuple(sorted(scope)),
        most=limit,
        actor=change.actor,
        asked_at=now,
    )


def key_draft_of(change: KeyChange, now: int) -> ActionDraft:
    """Return the bulk action of a person on keys. Raise InvalidTask for a wrong change."""
    check_key_change(change)
    return ActionDraft(
        verb=change.verb,
        change=as_text(change),
        where=TaskFilter(queue=change.queue),
        actor=change.actor,
        asked_at=now,
    )


def unstored(draft: ActionDraft) -> BulkAction:
    """Return the draft as a running action that no store has."""
    return BulkAction(**msgspec.structs.asdict(draft), id=0, state=ActionState.RUNNING, version=0)


def check_scope(change: Change, tenants: Collection[str] | None) -> None:
    """Raise NotAllowed for a change that gives tasks a fairness key of a tenant outside of
    `tenants`. Raise InvalidTask for tenants that are no set of names."""
    scope = scope_of(tenants)
    if scope is None or not isinstance(change, NewValues) or change.fairness_key is None:
        return
    if tenant_of(change.fairness_key) not in scope:
        raise NotAllowed(
            f"fairness_key {values.brief(change.fairness_key)}: you may use keys of"
            f" {', '.join(sorted(scope)) or 'no tenant'} only"
        )


def page_size(action: BulkAction) -> int:
    """Return how many tasks the next page has at most."""
    if action.most is None:
        return MOST_CHANGED
    return min(MOST_CHANGED, action.most - action.looked)


def rest_of(action: BulkAction) -> TaskFilter:
    """Return the filter of the tasks that the action has not looked at yet."""
    return msgspec.structs.replace(action.where, after=action.cursor or action.where.after)


def judge(action: BulkAction, change: Change, found: Sequence[TaskRecord]) -> Judged:
    """Return what this page of `page_size` tasks means for the action."""
    size = page_size(action)
    is_last = len(found) < size or (
        action.most is not None and action.looked + len(found) >= action.most
    )
    cursor = found[-1].id if found else action.cursor
    allowed = [task for task in found if task.state in change.states]
    fit = [task for task in allowed if change.concerns(task)]
    return Judged(allowed, fit, len(found), len(found) - len(allowed), cursor, is_last)


def advanced(action: BulkAction, page: Judged, changed: int) -> BulkAction:
    """Return the action after a page of which so many tasks were changed."""
    return msgspec.structs.replace(
        action,
        cursor=page.cursor,
        looked=action.looked + page.looked,
        changed=action.changed + changed,
        refused=action.refused + page.refused + len(page.fit) - changed,
    )


def claimed(action: BulkAction, performer: str, at: int) -> BulkAction:
    """Return the action as this performer performs it from now on."""
    return msgspec.structs.replace(
        action,
        state=ActionState.RUNNING,
        is_stopping=False,
        version=action.version + 1,
        performer=performer,
        expires_at=at + round(CLAIM_SECONDS * MICROS),
        error=None,
        ended_at=None,
    )


def stopped(
    action: BulkAction, state: ActionState, at: int, error: str | None = None
) -> BulkAction:
    """Return the action in a state in which no process performs it."""
    return msgspec.structs.replace(
        action,
        state=state,
        is_stopping=False,
        expires_at=None,
        error=error,
        ended_at=None if state in OPEN_STATES else at,
    )


def is_free(action: BulkAction, at: int) -> bool:
    """Return whether an open action has no performer with a claim."""
    return action.state == ActionState.WAITING or (
        action.state == ActionState.RUNNING and (action.expires_at or 0) <= at
    )


# transactions -------------------------------------------------------------------------------------


def claim(
    store: SqlStore, action: BulkAction, performer: str, now: int
) -> Steps[BulkAction | None]:
    """Claim an action that has no performer; return None if another process was faster, or a person
    has stopped it."""
    yield from store.bound_pauses(CLAIM_SECONDS)
    at = yield from store.shared_clock(now)
    held = yield from ActionStore(store.database).hold(action.id, action.version)
    if held is None or not is_free(held, at):
        return None
    if held.is_stopping:
        yield from ActionStore(store.database).save(
            msgspec.structs.replace(
                stopped(held, ActionState.INTERRUPTED, at), version=held.version + 1
            )
        )
        return None
    mine = claimed(held, performer, at)
    yield from ActionStore(store.database).save(mine)
    return mine


def read_page(store: SqlStore, action: BulkAction, change: StoredChange) -> Steps[list[TaskRecord]]:
    """Return the tasks that the next batch looks at; none for a change of keys, which names
    them."""
    if isinstance(change, KeyChange):
        return []
    return (yield from store.tasks(rest_of(action), page_size(action)))


def change_page(
    store: SqlStore, action: BulkAction, change: StoredChange, found: Sequence[TaskRecord], now: int
) -> Steps[tuple[BulkAction | None, Notification]]:
    """Change the tasks of a page that `action` read; return the action afterwards, and what to
    announce. The action is None, and nothing is changed, if the claim is lost."""
    # A performer that is stopped within the transaction would keep others from its tasks.
    yield from store.bound_pauses(CLAIM_SECONDS)
    at = yield from store.shared_clock(now)
    held = yield from ActionStore(store.database).hold(action.id, action.version)
    if held is None or held.state != ActionState.RUNNING:
        return None, Notification()
    if held.is_stopping:
        after = stopped(held, ActionState.INTERRUPTED, at)
        yield from ActionStore(store.database).save(after)
        return after, Notification()
    if held.cursor != action.cursor:
        return held, Notification()
    notification = Notification()
    if isinstance(change, KeyChange):
        after, is_last = yield from _set_keys(store, held, change)
        notification = Notification(control=True)
    else:
        page = judge(action, change, found)
        changed: Collection[str] = ()
        if page.fit:
            changed, notification = yield from change.steps(store, page.fit, now)
        after, is_last = advanced(held, page, len(changed)), page.is_last
    after = msgspec.structs.replace(after, expires_at=at + round(CLAIM_SECONDS * MICROS))
    if is_last:
        after = stopped(after, ActionState.DONE, at)
    yield from ActionStore(store.database).save(after)
    return after, notification


def _set_keys(
    store: SqlStore, held: BulkAction, change: KeyChange
) -> Steps[tuple[BulkAction, bool]]:
    """Set the weight or limit of the next keys; return the action afterwards, and whether these
    are the last. Its cursor is the number of keys before."""
    past = min(held.looked + MOST_CHANGED, len(change.keys))
    keys = change.keys[held.looked : past]
    changed = yield from change.steps(store, keys)
    after = msgspec.structs.replace(
        held, cursor=str(past), looked=past, changed=held.changed + changed
    )
    return after, past == len(change.keys)


def stop(
    store: SqlStore, action: BulkAction, state: ActionState, now: int, error: str | None = None
) -> Steps[BulkAction | None]:
    """End this performer's claim, and leave the action in `state`. Return None, and change nothing,
    if the claim is lost or the action has ended."""
    at = yield from store.shared_clock(now)
    held = yield from ActionStore(store.database).hold(action.id, action.version)
    if held is None or held.state != ActionState.RUNNING:
        return None
    if held.is_stopping and state == ActionState.WAITING:
        state = ActionState.INTERRUPTED
    after = stopped(held, state, at, error)
    yield from ActionStore(store.database).save(after)
    return after
