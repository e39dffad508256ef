"""Run steps with a client of Redis, asynchronous or synchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from fairlead.backends.redis.sharded.redis_errors import translated_errors
from fairlead.backends.redis.sharded.steps import Command, ReadGroup, RedisCall, Steps, WaitForEntry

T = TypeVar("T")


class Cancelled:
    """A check whether the current task was cancelled after this object was made.

    redis-py sends inside asyncio.wait_for, which on Python 3.11 loses a cancellation that comes as
    it ends. A loop that waits for Redis again and again must call `check`, or it never ends.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task else 0

    def check(self) -> None:
        """Raise asyncio.CancelledError if the task was cancelled."""
        if self._task and self._task.cancelling() > self._before:
            raise asyncio.CancelledError


async def run_async(redis: Any, queue: str, steps: Steps[T]) -> T:
    """Run the steps and return their result. Raise the errors of the steps, and ConfigurationError,
    StoreUnavailable or QueueDamaged."""
    response: Any = None
    cancelled = Cancelled()
    while True:
        try:
            command = steps.send(response)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            with translated_errors(queue):
                response = await _do_async(redis, command)
        finally:
            cancelled.check()


def run(redis: Any, queue: str, steps: Steps[T]) -> T:
    """Run the steps with a synchronous client and return their result. Raise the same errors as
    `run_async`."""
    response: Any = None
    while True:
        try:
            command = steps.send(response)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        with translated_errors(queue):
            response = _do(redis, command)


async def _do_async(redis: Any, command: Command) -> Any:
    if isinstance(command, WaitForEntry):
        return bool(await redis.xread(command.after, count=1, block=command.millis))
    if isinstance(command, RedisCall):
        return await redis.execute_command(*command.arguments)
    if isinstance(command, ReadGroup):
        with _ignored_missing_group():
            return _claimed(await redis.execute_command(*_claim(command)))
        return None
    try:
        return await redis.evalsha(command.script.sha, 1, command.key, *command.arguments)
    except NoScriptError:
        return await redis.eval(command.script.text, 1, command.key, *command.arguments)


def _do(redis: Any, command: Command) -> Any:
    if isinstance(command, WaitForEntry):
        return bool(redis.xread(command.after, count=1, block=command.millis))
    if isinstance(command, RedisCall):
        return redis.execute_command(*command.arguments)
    if isinstance(command, ReadGroup):
        with _ignored_missing_group():
            return _claimed(redis.execute_command(*_claim(command)))
        return None
    try:
        return redis.evalsha(command.script.sha, 1, command.key, *command.arguments)
    except NoScriptError:
        return redis.eval(command.script.text, 1, command.key, *command.arguments)


def _claim(claim: ReadGroup) -> list[str | int]:
    command: list[str | int] = [
        "XREADGROUP",
        "GROUP",
        claim.group,
        claim.consumer,
        "COUNT",
        1,
        "BLOCK",
        claim.millis,
    ]
    return [*command, "STREAMS", *claim.keys, *[">"] * len(claim.keys)]


@contextmanager
def _ignored_missing_group() -> Iterator[None]:
    """Ignore the error of a missing stream or group, and that of an unblocked wait."""
    try:
        yield
    except ResponseError as error:
        if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
            raise


def _claimed(response: Any) -> list[tuple[bytes, bytes, list[bytes]]]:
    """Flatten the response of XREADGROUP, which differs between RESP2 and RESP3."""
    pairs = response.items() if isinstance(response, dict) else response or ()
    found = []
    for key, entries in pairs:
        for id, fields in entries[0] if isinstance(response, dict) else entries:
            found.append((key, id, list(chain.from_iterable(fields.items()))))
    return found
