"""Runs steps with a client of Redis, asynchronous or not."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from redis.exceptions import NoScriptError

from fairlead.sharded.redis_errors import telling
from fairlead.sharded.steps import Run, Steps, Wait

T = TypeVar("T")


async def run_async(redis: Any, queue: str, steps: Steps[T]) -> T:
    """What the steps answer. Raises what they raise, and ConfigurationError, StoreUnavailable, QueueDamaged."""
    answer: Any = None
    task = asyncio.current_task()
    requests = task.cancelling() if task else 0
    while True:
        try:
            command = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        with telling(queue):
            answer = await (_run_async(redis, command) if isinstance(command, Run) else _wait_async(redis, command))
        if task and task.cancelling() > requests:
            # redis-py sends inside asyncio.wait_for, which on Python 3.11 forgets a cancellation that comes as it ends:
            # then we end when the command does, within WAIT_SECONDS.
            raise asyncio.CancelledError


def run(redis: Any, queue: str, steps: Steps[T]) -> T:
    """The same with a synchronous client."""
    answer: Any = None
    while True:
        try:
            command = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        with telling(queue):
            answer = _run(redis, command) if isinstance(command, Run) else _wait(redis, command)


async def _run_async(redis: Any, run: Run) -> Any:
    try:
        return await redis.evalsha(run.script.sha, 1, run.key, *run.arguments)
    except NoScriptError:
        return await redis.eval(run.script.text, 1, run.key, *run.arguments)


async def _wait_async(redis: Any, wait: Wait) -> bool:
    return bool(await redis.xread(wait.after, count=1, block=wait.millis))


def _run(redis: Any, run: Run) -> Any:
    try:
        return redis.evalsha(run.script.sha, 1, run.key, *run.arguments)
    except NoScriptError:
        return redis.eval(run.script.text, 1, run.key, *run.arguments)


def _wait(redis: Any, wait: Wait) -> bool:
    return bool(redis.xread(wait.after, count=1, block=wait.millis))
