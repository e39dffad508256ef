"""Commands for tasks: show them, and change each by compare-and-set on its version."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from fairlead.clock import to_micros
from fairlead.core.payload import unpack
from fairlead.declare.options import Options
from fairlead.errors import InvalidTask, NotAllowed, StaleVersion, UnknownQueue, UnknownTask
from fairlead.model import FINAL_STATES, MAX_WEIGHT, MIN_WEIGHT, AttemptRecord, State, TaskRecord
from fairlead.operate.context import OperateContext
from fairlead.operate.ordered import OrderedManagement
from fairlead.operate.periodic import PeriodicManagement
from fairlead.ports.cluster_state import NodeRecord
from fairlead.ports.notification import Notification
from fairlead.ports.task_records import KeyLoad, QueueStatus, TaskFilter

DOUBLE_RUN = "it is running: with force it will run a second time beside the first"


class BulkResult(msgspec.Struct, frozen=True):
    """Result of a bulk change: the number of tasks changed, and of tasks not changed, because their
    version changed or their state does not allow it."""

    changed: int
    refused: int


class Management:
    """Commands for tasks and queues. `version=None` changes the present version of a task; with
    another value, a task whose version has changed raises StaleVersion."""

    def __init__(self, context: OperateContext) -> None:
        self._context = context
        self._store = context.store.records
        self._database = self._store.database

    # looking --------------------------------------------------------------------------------------

    def show(self, task_id: str) -> TaskRecord:
        """Return the task. Raise UnknownTask."""
        record: TaskRecord | None = self._database.read_now(self._store.task(task_id))
        if record is None:
            raise UnknownTask(
                f"no task {task_id!r}: check the id; history is kept for a while only"
            )
        return record

    def attempts(self, task_id: str) -> list[AttemptRecord]:
        """Return the attempts of a task, first to last."""
        attempts: list[AttemptRecord] = self._database.read_now(self._store.attempts(task_id))
        return attempts

    def payload(self, task_id: str) -> bytes | None:
        """Return the arguments of an unfinished task as JSON. Raise InvalidTask for broken
        bytes."""
        found = self._database.read_now(self._store.payload(task_id))
        return None if found is None else unpack(*found)

    def find(
        self,
        *,
        state: State | str | None = None,
        queue: str | None = None,
        name: str | None = None,
        fairness_key: str | None = None,
        older_than: timedelta | None = None,
        limit: int = 100,
    ) -> list[TaskRecord]:
        """Return unfinished tasks that match, oldest first, at most `limit`."""
        where = self._filter(state, queue, name, fairness_key, older_than)
        found: list[TaskRecord] = self._database.read_now(self._store.tasks(where, limit))
        return found

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
        """Run a waiting task, or a task in ERROR, now; count its tries from zero. With `force`,
        also run a running task, which then runs twice."""
        record = self._at(task_id, version)
        self._must_be(record, {State.WAITING, State.SUBMITTED, State.ERROR}, force, "resumed")
        self._move(
            record,
            State.SUBMITTED,
            self._context.clock.now(),
            reset_tries=record.state == State.ERROR,
        )

    def retry(self, task_id: str, *, version: int | None = None) -> None:
        """Run a task that is in ERROR or waits for a retry now; count its tries from zero."""
        record = self._at(task_id, version)
        self._must_be(record, {State.WAITING, State.ERROR}, False, "retried")
        self._move(record, State.SUBMITTED, self._context.clock.now(), reset_tries=True)

    def reschedule(self, task_id: str, run_at: datetime, *, version: int | None = None) -> None:
        """Give a waiting task another time; a past time means now. Raise InvalidTask for a naive
        datetime."""
        record = self._at(task_id, version)
        self._must_be(record, {State.WAITING}, False, "rescheduled")
        try:
            due = to_micros(run_at)
        except ValueError as error:
            raise InvalidTask(f"run_at: {error}") from error
        now = self._context.clock.now()
        self._move(record, State.WAITING if due > now else State.SUBMITTED, due, reset_tries=False)

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
        given = {"priority": priority, "fairness_key": fairness_key}
        given = {option: value for option, value in given.items() if value is not None}
        if not given:
            raise InvalidTask("nothing to change: give a priority, a fairness key, or both")
        Options().changed(given)
        record = self._at(task_id, version)
        self._must_be(record, {State.WAITING, State.SUBMITTED}, False, "changed")
        if all(getattr(record, option) == value for option, value in given.items()):
            return
        now = self._context.clock.now()
        self._announce(
            record,
            self._database.run(
                self._store.change(record.id, record.version, priority, fairness_key, now, actor)
            ),
        )

    def cancel(self, task_id: str, *, version: int | None = None, actor: str = "a person") -> None:
        """End a task as CANCELLED, in any unfinished state. A running handler is stopped; one in a
        thread is asked to stop."""
        record = self._at(task_id, version)
        self._must_be(record, set(State) - FINAL_STATES, False, "cancelled")
        self._end(record, State.CANCELLED, actor)

    def fail(self, task_id: str, *, version: int | None = None, actor: str = "a person") -> None:
        """End a task in ERROR as FAILED, which ends its incident."""
        record = self._at(task_id, version)
        self._must_be(record, {State.ERROR}, False, "failed")
        self._end(record, State.FAILED, actor)

    def bulk(
        self,
        change: Callable[[TaskRecord], None],
        *,
        state: State | str | None = None,
        queue: str | None = None,
        name: str | None = None,
        fairness_key: str | None = None,
        older_than: timedelta | None = None,
        limit: int = 1000,
    ) -> BulkResult:
        """Apply a change, such as `lambda task: management.retry(task.id, version=task.version)`,
        to the tasks that match."""
        changed = refused = 0
        found = self.find(
            state=state,
            queue=queue,
            name=name,
            fairness_key=fairness_key,
            older_than=older_than,
            limit=limit,
        )
        for record in found:
            try:
                change(record)
                changed += 1
            except (StaleVersion, NotAllowed, UnknownTask):
                refused += 1
        return BulkResult(changed, refused)

    def pause(self, queue: str) -> None:
        """Stop starting tasks of this queue in the whole cluster, within seconds; running tasks
        continue to their end. Raise UnknownQueue."""
        self._pause(queue, True)

    def unpause(self, queue: str) -> None:
        """Start tasks of this queue again. Raise UnknownQueue."""
        self._pause(queue, False)

    def weights(self, queue: str) -> dict[str, float]:
        """Return the weights set at run time, by fairness key."""
        weights: dict[str, float] = self._database.read_now(self._store.weights(queue))
        return weights

    def limits(self, queue: str) -> dict[str, int]:
        """Return the limits set by `fairlead pipeline tune`: tasks of a fairness key that each node
        may run at once. The limits of the code apply too."""
        limits: dict[str, int] = self._database.read_now(self._store.limits(queue))
        return limits

    def set_weight(self, queue: str, fairness_key: str, weight: float | None) -> None:
        """Override the weights of a key's tasks (0.001 to 1000), for all tasks that have no level
        yet.

        The weight is in force within seconds in the whole cluster; None removes it. Raise
        UnknownQueue, InvalidTask.
        """
        if weight is not None and not MIN_WEIGHT <= weight <= MAX_WEIGHT:
            raise InvalidTask(f"weight {weight!r}: use {MIN_WEIGHT} to {MAX_WEIGHT:g}")
        if not self._database.run(self._store.set_weight(queue, fairness_key, weight)):
            raise UnknownQueue(
                f"no queue named {queue!r} is known to any node"
                + ("" if weight is not None else ", or it has no such weight")
            )
        self._announce_control()

    def heaviest_keys(self, queue: str, limit: int = 10) -> tuple[list[KeyLoad], int]:
        """Return the fairness keys with most tasks that may run now, and how many keys have any."""
        found: tuple[list[KeyLoad], int] = self._database.read_now(
            self._store.heaviest_keys(queue, limit)
        )
        return found

    # how ------------------------------------------------------------------------------------------

    def _at(self, task_id: str, version: int | None) -> TaskRecord:
        record = self.show(task_id)
        if version is not None and record.version != version:
            raise StaleVersion(
                f"task {task_id} is at version {record.version}, not {version}: read it again"
            )
        return record

    @staticmethod
    def _must_be(record: TaskRecord, states: set[State], force: bool, done: str) -> None:
        if record.state in states:
            return
        if record.state in FINAL_STATES:
            raise NotAllowed(
                f"task {record.id} is {record.state}: it is finished and cannot be {done}; submit"
                " it again"
            )
        if record.state == State.PROCESSING and force:
            return
        hint = f" ({DOUBLE_RUN})" if record.state == State.PROCESSING and done == "resumed" else ""
        raise NotAllowed(
            f"task {record.id} is {record.state}: only {', '.join(sorted(states))} can be"
            f" {done}{hint}"
        )

    def _move(self, record: TaskRecord, to: State, run_at: int, reset_tries: bool) -> None:
        now = self._context.clock.now()
        self._announce(
            record,
            self._database.run(
                self._store.move(record.id, record.version, to, run_at, now, reset_tries)
            ),
        )

    def _announce(self, record: TaskRecord, notification: Notification | None) -> None:
        """Announce a change. Raise StaleVersion if there is none."""
        if notification is None:
            raise StaleVersion(
                f"task {record.id} has changed since version {record.version}: read it again"
            )
        self._context.channel.announce(notification)

    def _end(self, record: TaskRecord, to: State, actor: str) -> None:
        now = self._context.clock.now()
        if not self._database.run(self._store.end(record.id, record.version, to, now, actor)):
            raise StaleVersion(
                f"task {record.id} has changed since version {record.version}: read it again"
            )
        self._announce_control(record.id)

    def _pause(self, queue: str, paused: bool) -> None:
        if not self._database.run(self._store.pause(queue, paused)):
            raise UnknownQueue(f"no queue named {queue!r} is known to any node")
        self._announce_control()

    def _announce_control(self, *finished: str) -> None:
        self._context.channel.announce(Notification(control=True, finished=list(finished)))

    def _filter(
        self,
        state: State | str | None,
        queue: str | None,
        name: str | None,
        fairness_key: str | None,
        older_than: timedelta | None,
    ) -> TaskFilter:
        try:
            wanted = None if state is None else State(state)
        except ValueError:
            raise InvalidTask(
                f"state {state!r} is unknown; use one of {', '.join(State)}"
            ) from None
        before = None
        if older_than is not None:
            before = self._context.clock.now() - older_than // timedelta(microseconds=1)
        return TaskFilter(wanted, queue, name, fairness_key, before)
