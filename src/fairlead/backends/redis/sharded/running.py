"""Run steps with a client of Redis, asynchronous or synchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError, ResponseError

from fairlead.backends.redis.sharded.redis_errors import (
    ServerMoved,
    code_of,
    is_demotion,
    translated_errors,
)
from fairlead.backends.redis.sharded.steps import (
    Command,
    ReadGroup,
    RedisCall,
    RunScript,
    Steps,
    WaitForEntry,
)

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
            response = await _respond_async(redis, queue, command)
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
        response = _respond(redis, queue, command)


async def _respond_async(redis: Any, queue: str, command: Command) -> Any:
    """Run one command. If its server has become a replica, drop the idle connections, and run the
    command once more: the new connection goes where the server's name leads now."""
    try:
        with translated_errors(queue):
            return await _do_async(redis, command)
    except ServerMoved:
        await _drop_connections_async(redis)
        if isinstance(command, ReadGroup):
            raise  # its caller knows the connection by number
        with translated_errors(queue):
            return await _do_async(redis, command)


def _respond(redis: Any, queue: str, command: Command) -> Any:
    """Run one command as `_respond_async` does."""
    try:
        with translated_errors(queue):
            return _do(redis, command)
    except ServerMoved:
        _drop_connections(redis)
        with translated_errors(queue):
            return _do(redis, command)


async def _drop_connections_async(redis: Any) -> None:
    """Close the idle connections of a client now, and those in use when their command ends."""
    if (connection := getattr(redis, "connection", None)) is not None:
        await connection.disconnect()
    if (pool := getattr(redis, "connection_pool", None)) is not None:
        await pool.update_active_connections_for_reconnect()
        await pool.disconnect(inuse_connections=False)


def _drop_connections(redis: Any) -> None:
    """Close the connections of a client as `_drop_connections_async` does."""
    if (connection := getattr(redis, "connection", None)) is not None:
        connection.disconnect()
    if (pool := getattr(redis, "connection_pool", None)) is not None:
        pool.update_active_connections_for_reconnect()
        pool.disconnect(inuse_connections=False)


async def _do_async(redis: Any, command: Command) -> Any:
    if isinstance(command, WaitForEntry):
        with _ignored_end_of_wait():
            return bool(await redis.xread(command.after, count=1, block=command.millis))
        return False
    if isinstance(command, RedisCall):
        return await redis.execute_command(*command.arguments)
    if isinstance(command, ReadGroup):
        with _ignored_end_of_wait():
            return _claimed(await redis.execute_command(*_claim(command)))
        return None
    try:
        return await redis.evalsha(command.script.sha, *_keys(redis, command), *command.arguments)
    except NoScriptError:
        return await redis.eval(command.script.text, *_keys(redis, command), *command.arguments)


def _do(redis: Any, command: Command) -> Any:
    if isinstance(command, WaitForEntry):
        with _ignored_end_of_wait():
            return bool(redis.xread(command.after, count=1, block=command.millis))
        return False
    if isinstance(command, RedisCall):
        return redis.execute_command(*command.arguments)
    if isinstance(command, ReadGroup):
        with _ignored_end_of_wait():
            return _claimed(redis.execute_command(*_claim(command)))
        return None
    try:
        return redis.evalsha(command.script.sha, *_keys(redis, command), *command.arguments)
    except NoScriptError:
        return redis.eval(command.script.text, *_keys(redis, command), *command.arguments)


def _keys(redis: Any, command: RunScript) -> tuple[int | str, ...]:
    """Return the number of keys of a script, and its keys. One server needs only the first key."""
    if isinstance(redis, RedisCluster | AsyncRedisCluster):
        return 1 + len(command.others), command.key, *command.others
    return 1, command.key


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
def _ignored_end_of_wait() -> Iterator[None]:
    """Ignore the error of a missing stream or group, and that of a wait that an operator or a
    deleted key has ended. A wait that ended because the server became a replica raises."""
    try:
        yield
    except ResponseError as error:
        code = code_of(error)
        if code != "NOGROUP" and (code != "UNBLOCKED" or is_demotion(error)):
            raise


def _claimed(response: Any) -> list[tuple[bytes, bytes, list[bytes]]]:
    """Flatten the response of XREADGROUP, which differs between RESP2 and RESP3."""
    pairs = response.items() if isinstance(response, dict) else response or ()
    found = []
    for key, entries in pairs:
        for id, fields in entries[0] if isinstance(response, dict) else entries:
            found.append((key, id, list(chain.from_iterable(fields.items()))))
    return found
