"""A handler: the user's function with everything the engine must know to run it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

import msgspec

from fairlead.arguments import Arguments
from fairlead.core.cluster_limits import AnyLimit
from fairlead.core.processing import ProcessingPolicy
from fairlead.core.retry import RetryPolicy
from fairlead.current import CurrentTask
from fairlead.errors import ConfigurationError

encode_result = msgspec.json.Encoder().encode


class ExecutorKind(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"  # async functions, on the node's event loop
    THREAD = "thread"  # sync functions, each in a thread
    PROCESS = "process"  # sync functions that need a CPU of their own


class Handler:
    """One registered function. Its name is what stands in the task row."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        queue: str,
        retry: RetryPolicy,
        processing: ProcessingPolicy,
        concurrency: AnyLimit | None = None,
        transactional: bool = False,
        keep_result: bool = False,
        executor: str | None = None,
        on_failure: str = "hold",
    ) -> None:
        self.function = function
        self.name = name
        self.queue = queue
        self.retry = retry
        self.processing = processing
        self.concurrency = concurrency
        self.transactional = transactional
        self.keep_result = keep_result
        if on_failure not in ("hold", "skip"):
            raise ConfigurationError(f"task {name!r}: on_failure {on_failure!r}: use 'hold' or 'skip'")
        self.skips_failed = on_failure == "skip"
        self.is_async = inspect.iscoroutinefunction(function)
        self.executor = self._executor(executor)
        injected = frozenset({"connection"}) if transactional else frozenset()
        if transactional and "connection" not in inspect.signature(function).parameters:
            raise ConfigurationError(f"task {name!r}: a transactional handler takes a parameter named `connection`")
        self.arguments = Arguments(function, name, injected)

    def _executor(self, wanted: str | None) -> ExecutorKind:
        natural = ExecutorKind.LOOP if self.is_async else ExecutorKind.THREAD
        try:
            kind = natural if wanted is None else ExecutorKind(wanted)
        except ValueError:
            raise ConfigurationError(f"task {self.name!r}: executor {wanted!r}: use loop, thread or process") from None
        if (kind is ExecutorKind.LOOP) is not self.is_async:
            raise ConfigurationError(
                f"task {self.name!r}: executor {kind.value!r} does not fit {'an async' if self.is_async else 'a sync'} function"
            )
        if kind is ExecutorKind.PROCESS and self.transactional:
            raise ConfigurationError(f"task {self.name!r}: a transaction cannot cross into another process")
        return kind


class RunInterceptor:
    """Middleware around submit and run; override what you need."""

    def submitting(self, draft: Any) -> Any:
        """Edit a `fairlead.Draft` before it is checked and written, or raise to refuse it."""
        return draft

    async def run(self, task: CurrentTask, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Wrap one run: `await proceed()` runs the next interceptor and at last the handler; raises what it raises."""
        return await proceed()
