"""Waiting for tasks to finish: one reader for many handles, woken by notifications.

Each wake-up reads the tasks that may have finished in one statement. A blocking caller reads in its
own thread. All coroutines of an event loop share one reader per application, so a thousand of them
cost no thread and one statement per wake-up.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol, TypeVar

from fairlead.model import State, TaskRecord
from fairlead.ports.notifier import Notifier
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_records import TaskStatus

POLL_SECONDS = 5.0
"""Longest extra wait after a lost notification, and for tasks that keep no result."""

LOOK_SECONDS = 1.0
"""Seconds for a read at the end of a wait: the most by which a wait is late."""

ENDED = (State.DONE, State.ERROR, State.FAILED, State.CANCELLED)
"""States at which nobody waits any longer; a person may still retry a task in ERROR."""


T = TypeVar("T")


class WaitAccess(Protocol):
    """The adapters with which handles wait."""

    @property
    def sql_store(self) -> SqlStore:
        """The task store in a SQL database. Raises NotSupported for another one."""

    @property
    def notifier(self) -> Notifier:
        """The notifier, which carries notifications to other processes."""


Find = Callable[[str], TaskRecord]
"""Return the record of a task that `statuses` does not have, such as one in a schedule. Raises
UnknownTask."""


class _News:
    """Ids of tasks that may have finished, collected by the notifier's threads."""

    def __init__(self, on_news: Callable[[], object]) -> None:
        self._on_news = on_news
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        self._is_everywhere = False

    def add(self, ids: Collection[str]) -> None:
        """Note that these tasks may have finished; all of them without ids."""
        with self._lock:
            self._ids.update(ids)
            self._is_everywhere = self._is_everywhere or not ids
        self._on_news()

    def take(self, pending: Collection[str]) -> list[str]:
        """Return those of the pending ids that may have finished since the last call."""
        with self._lock:
            ids, is_everywhere = self._ids, self._is_everywhere
            self._ids, self._is_everywhere = set(), False
        return [id for id in pending if is_everywhere or id in ids]


def _by(deadline: float | None, call: Callable[[], T]) -> T:
    """Return what the call returns. Raises TimeoutError at the deadline, and leaves the call to its
    thread, where each statement has a deadline of its own."""
    if deadline is None:
        return call()
    outcome: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            outcome.set_result(context.run(call))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="fairlead-look", daemon=True).start()
    return outcome.result(max(LOOK_SECONDS, deadline - time.monotonic()))


def ended_now(
    access: WaitAccess, task_ids: Sequence[str], find: Find, deadline: float | None
) -> Iterator[list[TaskStatus]]:
    """Yield the statuses of the tasks as they end; nothing more after the deadline (monotonic
    seconds). Raises UnknownTask."""

    def statuses(ids: list[str]) -> list[TaskStatus]:
        records = access.sql_store
        return records.database.read_now(records.statuses(ids))

    pending = dict.fromkeys(task_ids)
    woken = threading.Event()
    news = _News(woken.set)
    stop: Callable[[], None] | None = None
    look = list(pending)
    try:
        while True:
            if look:
                found = _by(deadline, partial(statuses, look))
                ended = [status for status in found if status.state in ENDED]
                for status in ended:
                    del pending[status.id]
                if ended:
                    yield ended
                for missing in set(look).difference(status.id for status in found):
                    _by(deadline, partial(find, missing))
            if not pending:
                return
            left = POLL_SECONDS
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
            if left <= 0:
                return
            if stop is None:
                stop = access.notifier.watch_finished(news.add)
                look = list(pending)  # what ended before the watch began
                continue
            if woken.wait(left):
                woken.clear()
                look = news.take(pending)
            else:
                look = list(pending)
    except TimeoutError:  # of a read
        return
    finally:
        if stop is not None:
            stop()


class LoopWaiter:
    """The reader of one event loop and application. It runs while something waits."""

    def __init__(self, access: WaitAccess) -> None:
        self._access = access
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, list[asyncio.Future[TaskStatus]]] = {}
        self._find: dict[str, Find] = {}
        self._woken = asyncio.Event()
        self._news = _News(lambda: self._loop.call_soon_threadsafe(self._woken.set))
        self._task: asyncio.Task[None] | None = None

    def wait(self, task_id: str, find: Find) -> asyncio.Future[TaskStatus]:
        """Return a future of the status with which the task ends. Its exception: UnknownTask,
        StoreUnavailable, NotSupported."""
        future: asyncio.Future[TaskStatus] = self._loop.create_future()
        self._waiting.setdefault(task_id, []).append(future)
        self._find[task_id] = find
        future.add_done_callback(lambda _: self._drop(task_id, future))
        self._news.add([task_id])
        if self._task is None:
            # In a context of its own, because a handler whose run ends may be the first to wait.
            self._task = self._loop.create_task(
                self._run(), name="fairlead-waiting", context=contextvars.Context()
            )
        return future

    def _drop(self, task_id: str, future: asyncio.Future[TaskStatus]) -> None:
        futures = self._waiting.get(task_id, [])
        if future in futures:
            futures.remove(future)
        if not futures:
            self._waiting.pop(task_id, None)
            self._find.pop(task_id, None)
        if not self._waiting:
            self._woken.set()

    async def _run(self) -> None:
        stop: Callable[[], None] | None = None
        try:
            while self._waiting:
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._woken.wait()
                except TimeoutError:
                    self._news.add(())
                self._woken.clear()
                if changed := self._news.take(self._waiting):
                    await self._refresh(changed)
                if self._waiting and stop is None:
                    stop = self._access.notifier.watch_finished(self._news.add)
                    self._news.add(())  # what ended before the watch began
        finally:
            self._task = None
            if stop is not None:
                stop()
            if self._waiting:  # the loop ends
                for futures in list(self._waiting.values()):
                    for future in list(futures):
                        future.cancel()

    async def _refresh(self, task_ids: list[str]) -> None:
        try:
            records = self._access.sql_store
            found = {
                each.id: each for each in await records.database.read(records.statuses(task_ids))
            }
        except Exception as error:  # each waiter raises it, and may wait again
            for task_id in task_ids:
                self._fail(task_id, error)
            return
        for task_id in task_ids:
            status = found.get(task_id)
            if status is None:
                await self._refresh_elsewhere(task_id)
            elif status.state in ENDED:
                for future in self._open(task_id):
                    future.set_result(status)

    async def _refresh_elsewhere(self, task_id: str) -> None:
        if (find := self._find.get(task_id)) is not None:
            try:
                await asyncio.to_thread(find, task_id)
            except Exception as error:
                self._fail(task_id, error)

    def _fail(self, task_id: str, error: Exception) -> None:
        for future in self._open(task_id):
            future.set_exception(error)

    def _open(self, task_id: str) -> list[asyncio.Future[TaskStatus]]:
        return [future for future in self._waiting.get(task_id, []) if not future.done()]


_waiters: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakValueDictionary[int, LoopWaiter]
] = weakref.WeakKeyDictionary()


def loop_waiter(access: WaitAccess) -> LoopWaiter:
    """Return the reader of the running event loop for this application."""
    of_loop = _waiters.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    waiter = of_loop.get(id(access))  # a waiter keeps its access, so the id is not used again
    if waiter is None:
        waiter = of_loop[id(access)] = LoopWaiter(access)
    return waiter
