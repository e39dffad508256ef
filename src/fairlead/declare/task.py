"""Declared tasks: the objects that `App.task` returns, and their submits."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, overload
from uuid import UUID

import msgspec

from fairlead.clock import SYSTEM_CLOCK
from fairlead.core import values
from fairlead.core.ids import IdSource, id_text
from fairlead.core.limits.cluster_limits import AnyLimit
from fairlead.core.payload import pack
from fairlead.core.policies.processing import ProcessingPolicy
from fairlead.core.policies.retry import RetryPolicy
from fairlead.core.sharding.partitions import partition_of
from fairlead.declare.current import current_task
from fairlead.declare.handle import TaskHandle
from fairlead.declare.handler import Handler
from fairlead.declare.options import Options, UniqueWhile
from fairlead.errors import InvalidTask
from fairlead.model import NewTask

if TYPE_CHECKING:
    from typing import Unpack

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

_ids = IdSource()
_ID_VERSION = 7


class TaskOptions(TypedDict, total=False):
    """The options of a submit; see `fairlead.declare.options.Options` for their bounds."""

    fairness_key: str
    weight: float
    priority: int
    run_at: datetime | None
    ordering_key: str | None
    unique_key: str | None
    unique_while: UniqueWhile
    unique_for: timedelta | None
    context: Mapping[str, str] | None
    tags: str
    connection: Any


class HandlerOptions(TypedDict, total=False):
    """The options of `App.task`; `timeout` is in seconds."""

    queue: str
    name: str | None
    retry: RetryPolicy
    processing: ProcessingPolicy | None
    timeout: float | None
    concurrency: AnyLimit | None
    transactional: bool
    keep_result: bool
    keep_log: bool | None
    executor: str | None
    on_failure: str


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A planned submit: task name, arguments and options, not yet checked. Interceptors may replace
    any of them."""

    handler: Handler
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: Options
    id: str | None = None
    """Id chosen with `new_ids` just before the submit, so that drafts of one submit may name each
    other; None for an id that the submit makes."""


def new_ids(count: int) -> list[str]:
    """Return ids for drafts that are submitted at once, in ascending order."""
    return [id_text(each) for each in _ids.block(count, SYSTEM_CLOCK.now())]


def _number_of(chosen: object) -> int:
    try:
        found = UUID(chosen) if isinstance(chosen, str) else None
    except ValueError:
        found = None
    if found is None or found.version != _ID_VERSION:
        raise InvalidTask(f"id {values.brief(chosen)}: use an id of new_ids()")
    return found.int


@dataclass
class Submission:
    """One call of a submit: interceptors may replace its drafts."""

    drafts: Sequence[Draft]
    handles: Sequence[TaskHandle] = ()
    """Handles in the order of the drafts; empty until the tasks are written."""


class Submits(Protocol):
    """Methods of an application that its tasks call."""

    def submit_many(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        """Submit the drafts in one transaction."""

    async def submit_many_async(self, drafts: Sequence[Draft]) -> list[TaskHandle]:
        """Submit the drafts from asynchronous code."""


class Task(Generic[P, R_co]):
    """A handler that can be submitted. Calling a task runs the function directly, as if it were not
    decorated."""

    def __init__(
        self,
        app: Submits,
        handler: Handler,
        function: Callable[P, R_co],
        options: Options | None = None,
    ) -> None:
        self.__name__ = handler.name
        functools.update_wrapper(self, function, updated=())  # for `help` and editors
        self.app = app
        self.handler = handler
        self.function = function
        self._options = options or Options()

    @property
    def name(self) -> str:
        """Name of the task in task rows."""
        return self.handler.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name} of queue {self.handler.queue}>"

    def options(self, **changes: Unpack[TaskOptions]) -> Task[P, R_co]:
        """Return a copy of the task with these options for its submits. Raises InvalidTask for an
        option out of bounds."""
        return Task(self.app, self.handler, self.function, self._options.changed(changes))

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """Return a draft to be submitted later with others: `app.submit_many([task.options(...)
        .draft(...), ...])`."""
        return Draft(self.handler, args, kwargs, self._options)

    @overload
    def submit(self: Task[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]: ...
    @overload
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R_co]: ...

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[Any]:
        """Submit one task with these arguments. Raises InvalidTask, before anything is written, if
        they do not fit."""
        return self.app.submit_many([Draft(self.handler, args, kwargs, self._options)])[0]

    @overload
    async def submit_async(
        self: Task[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[T]: ...
    @overload
    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R_co]: ...

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[Any]:
        """Submit from asynchronous code, also with asynchronous connections and sessions."""
        return (
            await self.app.submit_many_async([Draft(self.handler, args, kwargs, self._options)])
        )[0]

    @overload
    def submit_many(
        self: Task[P, Awaitable[T]], arguments: Iterable[Mapping[str, Any]]
    ) -> list[TaskHandle[T]]: ...
    @overload
    def submit_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[TaskHandle[R_co]]: ...

    def submit_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[TaskHandle[Any]]:
        """Submit one task for each map of arguments, all in one transaction, as a bulk."""
        return self.app.submit_many(self._drafts(arguments))

    @overload
    async def submit_many_async(
        self: Task[P, Awaitable[T]], arguments: Iterable[Mapping[str, Any]]
    ) -> list[TaskHandle[T]]: ...
    @overload
    async def submit_many_async(
        self, arguments: Iterable[Mapping[str, Any]]
    ) -> list[TaskHandle[R_co]]: ...

    async def submit_many_async(
        self, arguments: Iterable[Mapping[str, Any]]
    ) -> list[TaskHandle[Any]]:
        """Submit many from asynchronous code; otherwise as `submit_many`."""
        return await self.app.submit_many_async(self._drafts(arguments))

    def _drafts(self, arguments: Iterable[Mapping[str, Any]]) -> list[Draft]:
        handler, options = self.handler, self._options
        drafts = []
        for kwargs in values.many("arguments", arguments, InvalidTask):
            if not isinstance(kwargs, (dict, Mapping)):  # a dict is known at once
                raise InvalidTask(
                    f"arguments of {handler.name!r}: {values.brief(kwargs)}: use a map by name for"
                    " each task"
                )
            drafts.append(Draft(handler, (), dict(kwargs), options))
        return drafts


class TransactionalTask(Task[P, R_co]):
    """A task whose function gets a connection. For type checkers `connection` is its first
    parameter, which a submit leaves out."""

    if TYPE_CHECKING:

        def __call__(self, connection: Any, *args: P.args, **kwargs: P.kwargs) -> R_co: ...  # type: ignore[override]


class PeriodicDecorator(Protocol):
    """The decorator that `App.periodic` returns: it keeps a task, and makes a function one."""

    @overload
    def __call__(self, target: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, target: Callable[P, R], /) -> Task[P, R]: ...


def encode(
    drafts: Sequence[Draft], partitions: Mapping[str, int], now: int, payload_limit: int
) -> list[NewTask]:
    """Return the drafts as rows to insert. Raises InvalidTask, before anything is written, naming
    the first draft that does not fit."""
    ids = _ids.block(len(drafts), now)
    rows = []
    last_options: Options | None = None
    context: str | None = None
    run_at = now
    for task_id, draft in zip(ids, drafts, strict=True):
        handler, options = draft.handler, draft.options
        if draft.id is not None:
            task_id = _number_of(draft.id)
        if options is not last_options:  # a bulk shares its options: prepare them once
            last_options = options
            run_at = options.run_at_micros(now)
            context = json.dumps(dict(options.context)) if options.context else None
        encoded = handler.arguments.encode(draft.args, draft.kwargs)
        if len(encoded) > payload_limit:
            raise InvalidTask(
                f"task {handler.name!r}: its payload has {len(encoded):,} bytes, more than"
                f" {payload_limit:,}; store large data elsewhere and submit a reference, or raise"
                " payload_limit on the App"
            )
        payload, payload_format = pack(encoded)
        rows.append(
            NewTask(
                id_text(task_id),
                handler.queue,
                partition_of(options.ordering_key, task_id, partitions[handler.queue]),
                handler.name,
                payload,
                payload_format,
                options.priority,
                options.fairness_key,
                options.weight,
                options.ordering_key,
                options.unique_key,
                run_at,
                now,
                handler.kept.result,
                context,
                options.unique_until(now),
                options.tags,
            )
        )
    return rows


def joined_connection(drafts: Sequence[Draft]) -> Any:
    """Return the connection that all drafts share: their option, else that of the transactional
    handler running here, else None. Raises InvalidTask if the drafts have different
    connections, or for other objects than drafts."""
    if not isinstance(drafts, Sequence) or not all(isinstance(each, Draft) for each in drafts):
        raise InvalidTask(f"drafts {values.brief(drafts)}: use a list of results of task.draft()")
    connection = drafts[0].options.connection
    if any(draft.options.connection is not connection for draft in drafts):
        raise InvalidTask("one bulk submit uses one connection: give all its drafts the same one")
    if connection is None and (task := current_task()) is not None:
        return task.connection
    return connection
