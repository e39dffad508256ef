"""A handle on a submitted task: its state and its result."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec

from fairlead.errors import ResultNotKept, ResultTimeout, TaskFailed, UnknownTask
from fairlead.model import State, TaskKey, TaskRecord
from fairlead.ports.notification import Notification
from fairlead.ports.notifier import Notifier
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel

_LOOK_AGAIN = 5.0  # seconds; a wake that was lost costs a waiter no more than this


class TaskAccess(Protocol):
    """Where the task lives, and how others hear of it."""

    @property
    def store(self) -> TaskStore:
        """The task store."""

    @property
    def channel(self) -> TriggerChannel:
        """The trigger channel."""

    @property
    def notifier(self) -> Notifier:
        """How wakes reach other processes."""


class TaskHandle(msgspec.Struct, gc=False, eq=False):
    """What a submit answers. `is_new` is False when the unique key was taken and `id` is the
    earlier task's."""

    _access: TaskAccess
    id: str
    is_new: bool
    _keeps_result: bool
    _wake: Notification | None = None

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r}{'' if self.is_new else ', is_new=False'})"

    def trigger(self) -> None:
        """After your own commit on a plain SQLite connection: tell the nodes at once instead of
        within seconds."""
        if self._wake is not None:
            self._access.channel.announce(self._wake)

    def record(self) -> TaskRecord:
        """The task as it stands. Raises UnknownTask when it never committed or its history was
        cleaned."""
        store = self._access.store.records
        record: TaskRecord | None = store.database.read_now(store.task(self.id))
        if record is None:
            raise UnknownTask(
                f"no task {self.id}: its transaction did not commit, or its history was cleaned"
            )
        return record

    def state(self) -> State:
        """The task's state now. Raises UnknownTask as `record` does."""
        return self.record().state

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the task is finished and answer its return value (as JSON gives it back).

        Raises ResultNotKept, TaskFailed when it ended without success, ResultTimeout after
        `timeout` seconds.
        """
        if not self._keeps_result:
            raise ResultNotKept(f"task {self.id} keeps no result: declare it with keep_result=True")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            finished, value = self._finished()
            if finished:
                return value
            left = (
                _LOOK_AGAIN if deadline is None else min(_LOOK_AGAIN, deadline - time.monotonic())
            )
            if left <= 0:
                raise ResultTimeout(
                    f"task {self.id} has not finished within {timeout} s; it goes on"
                )
            self._access.notifier.wait_finished(self.id, left)

    async def result_async(self, timeout: float | None = None) -> Any:
        """The same without blocking the event loop."""
        return await asyncio.to_thread(self.result, timeout)

    def _finished(self) -> tuple[bool, Any]:
        store = self._access.store.records
        record = self.record()
        if record.state in (State.ERROR, State.FAILED, State.CANCELLED):
            why = f"{record.error_type or ''} {record.error_text or ''}".strip()
            raise TaskFailed(f"task {self.id} ended as {record.state}: {why}")
        if record.state != State.DONE:
            return False, None
        # Looked for after the state: both were written by one transaction.
        kept = store.database.read_now(store.result(self.id))
        return True, None if kept is None else msgspec.json.decode(kept)


class OrderedHandle(TaskHandle, gc=False, eq=False):
    """What a submit to an ordered queue answers. The log has the task once `result` returns; it
    runs at its time."""

    _appended: Future[None] | None = None
    key: TaskKey | None = None

    def record(self) -> TaskRecord:
        """The task as its last run left it. Raises UnknownTask before the first one has ended."""
        store = self._access.store.records
        record: TaskRecord | None = store.database.read_now(store.task(self.id))
        if record is None:
            raise UnknownTask(
                f"task {self.id} has not run yet; `fairlead ordered tasks` lists what waits"
            )
        return record

    def result(self, timeout: float | None = None) -> None:
        """Wait until the log has the task for good; of one submitted in your own transaction, your
        commit says that. Raises StoreUnavailable when it may not have it: submit again with the
        same unique_key and run_at; ResultTimeout."""
        assert self._appended is not None
        try:
            self._appended.result(timeout)
        except TimeoutError as error:
            raise ResultTimeout(
                f"the log has not answered for task {self.id} within {timeout} s"
            ) from error
