"""Commands for tasks: show them, and change each by compare-and-set on its version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from typing import Unpack
from uuid import UUID

import msgspec

from fairlead.core import values
from fairlead.core.payload import unpack
from fairlead.declare.options import Options
from fairlead.errors import InvalidTask, StaleVersion, UnknownQueue, UnknownTask
from fairlead.model import FINAL_STATES, MAX_WEIGHT, MIN_WEIGHT, AttemptRecord, TaskRecord
from fairlead.operate.changes import (
    Cancel,
    Change,
    Fail,
    NewValues,
    Reschedule,
    Resume,
    Retry,
    check_state,
)
from fairlead.operate.context import OperateContext
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
from fairlead.ports.cluster_state import NodeRecord
from fairlead.ports.notification import Notification
from fairlead.ports.task_reads import TaskPage
from fairlead.ports.task_records import KeyLoad, QueueStatus, TaskFilter

MOST_CHANGED = 500
"""Greatest number of tasks that one transaction of a bulk change changes."""


MOST_LISTED = 1000
"""Greatest number of tasks of a page, and up to which tasks are counted."""


class BulkResult(msgspec.Struct, frozen=True):
    """Result of a bulk change: the number of tasks changed, and of tasks not changed, because their
    version changed or their state does not allow it."""

    changed: int = 0
    refused: int = 0


class Management:
    """Commands for tasks and queues. `version=None` changes the present version of a task; with
    another value, a task whose version has changed raises StaleVersion."""

    def __init__(self, context: OperateContext) -> None:
        self._context = context
        self._store = context.store.records
        self._database = self._store.database

    # looking --------------------------------------------------------------------------------------

    def show(self, task_id: str, *, tenants: Collection[str] | None = None) -> TaskRecord:
        """Return the task. Raise UnknownTask, also for a task of none of `tenants`."""
        checked_id(task_id)
        record: TaskRecord | None = self._database.read_now(self._store.task(task_id))
        if record is None or not is_within(record.fairness_key, tenants):
            raise UnknownTask(
                f"no task {values.brief(task_id)}: check the id; history is kept for a while only"
            )
        return record

    def named(self, beginning: str, *, tenants: Collection[str] | None = None) -> TaskRecord:
        """Return the task with this id, or the only one whose id begins so, with at least 4
        hexadecimal digits. Raise UnknownTask, also for a task of none of `tenants`; InvalidTask if
        several ids begin so."""
        digits = checked_id(beginning).replace("-", "").lower()
        if not 4 <= len(digits) < 32 or not set(digits) <= set("0123456789abcdef"):
            return self.show(beginning, tenants=tenants)
        before = max(int(digits.ljust(32, "0"), 16) - 1, 0)
        after = str(UUID(int=before))
        ids: list[str] = self._database.read_now(self._store.ids_after(after, 2))
        found = [task_id for task_id in ids if task_id.replace("-", "").startswith(digits)]
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
        """Return the attempts of a task, first to last. Raise UnknownTask for a task of none of
        `tenants`."""
        checked_id(task_id)
        if tenants is not None:
            self.show(task_id, tenants=tenants)
        attempts: list[AttemptRecord] = self._database.read_now(self._store.attempts(task_id))
        return attempts

    def payload(self, task_id: str, *, tenants: Collection[str] | None = None) -> bytes | None:
        """Return the arguments of an unfinished task as JSON. Raise InvalidTask for broken
        bytes, UnknownTask for a task of none of `tenants`."""
        if tenants is not None:
            self.show(task_id, tenants=tenants)
        found = self._database.read_now(self._store.payload(checked_id(task_id)))
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
        read = self._store.finished if where.state in FINAL_STATES else self._store.tasks
        found: list[TaskRecord] = self._database.read_now(read(where, limit))
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

        A page walks over at most 20,000 rows of the table or of the history, whatever the filter;
        for `argument`, it searches at most 2,000 payloads (four for each task of `limit`), and
        16 MiB. If a page ends there, `is_cut` is true, and the next page goes on. `id`,
        `unique_key`, and the state ERROR are found by an index, and `ordering_key` too if it has
        at most 500 tasks.

        Raise InvalidTask, and NotSupported on a store that cannot search so.
        """
        values.whole("limit", limit, 1, MOST_LISTED, InvalidTask)
        where = self._filter(tenants, filters, after)
        page: TaskPage = self._database.read_now(
            self._store.reads.page(where, limit, bool(newest_first))
        )
        return page

    def count(
        self, *, tenants: Collection[str] | None = None, **filters: Unpack[TaskFilters]
    ) -> Counted:
        """Return the number of tasks that match, counted up to 1,000 and as far as one page walks.
        Costs as much as a page of 1,000 tasks. Raise InvalidTask, NotSupported."""
        where = self._filter(tenants, filters)
        page: TaskPage = self._database.read_now(
            self._store.reads.page(where, MOST_LISTED + 1, True)
        )
        return Counted(min(len(page.tasks), MOST_LISTED), page.after is not None)

    def queues(self) -> list[QueueStatus]:
        """Return every queue with its counts by state."""
        statuses: list[QueueStatus] = self._database.read_now(self._store.queue_statuses())
        return statuses

    def nodes(self) -> list[NodeRecord]:
        """Return every known node."""
        nodes: list[NodeRecord] = self._database.read_now(self._store.nodes())
        return nodes

    @property
    def ordered(self) -> OrderedManagement:
        """Return the commands for ordered queues."""
        return OrderedManagement(self._context)

    @property
    def periodic(self) -> PeriodicManagement:
        """Return the commands for periodic tasks."""
        return PeriodicManagement(self._context)

    # changing -------------------------------------------------------------------------------------

    def resume(self, task_id: str, *, version: int | None = None, force: bool = False) -> None:
        """Run a waiting task, or a task in ERROR, now; count the tries of the latter from zero.
        With `force`, also run a running task, which then runs twice."""
        self.apply(Resume(force=force), task_id, version)

    def retry(self, task_id: str, *, version: int | None = None) -> None:
        """Run a task that is in ERROR or waits for a retry now; count its tries from zero."""
        self.apply(Retry(), task_id, version)

    def reschedule(self, task_id: str, run_at: datetime, *, version: int | None = None) -> None:
        """Give a waiting task another time; a past time means now. Raise InvalidTask for a naive
        datetime."""
        self.apply(Reschedule(run_at=instant("run_at", run_at)), task_id, version)

    def change(
        self,
        task_id: str,
        *,
        priority: int | None = None,
        fairness_key: str | None = None,
        version: int | None = None,
        actor: str = "a person",
    ) -> None:
        """Give a task that is WAITING or SUBMITTED another priority (0 first to 9 last) or fairness
        key. A SUBMITTED task then comes after all others of that priority and key; a task that has
        these values already keeps its position. The order within an ordering key stays. Raise
        InvalidTask for a wrong value, and if no value is given."""
        change = NewValues(priority=priority, fairness_key=fairness_key, actor=actor)
        self.apply(change, task_id, version)

    def cancel(self, task_id: str, *, version: int | None = None, actor: str = "a person") -> None:
        """End a task as CANCELLED, in any unfinished state. A running handler is stopped; one in a
        thread is asked to stop."""
        self.apply(Cancel(actor=actor), task_id, version)

    def fail(self, task_id: str, *, version: int | None = None, actor: str = "a person") -> None:
        """End a task in ERROR as FAILED, which ends its incident."""
        self.apply(Fail(actor=actor), task_id, version)

    def apply(self, change: Change, task_id: str, version: int | None = None) -> None:
        """Change one task, as the methods `resume` to `fail` do. Raise StaleVersion, NotAllowed,
        UnknownTask."""
        _check(change)
        if version is not None:
            values.whole("version", version, 0, error=InvalidTask)
        record = self.show(task_id)
        if version is not None and record.version != version:
            raise StaleVersion(
                f"task {task_id} is at version {record.version}, not {version}: read it again"
            )
        check_state(record, change)
        if change.concerns(record) and not self._change(change, [record]):
            raise StaleVersion(
                f"task {record.id} has changed since version {record.version}: read it again"
            )

    def bulk(
        self,
        change: Change,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        on_batch: Callable[[BulkResult], None] | None = None,
        tenants: Collection[str] | None = None,
        **filters: Unpack[TaskFilters],
    ) -> BulkResult:
        """Apply a change, such as `Retry()` or `Cancel()`, to all tasks that match and were
        submitted before now, or to the first `limit` of them, oldest first.

        Each batch of at most 500 tasks is one transaction, so that an interrupted call has changed
        whole batches and can be made again. `on_batch` is given the sums after each. With
        `dry_run`, nothing is changed. Raise InvalidTask for a filter that is wrong, or the state of
        finished tasks.
        """
        _check(change)
        if limit is not None:
            values.whole("limit", limit, 0, values.MOST_COUNT, InvalidTask)
        where = self._filter(tenants, filters)
        if where.state in FINAL_STATES:
            raise InvalidTask(f"state {where.state}: finished tasks cannot be {change.done}")
        if where.older_than is None:  # tasks that arrive meanwhile are not meant
            where = msgspec.structs.replace(where, older_than=self._context.clock.now() + 1)
        result = BulkResult()
        for found in self._pages(where, limit):
            fit = [task for task in found if task.state in change.states and change.concerns(task)]
            changed = len(fit) if dry_run else len(self._change(change, fit))
            same = sum(task.state in change.states for task in found) - len(fit)
            result = BulkResult(
                result.changed + changed, result.refused + len(found) - same - changed
            )
            if on_batch is not None:
                on_batch(result)
        return result

    def pause(self, queue: str) -> None:
        """Stop starting tasks of this queue in the whole cluster, within seconds; running tasks
        continue to their end. Raise UnknownQueue."""
        self._pause(queue, True)

    def unpause(self, queue: str) -> None:
        """Start tasks of this queue again. Raise UnknownQueue."""
        self._pause(queue, False)

    def weights(self, queue: str) -> dict[str, float]:
        """Return the weights set at run time, by fairness key."""
        weights: dict[str, float] = self._database.read_now(self._store.weights(_name(queue)))
        return weights

    def limits(self, queue: str) -> dict[str, int]:
        """Return the limits set by `fairlead pipeline tune`: tasks of a fairness key that each node
        may run at once. The limits of the code apply too."""
        limits: dict[str, int] = self._database.read_now(self._store.limits(_name(queue)))
        return limits

    def set_weight(self, queue: str, fairness_key: str, weight: float | None) -> None:
        """Override the weights of a key's tasks (0.001 to 1000), from its next task on.

        The weight is in force within seconds in the whole cluster; None removes it. Raise
        UnknownQueue, InvalidTask.
        """
        _name(queue)
        values.text("fairness_key", fairness_key, may_be_empty=True, error=InvalidTask)
        if weight is not None:
            weight = values.number("weight", weight, MIN_WEIGHT, MAX_WEIGHT, InvalidTask)
        if not self._database.run(self._store.set_weight(queue, fairness_key, weight)):
            raise UnknownQueue(
                f"no queue named {queue!r} is known to any node"
                + ("" if weight is not None else ", or it has no such weight")
            )
        self._announce_control()

    def heaviest_keys(self, queue: str, limit: int = 10) -> tuple[list[KeyLoad], int]:
        """Return the fairness keys with most tasks that may run now, and how many keys have any."""
        values.whole("limit", limit, 0, values.MOST_ROWS, InvalidTask)
        found: tuple[list[KeyLoad], int] = self._database.read_now(
            self._store.heaviest_keys(_name(queue), limit)
        )
        return found

    # how ------------------------------------------------------------------------------------------

    def _pages(self, where: TaskFilter, limit: int | None) -> Iterator[list[TaskRecord]]:
        """Yield the tasks that match, at most `limit`, in parts that one transaction changes."""
        left = limit
        while left is None or left > 0:
            most = MOST_CHANGED if left is None else min(left, MOST_CHANGED)
            found: list[TaskRecord] = self._database.read_now(self._store.tasks(where, most))
            if found:
                yield found
                where = msgspec.structs.replace(where, after=found[-1].id)
            if len(found) < most:
                return
            left = None if left is None else left - len(found)

    def _change(self, change: Change, tasks: Sequence[TaskRecord]) -> set[str]:
        """Change the tasks that are still at their versions, in one transaction; return their
        ids."""
        if not tasks:
            return set()
        changed, notification = self._database.run(
            change.steps(self._store, tasks, self._context.clock.now())
        )
        if changed:
            self._context.channel.announce(notification)
        return changed

    def _pause(self, queue: str, paused: bool) -> None:
        if not self._database.run(self._store.pause(_name(queue), paused)):
            raise UnknownQueue(f"no queue named {queue!r} is known to any node")
        self._announce_control()

    def _announce_control(self, *finished: str) -> None:
        self._context.channel.announce(Notification(control=True, finished=list(finished)))

    def _filter(
        self, scope: Collection[str] | None, filters: TaskFilters, after: str | None = None
    ) -> TaskFilter:
        return task_filter(filters, scope, self._context.clock.now(), after)


def _check(change: Change) -> None:
    """Raise InvalidTask for a change that is none, or for new values that no task can have."""
    if not isinstance(change, Retry | Resume | Reschedule | NewValues | Cancel | Fail):
        raise InvalidTask(
            f"change {values.brief(change)}: use a change such as Retry() or Cancel()"
        )
    values.text("actor", change.actor, may_be_empty=True, error=InvalidTask)
    if not isinstance(change, NewValues):
        return
    given = {"priority": change.priority, "fairness_key": change.fairness_key}
    given = {option: value for option, value in given.items() if value is not None}
    if not given:
        raise InvalidTask("nothing to change: give a priority, a fairness key, or both")
    Options().changed(given)


def _name(queue: object) -> str:
    return values.name("queue", queue, error=InvalidTask)
