"""Results of many tasks: `gather` and `as_completed`, for threads and for event loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from fairlead.core import values
from fairlead.declare.handle import TaskHandle, check_timeout
from fairlead.declare.waiting import ended_now, loop_waiter
from fairlead.errors import InvalidTask, ResultTimeout, TaskFailed
from fairlead.ports.task_records import TaskStatus


def gather(
    *handles: TaskHandle, timeout: float | None = None, return_exceptions: bool = False
) -> list[Any]:
    """Wait until all tasks are finished, and return their results in the order of the handles.

    All handles are read together, in one statement whenever some may have finished. The first task
    that ends without success raises its TaskFailed at once, and the others continue; with
    `return_exceptions`, the error takes the place of the result. Raises ResultTimeout after
    `timeout` seconds, ResultNotKept, UnknownTask, InvalidTask.
    """
    found = _checked(handles, timeout, keeps=True)
    results: dict[str, Any] = {}
    for handle, status in _ended(found, timeout):
        results[handle.id] = _outcome(handle, status, return_exceptions)
    return [results[handle.id] for handle in found]


async def gather_async(
    *handles: TaskHandle, timeout: float | None = None, return_exceptions: bool = False
) -> list[Any]:
    """Return the results as `gather` does, without blocking the event loop. Raises ResultTimeout
    after `timeout` seconds."""
    found = _checked(handles, timeout, keeps=True)
    results: dict[str, Any] = {}
    async for handle, status in _ended_async(found, timeout):
        results[handle.id] = _outcome(handle, status, return_exceptions)
    return [results[handle.id] for handle in found]


def as_completed(
    handles: Iterable[TaskHandle], *, timeout: float | None = None
) -> Iterator[TaskHandle]:
    """Yield each handle when its task has ended, those that end first at first. `result()` of a
    yielded handle returns or raises at once.

    Raises ResultTimeout if some have not ended `timeout` seconds after the first step, UnknownTask,
    InvalidTask. A task that keeps no result is seen within five seconds of its end.
    """
    return _yielded(_ended(_checked(handles, timeout), timeout))


def as_completed_async(
    handles: Iterable[TaskHandle], *, timeout: float | None = None
) -> AsyncIterator[TaskHandle]:
    """Yield handles as `as_completed` does, without blocking the event loop. Raises ResultTimeout
    after `timeout` seconds."""
    return _yielded_async(_ended_async(_checked(handles, timeout), timeout))


def _yielded(ends: Iterator[tuple[TaskHandle, TaskStatus]]) -> Iterator[TaskHandle]:
    for handle, status in ends:
        handle.ended(status)
        yield handle


async def _yielded_async(
    ends: AsyncIterator[tuple[TaskHandle, TaskStatus]],
) -> AsyncIterator[TaskHandle]:
    async for handle, status in ends:
        handle.ended(status)
        yield handle


def _checked(
    handles: Iterable[TaskHandle], timeout: float | None, keeps: bool = False
) -> list[TaskHandle]:
    """Return the handles. Raises InvalidTask for other objects and for handles of several
    applications."""
    check_timeout(timeout)
    found = list(values.many("handles", handles, InvalidTask))
    for handle in found:
        if not isinstance(handle, TaskHandle):
            raise InvalidTask(f"handle {values.brief(handle)}: use handles that a submit returned")
        if handle.access is not found[0].access:
            raise InvalidTask("these handles are of several applications: wait for each alone")
        if keeps:
            handle.check_kept()
    return found


def _outcome(handle: TaskHandle, status: TaskStatus, return_exceptions: bool) -> Any:
    try:
        return handle.value_of(status)
    except TaskFailed as error:
        if not return_exceptions:
            raise
        return error


def _by_id(handles: Sequence[TaskHandle]) -> dict[str, list[TaskHandle]]:
    found: dict[str, list[TaskHandle]] = {}
    for handle in handles:
        found.setdefault(handle.id, []).append(handle)
    return found


def _ended(
    handles: Sequence[TaskHandle], timeout: float | None
) -> Iterator[tuple[TaskHandle, TaskStatus]]:
    left = _by_id(handles)
    if not left:
        return
    deadline = None if timeout is None else time.monotonic() + timeout

    def find(task_id: str) -> Any:
        return left[task_id][0].record()

    for ended in ended_now(handles[0].access, list(left), find, deadline):
        for status in ended:
            for handle in left.pop(status.id):
                yield handle, status
    if left:
        raise _late(left, timeout)


async def _ended_async(
    handles: Sequence[TaskHandle], timeout: float | None
) -> AsyncIterator[tuple[TaskHandle, TaskStatus]]:
    left = _by_id(handles)
    if not left:
        return
    if timeout == 0:  # a look, for which asyncio.timeout_at leaves no time
        found = _ended(handles, 0)
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each
        return
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    waiter = loop_waiter(handles[0].access)
    ended: asyncio.Queue[asyncio.Future[TaskStatus]] = asyncio.Queue()
    futures = [waiter.wait(id, handles[0].find) for id, handles in left.items()]
    try:
        for future in futures:
            future.add_done_callback(ended.put_nowait)
        while left:
            try:
                async with asyncio.timeout_at(deadline):
                    status = (await ended.get()).result()
            except TimeoutError:
                raise _late(left, timeout) from None
            for handle in left.pop(status.id):
                yield handle, status
    finally:
        for future in futures:
            future.cancel()


def _late(left: dict[str, list[TaskHandle]], timeout: float | None) -> ResultTimeout:
    return ResultTimeout(
        f"{len(left)} of the tasks have not finished within {timeout} s, such as"
        f" {next(iter(left))}; the tasks continue"
    )
