"""Handles of submitted tasks: state and result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Protocol

import msgspec

from fairlead.core import values
from fairlead.declare.handler import Handler
from fairlead.declare.waiting import Find, ended_now, loop_waiter
from fairlead.errors import (
    InvalidTask,
    NotSupported,
    ResultNotKept,
    ResultTimeout,
    TaskFailed,
    UnknownTask,
)
from fairlead.model import Progress, State, TaskKey, TaskRecord
from fairlead.ports.cluster import Cluster
from fairlead.ports.notification import Notification
from fairlead.ports.notifier import Notifier
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_records import TaskStatus

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R_co = TypeVar("R_co", default=Any, covariant=True)  # a bare `TaskHandle` is one of any result
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


class OrderedAccess(Protocol):
    """The adapter of ordered queues that a handle needs."""

    @property
    def schedule(self) -> ScheduleStore | None:
        """The schedule; None where there are no ordered queues."""


class TaskAccess(Protocol):
    """The adapters that a handle needs."""

    @property
    def connections(self) -> OrderedAccess:
        """The adapters of ordered queues."""

    @property
    def cluster(self) -> Cluster:
        """The store of queues, nodes and incidents."""

    @property
    def sql_store(self) -> SqlStore:
        """The task store in a SQL database. Raises NotSupported for another one."""

    def announce(self, notification: Notification) -> None:
        """Send the notification of committed tasks."""

    @property
    def notifier(self) -> Notifier:
        """The notifier, which carries notifications to other processes."""


def find_record(access: TaskAccess, task_id: str) -> TaskRecord | None:
    """Return the record of a task, also of one that waits in the schedule of an ordered queue.
    Raise NotSupported if the task store has no records."""
    runs, schedule = access.cluster.runs, access.connections.schedule
    if runs is None:
        store = access.sql_store
        record: TaskRecord | None = store.database.read_now(store.task(task_id))
    else:
        last = runs.database.read_now(runs.last_attempt(task_id))
        record = None if last is None else last.ended_task
    if record is None and schedule is not None and (waiting := schedule.find_now(task_id)):
        return waiting.record
    return record


class TaskHandle(msgspec.Struct, Generic[R_co], gc=False, eq=False):
    """A handle of a submitted task, whose result has the type `R_co`. `is_new` is False if the
    unique key was taken and `id` is the earlier task's."""

    _access: TaskAccess
    id: str
    is_new: bool
    _keeps_result: bool
    _notification: Notification | None = None
    _handlers: Mapping[str, Handler] = {}
    _done: TaskStatus | None = None
    """Status of the task once it is known to be DONE, which never changes."""

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r}{'' if self.is_new else ', is_new=False'})"

    def trigger(self) -> None:
        """Notify the nodes at once instead of within seconds; call it after your own commit on a
        plain SQLite connection."""
        if self._notification is not None:
            self._access.announce(self._notification)

    def record(self) -> TaskRecord:
        """Return the record of the task now. Raises UnknownTask if the task never committed or its
        history was cleaned."""
        record = self._found()
        if record is None:
            raise UnknownTask(
                f"no task {values.brief(self.id)}: check that the id is whole; otherwise its"
                " transaction did not commit, its history was cleaned, or it is in the log of an"
                " ordered queue and was not read yet"
            )
        return record

    def _found(self) -> TaskRecord | None:
        return find_record(self._access, self.id)

    def state(self) -> State:
        """Return the state of the task now. Raises UnknownTask as `record` does."""
        return self.record().state

    async def state_async(self) -> State:
        """Return the state without blocking the event loop, as `state` does."""
        return (await asyncio.to_thread(self.record)).state

    def result(self, timeout: float | None = None) -> R_co:
        """Wait until the task is finished and return its return value, of the type that its
        function declares in this application, else as plain data of JSON.

        Raises InvalidTask for a wrong timeout or a value of another type, ResultNotKept, TaskFailed
        if the task ended without success, ResultTimeout after `timeout` seconds.
        """
        check_timeout(timeout)
        self.check_kept()
        if self._done is None:
            deadline = None if timeout is None else time.monotonic() + timeout
            found = list(ended_now(self._access, [self.id], self.find, deadline))
            if not found:
                raise self._late(timeout)
            return self.value_of(found[0][0])
        return self.value_of(self._done)

    async def result_async(self, timeout: float | None = None) -> R_co:
        """Wait for the result at most `timeout` seconds without blocking the event loop, as
        `result` does. All coroutines of a loop that wait share one reader."""
        check_timeout(timeout)
        self.check_kept()
        if self._done is not None:
            return self.value_of(self._done)
        if timeout == 0:  # a look, for which asyncio.timeout leaves no time
            return await asyncio.to_thread(self.result, 0)
        try:
            async with asyncio.timeout(timeout):
                status = await loop_waiter(self._access).wait(self.id, self.find)
        except TimeoutError:
            raise self._late(timeout) from None
        return self.value_of(status)

    def progress(self) -> Progress | None:
        """Return the progress of the latest run that reported any; None if none did. Raises
        NotSupported if the store keeps no progress."""
        store = self._access.sql_store
        return store.database.read_now(store.progress(self.id))

    async def progress_async(self) -> Progress | None:
        """Return the progress without blocking the event loop, as `progress` does."""
        store = self._access.sql_store
        return await store.database.read(store.progress(self.id))

    def _late(self, timeout: float | None) -> ResultTimeout:
        return ResultTimeout(
            f"task {self.id} has not finished within {timeout} s; the task continues"
        )

    @property
    def access(self) -> TaskAccess:
        """The adapters of the application that made the handle."""
        return self._access

    @property
    def find(self) -> Find:
        """Function that raises UnknownTask unless the task is somewhere, such as in a schedule."""
        return lambda _: self.record()

    def check_kept(self) -> None:
        """Raise ResultNotKept if the task is known to keep no result."""
        if not self._keeps_result:
            raise self._not_kept()

    def ended(self, status: TaskStatus) -> None:
        """Keep the status of a task that is DONE, so that `result` reads nothing."""
        if status.state == State.DONE:
            self._done = status

    def value_of(self, status: TaskStatus) -> R_co:
        """Return the result of a task that has ended. Raises TaskFailed, ResultNotKept, and
        InvalidTask for a result of another type than declared here."""
        if status.state != State.DONE:
            why = f"{status.error_type or ''} {status.error_text or ''}".strip()
            raise TaskFailed(
                f"task {self.id} ended as {status.state}: {why}",
                task_id=self.id,
                error_type=status.error_type,
            )
        handler = self._handlers.get(status.name)
        if status.result is None:  # a kept None is JSON too
            if handler is not None and not handler.kept.result:
                raise self._not_kept()
            raise ResultNotKept(
                f"task {self.id} is done, and its result was deleted as old, or was not kept at"
                " that time"
            )
        decode = msgspec.json.decode if handler is None else handler.result.decode
        try:
            value: R_co = decode(status.result)
        except msgspec.DecodeError as error:
            raise InvalidTask(
                f"task {self.id}: its result does not fit what {status.name!r} declares: {error}"
            ) from error
        return value

    def _not_kept(self) -> ResultNotKept:
        return ResultNotKept(f"task {self.id} keeps no result: declare it with keep_result=True")


class OrderedHandle(TaskHandle, gc=False, eq=False):
    """A handle of a task submitted to an ordered queue. `result` returns once the log has stored
    the task; it does not wait for the run."""

    _appended: Future[None] | None = None
    """Ends when the log has stored the task; None if the transaction of the submit has."""
    key: TaskKey | None = None

    def record(self) -> TaskRecord:
        """Return the record left by the last run, or that of the schedule before the first one.
        Raises UnknownTask while the task is in the log only, and if another task with its key
        came before it or replaced it."""
        record = self._found()
        if record is None:
            raise UnknownTask(
                f"task {self.id} has not run and is not in the schedule: it was not read from the"
                " log yet, or another task with its key replaced it or has run"
            )
        return record

    def check_kept(self) -> None:
        """Raise NotSupported: an ordered queue keeps no results."""
        raise NotSupported(
            f"task {self.id} is in an ordered queue, which keeps no results; await each"
            " `handle.result_async()` to know that the log has the task"
        )

    async def result_async(self, timeout: float | None = None) -> None:
        await asyncio.to_thread(self.result, timeout)

    def result(self, timeout: float | None = None) -> None:
        """Wait until the log has stored the task durably. For a task submitted in your own
        transaction, your commit guarantees that. Raises StoreUnavailable if the log may not have
        it: submit again with the same unique_key and run_at. Raises ResultTimeout after `timeout`
        seconds."""
        try:
            if self._appended is not None:
                self._appended.result(timeout)
        except TimeoutError as error:
            raise ResultTimeout(
                f"the log has not confirmed task {self.id} within {timeout} s"
            ) from error


def check_timeout(timeout: float | None) -> None:
    """Raise InvalidTask for a timeout that is no number of seconds, from 0 on."""
    if timeout is not None:
        values.number("timeout (seconds)", timeout, 0, values.MOST_SECONDS, InvalidTask)
