"""Poller of bulk actions for workers: it goes on with actions that no process performs, and deletes
old ones. See `fairlead.engine.poller`."""

from __future__ import annotations

import logging
import os
import socket

from fairlead.clock import MICROS
from fairlead.engine.poller import PollerContext
from fairlead.errors import StoreUnavailable, WriteRefused
from fairlead.operate import batches
from fairlead.operate.changes import change_of
from fairlead.operate.store.actions import ActionState, ActionStore, BulkAction
from fairlead.operate.store.audit import AuditLog
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Steps

log = logging.getLogger("fairlead.actions")

MOST_BATCHES = 100
"""Batches of one round, after which the poller asks whether it is still elected."""

MOST_DELETED = 1000
"""Rows that one round deletes from each table."""


async def perform_actions(context: PollerContext) -> float | None:
    """Perform the oldest action without a performer; return 0 while there may be more to do. Delete
    actions and audit entries that are older than the history is kept."""
    store = context.sql_store
    database, now = store.database, context.clock.now()
    actions, audit = ActionStore(database), AuditLog(database)

    def due() -> Steps[tuple[list[BulkAction], int, list[ActionStore | AuditLog]]]:
        at = yield from store.shared_clock(now)
        before = at - round(context.intervals.keep_history * MICROS)
        old: list[ActionStore | AuditLog] = []
        for each in (actions, audit):
            if (yield from each.has_old(before)):
                old.append(each)
        return (yield from actions.unperformed(at, 1)), before, old

    unperformed, before, old = await database.read(due(), together=True)
    performer = f"worker {socket.gethostname()} {os.getpid()}"
    for found in unperformed:
        action = await database.run_async(batches.claim(store, found, performer, now))
        if action is not None:
            await _perform(context, store, action)
        return 0.0
    is_more = False
    for each in old:
        deleted = await database.run_async(each.clean(before, MOST_DELETED))
        is_more = is_more or deleted == MOST_DELETED
    return 0.0 if is_more else None


async def _perform(context: PollerContext, store: SqlStore, action: BulkAction) -> None:
    """Perform at most MOST_BATCHES batches, then let any worker go on."""
    database, clock = store.database, context.clock
    try:
        change = change_of(action)
        for _ in range(MOST_BATCHES):
            found = await database.read(batches.read_page(store, action, change))
            after, notification = await database.run_async(
                batches.change_page(store, action, change, found, clock.now())
            )
            if after is None:
                return  # a person has taken the action over
            context.announce(notification)
            action = after
            if action.state != ActionState.RUNNING:
                log.info(
                    "bulk action ended",
                    extra={"action": action.id, "state": action.state.value},
                )
                return
    except Exception as error:
        if isinstance(error, StoreUnavailable) and not isinstance(error, WriteRefused):
            raise  # the claim expires, and a worker goes on
        log.exception("bulk action failed", extra={"action": action.id})
        reason = f"{type(error).__name__}: {error}"
        await database.run_async(
            batches.stop(store, action, ActionState.FAILED, clock.now(), reason)
        )
        return
    await database.run_async(batches.stop(store, action, ActionState.WAITING, clock.now()))
