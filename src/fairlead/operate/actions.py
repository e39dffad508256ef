"""Commands for bulk actions: preview, start, perform, interrupt and resume a change of all tasks
that match a filter."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection

import msgspec

from fairlead.core import values
from fairlead.errors import (
    InvalidTask,
    NotAllowed,
    StoreUnavailable,
    UnknownAction,
    WriteRefused,
)
from fairlead.model import TaskRecord
from fairlead.operate import batches
from fairlead.operate.audit import Recorder, checked_actor
from fairlead.operate.changes import (
    A_PERSON,
    Change,
    KeyChange,
    StoredChange,
    change_of,
    from_text,
)
from fairlead.operate.context import OperateContext, unknown_queue
from fairlead.operate.filters import scope_of
from fairlead.operate.store.actions import (
    OPEN_STATES,
    ActionDraft,
    ActionState,
    ActionStore,
    BulkAction,
)
from fairlead.operate.store.audit import AuditLog, AuditOutcome
from fairlead.ports.statements import Steps
from fairlead.ports.task_records import TaskFilter

MOST_COUNTED = 1000
"""Tasks that a preview counts; more are "more"."""

MOST_PREVIEWED = 10_000
"""Tasks that a preview looks at."""

MOST_FIRST = 5
"""First tasks, or names, that a preview shows."""


class Preview(msgspec.Struct, frozen=True):
    """Number of tasks that an action would change now, and the first of them."""

    changed: int
    is_more: bool
    """Whether more tasks than `changed` may be changed."""
    refused: int
    """Tasks, among those looked at, whose state does not allow the change."""
    first: list[TaskRecord]
    """The first tasks that would be changed."""


class ActionManagement:
    """Commands for bulk actions. Raise NotSupported where tasks are not in a SQL database.

    `tenants` limits each command to the tasks of these tenants, and to actions that are limited to
    some of them; None stands for all.
    """

    def __init__(self, context: OperateContext) -> None:
        self._context = context
        self._store = context.sql_store
        self._actions = ActionStore(self._store.database)
        self._audit = AuditLog(self._store.database)
        self._database = self._store.database
        self._recorder = Recorder(context)

    # looking --------------------------------------------------------------------------------------

    def list(
        self,
        *,
        before: int | None = None,
        limit: int = 50,
        tenants: Collection[str] | None = None,
    ) -> list[BulkAction]:
        """Return actions with an id below `before`, newest first, at most `limit`. Raise
        InvalidTask for a number out of range."""
        if before is not None:
            values.whole("before", before, 0, values.MOST_COUNT, InvalidTask)
        values.whole("limit", limit, 0, values.MOST_ROWS, InvalidTask)
        scope = scope_of(tenants)
        return self._database.read_now(self._actions.actions(before, limit, scope))

    def show(self, id: int, *, tenants: Collection[str] | None = None) -> BulkAction:
        """Return one action. Raise UnknownAction."""
        values.whole("id", id, 0, values.MOST_COUNT, InvalidTask)
        scope_of(tenants)
        return _visible(id, self._database.read_now(self._actions.action(id)), tenants)

    def preview(
        self,
        change: Change,
        where: TaskFilter,
        *,
        limit: int | None = None,
        tenants: Collection[str] | None = None,
        counted: int | None = MOST_COUNTED,
        with_any_values: bool = False,
    ) -> Preview:
        """Return how many tasks the action would change now, and the first five. Count up to
        `counted`, and look at 10,000 tasks at most; with None, look at all. `with_any_values`: the
        new values are not chosen yet, so that tasks which have those of `change` count too. Raise
        InvalidTask for an action that cannot be made."""
        if counted is not None:
            values.whole("counted", counted, 0, MOST_PREVIEWED, InvalidTask)
        draft = batches.draft_of(change, where, limit, tenants, self._context.clock.now())
        action = batches.unstored(draft)
        read = 0
        shown: list[TaskRecord] = []
        is_last = False
        while not is_last and (
            counted is None or (action.changed <= counted and read < MOST_PREVIEWED)
        ):
            found: list[TaskRecord] = self._database.read_now(
                self._store.tasks(batches.rest_of(action), batches.page_size(action))
            )
            page = batches.judge(action, change, found)
            if with_any_values:
                page = page._replace(fit=page.allowed)
            shown += page.fit[: MOST_FIRST - len(shown)]
            read, is_last = read + len(found), page.is_last
            action = batches.advanced(action, page, len(page.fit))
        changed = action.changed if counted is None else min(action.changed, counted)
        is_more = not is_last or action.changed > changed
        return Preview(changed, is_more, action.refused, shown)

    # changing -------------------------------------------------------------------------------------

    def ask(
        self,
        change: StoredChange,
        where: TaskFilter | None = None,
        *,
        limit: int | None = None,
        tenants: Collection[str] | None = None,
        is_here: bool = False,
    ) -> BulkAction:
        """Store an action for a worker to perform, or with `is_here` for this process, which calls
        `perform` next. The change names the person, and a change of keys names the keys; another
        one is of the tasks that match `where` and were submitted before now, or of the first
        `limit` of them, oldest first. Raise InvalidTask for a wrong change or filter, NotAllowed
        for a fairness key of another tenant, UnknownQueue."""
        now = self._context.clock.now()
        if isinstance(change, KeyChange):
            draft = batches.key_draft_of(change, now)
            if change.queue not in self._database.read_now(self._store.queue_settings()):
                raise unknown_queue(change.queue)
        else:
            draft = batches.draft_of(change, where, limit, tenants, now)
        return self._database.run(self._added(draft, _performer() if is_here else None))

    def perform(
        self,
        action: BulkAction,
        *,
        on_batch: Callable[[BulkAction], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> BulkAction:
        """Perform an action that `ask` or `resume` returned; return it when it is done, a person
        has interrupted it, or `should_stop` returns True: a worker then goes on. `on_batch` gets
        the action after each batch of at most 500 tasks.

        An interrupt of this process leaves the action INTERRUPTED. Raise NotAllowed if another
        process has taken the action over, and the error of a batch, which leaves the action FAILED.
        After StoreUnavailable, a worker goes on.
        """
        try:
            change = change_of(action)
            while action.state == ActionState.RUNNING:
                if should_stop is not None and should_stop():
                    return self._stop(action, ActionState.WAITING) or self.show(action.id)
                found: list[TaskRecord] = self._database.read_now(
                    batches.read_page(self._store, action, change)
                )
                now = self._context.clock.now()
                after, notification = self._database.run(
                    batches.change_page(self._store, action, change, found, now)
                )
                if after is None:
                    raise _TakenOver
                self._context.channel.announce(notification)
                action = after
                if on_batch is not None:
                    on_batch(action)
        except _TakenOver:
            held = self.show(action.id)
            raise NotAllowed(
                f"bulk action {action.id} is {held.state} and no longer performed here: the last"
                f" process that claimed it is {held.performer}"
            ) from None
        except StoreUnavailable as error:
            if isinstance(error, WriteRefused):
                self._stop(action, ActionState.FAILED, str(error))
            raise
        except Exception as error:
            self._stop(action, ActionState.FAILED, f"{type(error).__name__}: {error}")
            raise
        except BaseException:  # Ctrl-C
            self._stop(action, ActionState.INTERRUPTED)
            raise
        return action

    def interrupt(
        self, id: int, *, actor: str = A_PERSON, tenants: Collection[str] | None = None
    ) -> BulkAction:
        """Stop an action after the batch that is running; it can be resumed. Raise UnknownAction,
        NotAllowed for an action that is over or stopped."""
        values.whole("id", id, 0, values.MOST_COUNT, InvalidTask)
        scope_of(tenants)
        checked_actor(actor)
        return self._database.run(self._interrupted(id, actor, tenants))

    def resume(
        self,
        id: int,
        *,
        actor: str = A_PERSON,
        take_over: bool = False,
        is_here: bool = True,
        tenants: Collection[str] | None = None,
    ) -> BulkAction:
        """Claim an action that waits, was stopped or lost its performer, for this process, which
        calls `perform` next; with `is_here` false, leave it to a worker. With `take_over`, also
        claim an action that another process performs; that process stops. Raise UnknownAction,
        NotAllowed."""
        values.whole("id", id, 0, values.MOST_COUNT, InvalidTask)
        scope_of(tenants)
        checked_actor(actor)
        return self._database.run(self._resumed(id, actor, take_over, is_here, tenants))

    # how ------------------------------------------------------------------------------------------

    def _added(self, draft: ActionDraft, performer: str | None) -> Steps[BulkAction]:
        action = yield from self._actions.add(draft)
        if performer is not None:
            at = yield from self._store.shared_clock(draft.asked_at)
            action = batches.claimed(action, performer, at)
            yield from self._actions.save(action)
        entry = self._recorder.entry(
            draft.actor,
            draft.verb,
            outcome=AuditOutcome.ASKED,
            queue=draft.where.queue,
            fairness_key=draft.where.fairness_key,
            action=action.id,
            details=from_text(draft.change).details(),
        )
        yield from self._audit.add([entry])
        return action

    def _interrupted(
        self, id: int, actor: str, tenants: Collection[str] | None
    ) -> Steps[BulkAction]:
        at = yield from self._store.shared_clock(self._context.clock.now())
        action = _visible(id, (yield from self._actions.hold(id, None)), tenants)
        if action.state not in OPEN_STATES:
            raise NotAllowed(f"bulk action {id} is {action.state}: nothing performs it")
        if batches.is_free(action, at):
            after = msgspec.structs.replace(
                batches.stopped(action, ActionState.INTERRUPTED, at), version=action.version + 1
            )
        else:
            after = msgspec.structs.replace(action, is_stopping=True)
        yield from self._actions.save(after)
        outcome = AuditOutcome.ASKED if after.is_stopping else AuditOutcome.DONE
        entry = self._recorder.entry(actor, "interrupt_action", outcome=outcome, action=id)
        yield from self._audit.add([entry])
        return after

    def _resumed(
        self,
        id: int,
        actor: str,
        take_over: bool,
        is_here: bool,
        tenants: Collection[str] | None,
    ) -> Steps[BulkAction]:
        at = yield from self._store.shared_clock(self._context.clock.now())
        action = _visible(id, (yield from self._actions.hold(id, None)), tenants)
        if action.state == ActionState.DONE:
            raise NotAllowed(f"bulk action {id} is done; make another one")
        if action.state in OPEN_STATES and not (batches.is_free(action, at) or take_over):
            raise NotAllowed(
                f"bulk action {id} is performed by {action.performer}: interrupt it before, or take"
                " it over"
            )
        after = batches.claimed(action, _performer(), at)
        if not is_here:
            waiting = batches.stopped(after, ActionState.WAITING, at)
            after = msgspec.structs.replace(waiting, performer=None)
        yield from self._actions.save(after)
        entry = self._recorder.entry(actor, "resume_action", action=id)
        yield from self._audit.add([entry])
        return after

    def _stop(
        self, action: BulkAction, state: ActionState, error: str | None = None
    ) -> BulkAction | None:
        return self._database.run(
            batches.stop(self._store, action, state, self._context.clock.now(), error)
        )


class _TakenOver(Exception):
    """Raised when this process has lost its claim on an action."""


def _visible(id: int, action: BulkAction | None, tenants: Collection[str] | None) -> BulkAction:
    if action is not None and (
        tenants is None or (action.tenants is not None and set(action.tenants) <= set(tenants))
    ):
        return action
    raise UnknownAction(
        f"no bulk action {id}: `fairlead actions` lists them; they are kept for a while only"
    )


def _performer() -> str:
    return f"{socket.gethostname()} {os.getpid()}"
