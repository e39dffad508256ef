"""Run steps with a client of Redis, asynchronous or synchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, TypeGuard, TypeVar

from redis import exceptions
from redis.exceptions import NoScriptError, ResponseError

from fairlead.sharded.clients import is_cluster
from fairlead.sharded.confirmation import Confirmation
from fairlead.sharded.errors import InvalidMessage, NotReplicated
from fairlead.sharded.redis_errors import (
    ServerMoved,
    code_of,
    is_demotion,
    translated_errors,
)
from fairlead.sharded.script import DELETE, REVIVE, WEIGH, WRITE
from fairlead.sharded.steps import (
    Command,
    RunScript,
    Steps,
    WaitForEntry,
)

T = TypeVar("T")

RELIED_ON = (WRITE, REVIVE, DELETE, WEIGH)
"""Scripts on whose effect a writer or an operator relies."""

_MOST_RACES = 5
"""Tries of a command whose connection is closed before the command is sent."""

_CONFIRMED_MILLIS = 60_000
"""Milliseconds after which the key that each confirmed write also writes expires."""


class Cancelled:
    """A check whether the current task was cancelled after this object was made.

    redis-py sends inside asyncio.wait_for, which on Python 3.11 loses a cancellation that comes as
    it ends. A loop that waits for Redis again and again must call `check`, or it never ends.
    """

    def __init__(self) -> None:
        has_loop = asyncio._get_running_loop() is not None  # a synchronous client needs none
        self._task = asyncio.current_task() if has_loop else None
        self._before = self._task.cancelling() if self._task else 0

    def check(self) -> None:
        """Raise asyncio.CancelledError if the task was cancelled."""
        if self._task and self._task.cancelling() > self._before:
            raise asyncio.CancelledError


async def run(
    redis: Any, queue: str, steps: Steps[T], confirmation: Confirmation | None = None
) -> T:
    """Run the steps and return their result. Raise the errors of the steps, and ConfigurationError,
    StoreUnavailable or QueueDamaged.

    `confirmation`: the replicas that must confirm those writes that somebody relies on. Raise
    NotReplicated if they do not."""
    response: Any = None
    failure: BaseException | None = None
    cancelled = Cancelled()
    while True:
        try:
            command = steps.send(response) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except UnicodeEncodeError as error:
            raise _not_text(error) from None
        failure = None
        try:
            try:
                response = await _respond(redis, queue, command, confirmation)
            finally:
                cancelled.check()
        except BaseException as error:
            failure = error


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that runs steps with a synchronous client. The coroutine
    never waits: each call of the client has ended when it returns."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a synchronous client has returned an awaitable")


async def _result(response: Any) -> Any:
    """Return what a call of the client has returned, or what an asynchronous client returns
    later."""
    return await response if isawaitable(response) else response


def _not_text(error: UnicodeEncodeError) -> InvalidMessage:
    part = error.object[error.start : error.end]
    return InvalidMessage(f"UTF-8 cannot keep {part!r}: half of a character; give bytes")


async def _respond(
    redis: Any, queue: str, command: Command, confirmation: Confirmation | None
) -> Any:
    """Run one command. If its server has become a replica, drop the idle connections, and run the
    command once more: the new connection goes where the server's name leads now."""
    try:
        with translated_errors(redis, queue):
            return await _execute(redis, command, confirmation)
    except ServerMoved:
        await _drop_connections(redis)
        with translated_errors(redis, queue):
            return await _execute(redis, command, confirmation)


async def _drop_connections(redis: Any) -> None:
    """Close the idle connections of a client now, and those in use when their command ends."""
    if (connection := getattr(redis, "connection", None)) is not None:
        await _result(connection.disconnect())
    if (pool := getattr(redis, "connection_pool", None)) is not None:
        await _result(pool.update_active_connections_for_reconnect())
        await _result(pool.disconnect(inuse_connections=False))


async def _execute(redis: Any, command: Command, confirmation: Confirmation | None) -> Any:
    """Run one command. A client of a cluster may close a connection that another task has just
    begun to open, while it refreshes the slots; redis-py 8.1 then raises AttributeError."""
    for _ in range(_MOST_RACES):
        try:
            return await _do(redis, command, confirmation)
        except AttributeError as error:
            if not is_cluster(redis) or "'NoneType' object" not in str(error):
                raise
            if "writelines" not in str(error):  # the command may have been sent
                raise exceptions.ConnectionError("closed during a refresh") from error
    raise exceptions.ConnectionError("closed during refreshes")


async def _do(redis: Any, command: Command, confirmation: Confirmation | None) -> Any:
    if confirmation is not None and _is_relied_on(command):
        responses = await _result(_confirmable(redis, command, confirmation, False).execute(False))
        if isinstance(responses[0], NoScriptError):
            again = _confirmable(redis, command, confirmation, True)
            responses = await _result(again.execute(False))
        return _confirmed(responses, confirmation)
    if isinstance(command, WaitForEntry):
        with _ignored_end_of_wait():
            entries = redis.xread(command.after, count=1, block=command.millis)
            return bool(await _result(entries))
        return False
    given = (*_keys(redis, command), *command.arguments)
    try:
        return await _result(redis.evalsha(command.script.sha, *given))
    except NoScriptError:
        return await _result(redis.eval(command.script.text, *given))


def _is_relied_on(command: Command) -> TypeGuard[RunScript]:
    """Return whether somebody relies on the effect: a writer, or an operator. If a failover loses
    the end of a claim instead, the message is only delivered again."""
    return isinstance(command, RunScript) and command.script in RELIED_ON


def _confirmable(redis: Any, command: RunScript, confirmation: Confirmation, as_text: bool) -> Any:
    """Return a pipeline of one connection: the script, a write, and the wait for the replicas.

    WAIT waits for the last write of its connection only, and the script of a repeated deletion
    writes nothing. The additional write comes after all writes that the server has executed."""
    script = ("EVAL", command.script.text) if as_text else ("EVALSHA", command.script.sha)
    pipeline = redis.pipeline(transaction=False)
    pipeline.execute_command(*script, *_keys(redis, command), *command.arguments)
    pipeline.execute_command("SET", f"{command.key}:confirmed", 1, "PX", _CONFIRMED_MILLIS)
    pipeline.execute_command("WAIT", confirmation.replicas, confirmation.millis)
    return pipeline


def _confirmed(responses: Sequence[Any], confirmation: Confirmation) -> Any:
    """Return the response of the command if enough replicas have confirmed it."""
    for response in responses:
        if isinstance(response, Exception):
            raise response
    if responses[-1] < confirmation.replicas:
        raise NotReplicated(
            f"Redis has written, but {responses[-1]} of {confirmation.replicas} replicas confirmed"
            f" it within {confirmation.millis} ms, so a failover may lose it; start the replicas,"
            " or lower wait_replicas. Another write makes a second message"
        )
    return responses[0]


def _keys(redis: Any, command: RunScript) -> tuple[int | str, ...]:
    """Return the number of keys of a script, and its keys. One server needs only the first key."""
    if is_cluster(redis):
        return 1 + len(command.others), command.key, *command.others
    return 1, command.key


@contextmanager
def _ignored_end_of_wait() -> Iterator[None]:
    """Ignore the error of a wait that an operator or a deleted key has ended. A wait that ended
    because the server became a replica raises."""
    try:
        yield
    except ResponseError as error:
        if code_of(error) != "UNBLOCKED" or is_demotion(error):
            raise
