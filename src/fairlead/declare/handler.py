"""Handlers: functions of the user, with everything the engine needs to run them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fairlead.config import CHECKPOINT_LIMIT, RESULT_LIMIT
from fairlead.core import values
from fairlead.core.limits.cluster_limits import AnyLimit, check_limit
from fairlead.core.policies.processing import ProcessingPolicy
from fairlead.core.policies.retry import RetryPolicy
from fairlead.declare.arguments import Arguments
from fairlead.declare.current import CurrentTask
from fairlead.declare.json_types import JsonType, hints
from fairlead.errors import ConfigurationError


class ExecutorKind(StrEnum):
    """Kind of executor: the event loop, a thread or a child process."""

    LOOP = "loop"  # async functions, on the node's event loop
    THREAD = "thread"  # sync functions, each in a thread
    PROCESS = "process"  # sync functions that need a CPU of their own


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The parts of a run that are kept."""

    result: bool = False
    log: bool = False
    """Whether the log lines are kept."""
    is_log_asked: bool = False
    """Whether the task itself asks for its log lines."""
    result_limit: int = RESULT_LIMIT
    """Maximum number of bytes of a result."""
    checkpoint_limit: int = CHECKPOINT_LIMIT
    """Maximum number of bytes of a checkpoint."""


@dataclass(kw_only=True, eq=False)
class Handler:
    """A registered function with the options of `App.task`. Task rows carry its name. Raises
    ConfigurationError for bad values."""

    function: Callable[..., Any]
    name: str
    queue: str
    retry: RetryPolicy
    processing: ProcessingPolicy
    concurrency: AnyLimit | None = None
    transactional: bool = False
    transaction: Callable[[], AbstractContextManager[Any]] | None = None
    """Factory of the transaction of a transactional handler, which gives the connection; None: the
    store begins one."""
    kept: Kept = Kept()
    executor: str | None = None
    """Kind of executor as declared; None for the one that fits the function."""
    on_failure: str = "hold"
    executor_kind: ExecutorKind = field(init=False)
    arguments: Arguments = field(init=False)
    result: JsonType = field(init=False)
    """Type of its result; Any for one that is not kept."""

    def __post_init__(self) -> None:
        function, name = self.function, self.name
        values.name("task name", name)
        values.name(f"task {name!r}: queue", self.queue)
        values.methods(f"task {name!r}: retry", self.retry, "delay")
        check_limit(f"task {name!r}: concurrency", self.concurrency)
        _check(self.processing, name)
        values.one_of(f"task {name!r}: on_failure", self.on_failure, "hold", "skip")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                f"task {name!r}: a function with `yield` never runs as a handler; collect what it"
                " yields, and return that"
            )
        self.executor_kind = self._kind_of_executor()
        injected = frozenset({"connection"}) if self.transactional else frozenset()
        if self.transactional and "connection" not in inspect.signature(function).parameters:
            raise ConfigurationError(
                f"task {name!r}: a transactional handler takes a parameter named `connection`"
            )
        self.arguments = Arguments(function, name, injected)
        try:
            returned = hints(function, "return").get("return", Any) if self.kept.result else Any
            self.result = JsonType("return", returned)
        except (TypeError, NameError) as error:
            raise ConfigurationError(
                f"task {name!r}: its result cannot be kept as JSON: {error}"
            ) from error

    @property
    def is_async(self) -> bool:
        """Whether the function runs on the event loop."""
        return self.executor_kind is ExecutorKind.LOOP

    @property
    def skips_failed(self) -> bool:
        """Whether later tasks of an ordering key run although one of them has failed."""
        return self.on_failure == "skip"

    def _kind_of_executor(self) -> ExecutorKind:
        is_async = inspect.iscoroutinefunction(self.function)
        natural = ExecutorKind.LOOP if is_async else ExecutorKind.THREAD
        what = f"task {self.name!r}: executor"
        kind = (
            natural if self.executor is None else values.member(what, self.executor, ExecutorKind)
        )
        if (kind is ExecutorKind.LOOP) is not is_async:
            raise ConfigurationError(
                f"{what} {kind.value!r} does not fit"
                f" {'an async' if is_async else 'a sync'} function"
            )
        if kind is ExecutorKind.PROCESS and self.transactional:
            raise ConfigurationError(
                f"task {self.name!r}: a transaction cannot cross into another process"
            )
        return kind


def _check(processing: ProcessingPolicy, name: str) -> None:
    """Raise ConfigurationError for times out of range."""
    if isinstance(processing, type) or not all(
        hasattr(processing, each) for each in ("timeout", "max_stuck")
    ):
        raise ConfigurationError(
            f"task {name!r}: processing {values.brief(processing)}: use a Processing, or an object"
            " with its attributes"
        )
    for each in ("timeout", "max_stuck"):
        if (given := getattr(processing, each)) is not None:
            values.seconds(f"task {name!r}: {each} of its processing policy", given)


class RunInterceptor:
    """Middleware around submits and runs. Override the methods you need; the others cost
    nothing."""

    def submitting(self, draft: Any) -> Any:
        """Edit a `fairlead.Draft` before it is checked and written, or raise to refuse it."""
        return draft

    def submission(self, submission: Any) -> AbstractContextManager[object]:
        """Return a context manager around one call of a submit, of one task or many. `submission`:
        a `fairlead.declare.task.Submission`, whose drafts have passed every `submitting`."""
        return nullcontext()

    async def run(self, task: CurrentTask, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Wrap one run of an asynchronous handler: `await proceed()` runs the next interceptor and
        finally the handler, and raises what the handler raises."""
        return await proceed()

    def running(self, task: CurrentTask) -> AbstractContextManager[object]:
        """Return a context manager around every run, outside of any `run`: on the event loop, in
        the handler's thread, or in the worker while a child process runs the handler. Exceptions of
        the run pass through it; a run whose exception the context manager swallows is done."""
        return nullcontext()

    def in_child(self, task: CurrentTask) -> AbstractContextManager[object]:
        """Return a context manager around a handler inside a child process; `task.context` is as
        `running` left it."""
        return nullcontext()


def overridden(interceptors: Iterable[RunInterceptor], name: str) -> tuple[Callable[..., Any], ...]:
    """Return the overridden methods of this name, one per interceptor, outermost first."""
    plain = getattr(RunInterceptor, name)
    return tuple(
        getattr(i, name) for i in interceptors if getattr(type(i), name, plain) is not plain
    )


def entered(
    hooks: Iterable[Callable[[Any], AbstractContextManager[object]]], about: Any
) -> ExitStack:
    """Enter the context managers that the hooks return for `about`; the returned stack exits
    them."""
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook(about))
        return stack.pop_all()
