"""Commands for tasks: show them, and change each by compare-and-set on its version."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Unpack
from uuid import UUID

from fairlead.core import values
from fairlead.core.payload import unpack
from fairlead.declare.handle import find_record
from fairlead.errors import (
    FairleadError,
    InvalidTask,
    NotAllowed,
    NotSupported,
    StaleVersion,
    UnknownTask,
)
from fairlead.model import (
    FINAL_STATES,
    AttemptRecord,
    RunNotes,
    ScheduledTask,
    State,
    TaskRecord,
)
from fairlead.model.task_facts import TaskPage
from fairlead.operate.actions import ActionManagement
from fairlead.operate.audit import AuditManagement, Recorder
from fairlead.operate.batches import (
    MOST_CHANGED,
    check_scope,
)
from fairlead.operate.changes import (
    A_PERSON,
    Cancel,
    Change,
    Fail,
    KeyChange,
    NewValues,
    Reschedule,
    Resume,
    Retry,
    SetLimits,
    SetWeights,
    check_change,
    check_key_change,
    check_state,
)
from fairlead.operate.context import OperateContext, unknown_queue
from fairlead.operate.filters import (
    Counted,
    TaskFilters,
    checked_id,
    instant,
    is_within,
    task_filter,
)
from fairlead.operate.ordered import OrderedManagement
from fairlead.operate.periodic import PeriodicManagement
from fairlead.operate.queues import counted_queues
from fairlead.operate.store.audit import AuditDraft, AuditOutcome
from fairlead.ports.cluster import NodeRecord
from fairlead.ports.notification import Notification
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_records import KeyLoad, QueueStatus, TaskFilter

MOST_SEARCHED = 100_000
"""Number of attempts in which `find` looks for finished tasks."""
MOST_LISTED = 1000
"""Greatest number of tasks of a page, and up to which tasks are counted."""


class Management:
    """Commands for tasks and queues. `version=None` changes the present version of a task; with
    another value, a task whose version has changed raises StaleVersion."""

    def __init__(self, context: OperateContext) -> None:
        self._context = context
        self._database = context.cluster.database
        self._recorder = Recorder(context)

    @property
    def _store(self) -> SqlStore:
        return self._context.sql_store

    # looking --------------------------------------------------------------------------------------

    def show(self, task_id: str, *, tenants: Collection[str] | None = None) -> TaskRecord:
        """Return the task, also one that waits in an ordered queue. Raise UnknownTask, also for a
        task of none of `tenants`, and for one that is in the log of an ordered queue and was not
        read yet."""
        checked_id(task_id)
        record = find_record(self._context.connector, task_id)
        if record is None or not is_within(record.fairness_key, tenants):
            raise UnknownTask(
                f"no task {values.brief(task_id)}: check the id; history is kept for a while only"
            )
        return record

    def _ids(self, digits: str, tenants: Collection[str] | None) -> list[str]:
        """Return the first two ids that begin so; with `tenants`, those of their tasks only, so
        that no number and no id of another tenant shows."""
        if tenants is None:
            before = str(UUID(int=max(int(digits.ljust(32, "0"), 16) - 1, 0)))
            ids: list[str] = self._database.read_now(self._store.ids_after(before, 2))
            return [task_id for task_id in ids if task_id.replace("-", "").startswith(digits)]
        states: tuple[State | None, ...] = (None, *sorted(FINAL_STATES))
        return [
            task.id
            for state in states
            for task in self.page(id=digits, state=state, limit=2, tenants=tenants).tasks
        ]

    def _check_visible(self, task_id: str, tenants: Collection[str] | None) -> None:
        """Raise UnknownTask for a task of none of `tenants`, InvalidTask for what is no id."""
        checked_id(task_id)
        if tenants is not None:
            self.show(task_id, tenants=tenants)

    def _waiting(self, task_id: str) -> ScheduledTask | None:
        """Return a task that waits in an ordered queue."""
        schedule = self._context.connector.connections.schedule
        return None if schedule is None else schedule.find_now(task_id)

    def named(self, beginning: str, *, tenants: Collection[str] | None = None) -> TaskRecord:
        """Return the task with this id, or the only one whose id begins so, with at least 4
        hexadecimal digits. Raise UnknownTask, also for a task of none of `tenants`; InvalidTask if
        several ids begin so."""
        digits = checked_id(beginning).replace("-", "").lower()
        if not 4 <= len(digits) < 32 or not set(digits) <= set("0123456789abcdef"):
            return self.show(beginning, tenants=tenants)
        found = self._ids(digits, tenants)
        if len(found) > 1:
            raise InvalidTask(
                f"several tasks begin with {values.brief(beginning)}: give more of the id"
            )
        if not found:
            raise UnknownTask(
                f"no task begins with {values.brief(beginning)}: check the id; history is kept for"
                " a while only"
            )
        return self.show(found[0], tenants=tenants)

    def attempts(
        self, task_id: str, *, tenants: Collection[str] | None = None
    ) -> list[AttemptRecord]:
        """Return the attempts of a task, first to last; without a SQL database, only the last one
        of a task that has ended: the lake has the others. Raise UnknownTask for a task of none of
        `tenants`."""
        self._check_visible(task_id, tenants)
        if (runs := self._context.cluster.runs) is not None:
            last = self._database.read_now(runs.last_attempt(task_id))
            return [] if last is None else [last]
        attempts: list[AttemptRecord] = self._database.read_now(self._store.attempts(task_id))
        return attempts

    def notes(self, task_id: str, *, tenants: Collection[str] | None = None) -> list[RunNotes]:
        """Return the notes (progress and log lines) of the latest 200 runs that have any, first to
        last; none where the store keeps none. Raise UnknownTask for a task of none of
        `tenants`."""
        self._check_visible(task_id, tenants)
        try:
            notes: list[RunNotes] = self._database.read_now(
                self._context.sql_store.run_notes(task_id)
            )
        except NotSupported:
            return []
        return notes

    def payload(self, task_id: str, *, tenants: Collection[str] | None = None) -> bytes | None:
        """Return the arguments of an unfinished task as JSON. Raise InvalidTask for broken
        bytes, UnknownTask for a task of none of `tenants`."""
        self._check_visible(task_id, tenants)
        found = None
        if self._context.cluster.runs is None:
            found = self._database.read_now(self._store.payload(task_id))
        if found is None and (waiting := self._waiting(task_id)) is not None:
            found = (waiting.task.payload, waiting.task.payload_format)
        return None if found is None else unpack(*found)

    def find(
        self,
        *,
        limit: int = 100,
        tenants: Collection[str] | None = None,
        **filters: Unpack[TaskFilters],
    ) -> list[TaskRecord]:
        """Return unfinished tasks that match, oldest first, at most `limit`. With the state DONE,
        FAILED or CANCELLED, return finished ones from the latest 100,000 attempts of the history,
        those that ended last first.

        May read every unfinished task; `page` reads a bounded number. Raise InvalidTask.
        """
        where = self._filter(tenants, filters)
        values.whole("limit", limit, 0, values.MOST_ROWS, InvalidTask)
        if where.state in FINAL_STATES:
            read = self._context.reads.page(where, limit, True, MOST_SEARCHED, 0)
            page: TaskPage = self._database.read_now(read)
            return page.tasks
        found: list[TaskRecord] = self._database.read_now(self._store.tasks(where, limit))
        return found

    def page(
        self,
        *,
        newest_first: bool = True,
        after: str | None = None,
        limit: int = 50,
        tenants: Collection[str] | None = None,
        **filters: Unpack[TaskFilters],
    ) -> TaskPage:
        """Return a page of at most `limit` tasks (1 to 1,000) that match, by id and so by time of
        submission; with a final state, of finished ones, by the time of their end. `after` is the
        cursor that a page has returned, for the same filter and order.

        A page walks over at most 20,000 rows of the table or of the history, whatever the filter,
        and goes on to 1,000,000 while it has found nothing; for `argument`, it searches at most
        2,000 payloads (four for each task of `limit`), and 16 MiB. If a page ends there, `is_cut`
        is true, and the next page goes on. `id`, `unique_key`, and the state ERROR are found by an
        index, `ordering_key` too if it has at most 500 tasks, and running tasks by what nodes hold.

        Raise InvalidTask, and NotSupported on a store that cannot search so.
        """
        values.whole("limit", limit, 1, MOST_LISTED, InvalidTask)
        where = self._filter(tenants, filters, after)
        page: TaskPage = self._database.read_now(
            self._context.reads.page(where, limit, bool(newest_first))
        )
        return page

    def count(
        self, *, tenants: Collection[str] | None = None, **filters: Unpack[TaskFilters]
    ) -> Counted:
        """Return the number of tasks that match, counted up to 1,000 and as far as one page walks.
        Raise InvalidTask, NotSupported."""
        where = self._filter(tenants, filters)
        number, is_cut = self._database.read_now(self._context.reads.count(where, MOST_LISTED))
        return Counted(number, is_cut)

    def queues(self) -> list[QueueStatus]:
        """Return every queue with its counts by state."""
        return counted_queues(self._context)

    def nodes(self) -> list[NodeRecord]:
        """Return every known node."""
        nodes: list[NodeRecord] = self._database.read_now(self._context.cluster.nodes())
        return nodes

    @property
    def ordered(self) -> OrderedManagement:
        """Return the commands for ordered queues."""
        return OrderedManagement(self._context)

    @property
    def periodic(self) -> PeriodicManagement:
        """Return the commands for periodic tasks."""
        return PeriodicManagement(self._context)

    @property
    def actions(self) -> ActionManagement:
        """Return the commands for bulk actions. Raise NotSupported without a SQL database."""
        return ActionManagement(self._context)

    @property
    def audit(self) -> AuditManagement:
        """Return the log of the actions of people. Raise NotSupported without a SQL database."""
        return AuditManagement(self._context)

    # changing -------------------------------------------------------------------------------------

    def resume(
        self,
        task_id: str,
        *,
        version: int | None = None,
        force: bool = False,
        actor: str = A_PERSON,
    ) -> None:
        """Run a waiting task, or a task in ERROR, now; count the tries of the latter from zero.
        With `force`, also run a running task, which then runs twice."""
        self.apply(Resume(force=force, actor=actor), task_id, version)

    def retry(self, task_id: str, *, version: int | None = None, actor: str = A_PERSON) -> None:
        """Run a task that is in ERROR or waits for a retry now; count its tries from zero."""
        self.apply(Retry(actor=actor), task_id, version)

    def reschedule(
        self,
        task_id: str,
        run_at: datetime,
        *,
        version: int | None = None,
        actor: str = A_PERSON,
    ) -> None:
        """Give a waiting task another time; a past time means now. Raise InvalidTask for a naive
        datetime."""
        self.apply(Reschedule(run_at=instant("run_at", run_at), actor=actor), task_id, version)

    def change(
        self,
        task_id: str,
        *,
        priority: int | None = None,
        fairness_key: str | None = None,
        version: int | None = None,
        actor: str = A_PERSON,
    ) -> None:
        """Give a task that is WAITING or SUBMITTED another priority (0 first to 9 last) or fairness
        key. A SUBMITTED task then comes after all others of that priority and key; a task that has
        these values already keeps its position. The order within an ordering key stays. Raise
        InvalidTask for a wrong value, and if no value is given."""
        change = NewValues(priority=priority, fairness_key=fairness_key, actor=actor)
        self.apply(change, task_id, version)

    def cancel(self, task_id: str, *, version: int | None = None, actor: str = A_PERSON) -> None:
        """End a task as CANCELLED, in any unfinished state. A running handler is stopped; one in a
        thread is asked to stop."""
        self.apply(Cancel(actor=actor), task_id, version)

    def fail(self, task_id: str, *, version: int | None = None, actor: str = A_PERSON) -> None:
        """End a task in ERROR as FAILED, which ends its incident."""
        self.apply(Fail(actor=actor), task_id, version)

    def apply(
        self,
        change: Change,
        task_id: str,
        version: int | None = None,
        *,
        tenants: Collection[str] | None = None,
    ) -> None:
        """Change one task, by its id or the beginning of it, as the methods `resume` to `fail` do.
        With `tenants`, the task must be of one of these tenants. Raise StaleVersion, NotAllowed,
        UnknownTask, InvalidTask."""
        check_change(change)
        check_scope(change, tenants)
        if version is not None:
            values.whole("version", version, 0, error=InvalidTask)
        record = self.named(task_id, tenants=tenants)
        try:
            if version is not None and record.version != version:
                raise StaleVersion(
                    f"task {task_id} is at version {record.version}, not {version}: read it again"
                )
            check_state(record, change)
            if change.concerns(record) and not self._is_changed(change, record):
                raise StaleVersion(
                    f"task {record.id} has changed since version {record.version}: read it again"
                )
        except (StaleVersion, NotAllowed) as error:
            self._recorder.note(self._entry(change, record, AuditOutcome.REFUSED, str(error)))
            raise

    def _is_changed(self, change: Change, record: TaskRecord) -> bool:
        """Change a task, and return whether it had the version of its record. Raise NotAllowed for
        a task of an ordered queue."""
        refusal = None
        try:
            if self._change(change, [record]):
                return True
        except NotSupported as error:
            refusal = error
        if self._waiting(record.id) is not None:
            raise NotAllowed(
                f"task {record.id} waits in the ordered queue {record.queue!r}: it can only be"
                " ended, by `fairlead ordered drop`"
            )
        if refusal is not None:
            raise refusal
        return False

    def apply_all(
        self,
        change: Change,
        task_ids: Sequence[str],
        version: int | None = None,
        *,
        tenants: Collection[str] | None = None,
    ) -> dict[str, FairleadError | None]:
        """Change the named tasks, at most 500, as `apply` does; return for each id the error that
        refused it, or None. Raise InvalidTask for a wrong change, or too many or impossible ids."""
        check_change(change)
        if version is not None:
            values.whole("version", version, 0, error=InvalidTask)
        if isinstance(task_ids, str) or not isinstance(task_ids, Sequence):
            raise InvalidTask(f"task_ids {values.brief(task_ids)}: use a list of ids")
        values.whole("number of tasks", len(task_ids), 0, MOST_CHANGED, InvalidTask)
        outcomes: dict[str, FairleadError | None] = {}
        for task_id in dict.fromkeys([checked_id(each) for each in task_ids]):
            try:
                self.apply(change, task_id, version, tenants=tenants)
                outcomes[task_id] = None
            except (InvalidTask, NotAllowed, StaleVersion, UnknownTask) as error:
                outcomes[task_id] = error
        return outcomes

    def where(
        self, *, tenants: Collection[str] | None = None, **filters: Unpack[TaskFilters]
    ) -> TaskFilter:
        """Return the filter of `find`, for a bulk action. Raise InvalidTask."""
        return self._filter(tenants, filters)

    def pause(self, queue: str, *, actor: str = A_PERSON) -> None:
        """Stop starting tasks of this queue in the whole cluster, within seconds; running tasks
        continue to their end. Raise UnknownQueue."""
        self._pause(queue, True, actor)

    def unpause(self, queue: str, *, actor: str = A_PERSON) -> None:
        """Start tasks of this queue again. Raise UnknownQueue."""
        self._pause(queue, False, actor)

    def weights(self, queue: str) -> dict[str, float]:
        """Return the weights set at run time, by fairness key."""
        weights: dict[str, float] = self._database.read_now(self._store.weights(_name(queue)))
        return weights

    def limits(self, queue: str) -> dict[str, int]:
        """Return the limits set at run time, by a person or by `fairlead pipeline tune`: tasks of a
        fairness key that each node may run at once. The limits of the code apply too."""
        limits: dict[str, int] = self._database.read_now(self._store.limits(_name(queue)))
        return limits

    def set_weight(
        self,
        queue: str,
        fairness_key: str,
        weight: float | None,
        *,
        actor: str = A_PERSON,
    ) -> None:
        """Override the weights of a key's tasks (0.001 to 1000), from its next task on.

        The weight is in force within seconds in the whole cluster; None removes it. Raise
        UnknownQueue, InvalidTask.
        """
        self._set(SetWeights(queue=queue, keys=(fairness_key,), weight=weight, actor=actor))

    def set_limit(
        self, queue: str, fairness_key: str, limit: int | None, *, actor: str = A_PERSON
    ) -> None:
        """Limit how many tasks of a key each node runs at once, in place of the limit of a policy.
        The limits of the code apply too; running tasks continue.

        The limit is in force within seconds in the whole cluster; None removes it. Raise
        UnknownQueue, InvalidTask; NotSupported on a store without SQL.
        """
        self._set(SetLimits(queue=queue, keys=(fairness_key,), limit=limit, actor=actor))

    def heaviest_keys(self, queue: str, limit: int = 10) -> tuple[list[KeyLoad], int]:
        """Return the fairness keys with most tasks that may run now, and how many keys have any."""
        values.whole("limit", limit, 0, values.MOST_ROWS, InvalidTask)
        found: tuple[list[KeyLoad], int] = self._database.read_now(
            self._store.heaviest_keys(_name(queue), limit)
        )
        return found

    # how ------------------------------------------------------------------------------------------

    def _set(self, change: KeyChange) -> None:
        """Set or clear the weight or limit of one key, and note it."""
        check_key_change(change)
        done = self._recorder.run(
            change.steps(self._store, change.keys),
            change.actor,
            f"{'clear' if change.value is None else 'set'}_{change.verb}",
            queue=change.queue,
            fairness_key=change.keys[0],
            details=None if change.value is None else f"{change.value:.15g}",
        )
        if not done:
            missing = "" if change.value is not None else f", or it has no such {change.verb}"
            raise unknown_queue(change.queue, missing)
        self._announce_control()

    def _change(self, change: Change, tasks: Sequence[TaskRecord]) -> set[str]:
        """Change the tasks that are still at their versions, in one transaction; return their
        ids."""
        if not tasks:
            return set()
        steps = change.steps(self._store, tasks, self._context.clock.now())
        changed, notification = self._database.run(
            self._recorder.noted(
                steps,
                lambda done: [self._entry(change, task) for task in tasks if task.id in done[0]],
            )
        )
        if changed:
            self._context.channel.announce(notification)
        return changed

    def _entry(
        self,
        change: Change,
        task: TaskRecord,
        outcome: AuditOutcome = AuditOutcome.DONE,
        reason: str | None = None,
    ) -> AuditDraft:
        return self._recorder.entry(
            change.actor,
            change.verb,
            outcome=outcome,
            task_id=task.id,
            queue=task.queue,
            fairness_key=task.fairness_key,
            details=reason or change.details(),
        )

    def _pause(self, queue: str, paused: bool, actor: str) -> None:
        verb = "pause_queue" if paused else "resume_queue"
        steps = self._context.cluster.pause(_name(queue), paused)
        if not self._recorder.run(steps, actor, verb, queue=queue):
            raise unknown_queue(queue)
        self._announce_control()

    def _announce_control(self, *finished: str) -> None:
        self._context.channel.announce(Notification(control=True, finished=list(finished)))

    def _filter(
        self, scope: Collection[str] | None, filters: TaskFilters, after: str | None = None
    ) -> TaskFilter:
        return task_filter(filters, scope, self._context.clock.now(), after)


def _name(queue: object) -> str:
    return values.name("queue", queue, error=InvalidTask)
