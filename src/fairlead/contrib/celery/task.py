"""Tasks: classes and functions that run with `self.request`, hooks and retries."""

from __future__ import annotations

import importlib
import inspect
import random
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.contrib.celery import custom_state, missing
from fairlead.contrib.celery.canvas import chunks, xmap, xstarmap
from fairlead.contrib.celery.exceptions import (
    ImproperlyConfigured,
    MaxRetriesExceededError,
    OperationalError,
    Retry,
)
from fairlead.contrib.celery.messages import to_json
from fairlead.contrib.celery.request import Context, Running, running, set_running
from fairlead.contrib.celery.result import AsyncResult, EagerResult
from fairlead.contrib.celery.signature import Signature

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery


_RETRY_OPTIONS = frozenset({"queue", "priority", "expires"})
"""Options of `retry` that a new task gets."""


class ExceptionInfo(NamedTuple):
    """An exception and its traceback as text, as hooks and signals get them."""

    type: type[BaseException]
    exception: BaseException
    traceback: str

    def __str__(self) -> str:
        return self.traceback

    @classmethod
    def of(cls, error: BaseException) -> ExceptionInfo:
        """Return the information about an exception."""
        return cls(type(error), error, "".join(traceback.format_exception(error)))


class Task(missing.Names, names=missing.TASK):
    """A task. Subclasses are bases with hooks (`base=`), or define `run` themselves. Delays and
    time limits (`default_retry_delay`, `retry_backoff_max`, `time_limit`) are seconds."""

    name: str = ""
    typing: bool = True
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: tuple[type[BaseException], ...] = ()
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    retry_backoff: bool | float = False
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    retry_kwargs: Mapping[str, Any] = {}
    rate_limit: str | float | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    ignore_result: bool | None = None
    acks_late: bool = True
    reject_on_worker_lost: bool = True
    track_started: bool = True
    priority: int | None = None
    queue: str | None = None
    expires: float | datetime | None = None
    serializer: str | None = None
    throws: tuple[type[BaseException], ...] = ()
    abstract: bool = False
    MaxRetriesExceededError = MaxRetriesExceededError
    OperationalError = OperationalError
    _app: Celery | None = None

    # running --------------------------------------------------------------------------------------

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; subclasses define it. Raise NotImplementedError here."""
        raise NotImplementedError("Tasks must define the run method.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = running()
        if before is not None and before.task is self and before.is_entering:
            before.is_entering = False
            return self.run(*args, **kwargs)
        set_running(Running(self, Context(task=self.name, args=list(args), kwargs=kwargs)))
        try:
            return self.run(*args, **kwargs)
        finally:
            set_running(before)

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"

    @property
    def app(self) -> Celery:
        """The application of the task: its own, or the current one for a shared task."""
        from fairlead.contrib.celery.app.current import current

        return self._app or current()

    @property
    def request(self) -> Context:
        """The request of the run; an empty one outside a run."""
        found = running()
        return found.request if found is not None and found.task.name == self.name else Context()

    def retry(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Run the task again after `countdown` seconds or at `eta`: raise Retry. With other
        arguments, or without `throw`, submit a new task that counts the retries on, and return
        Retry without `throw`. Raise `exc`, or MaxRetriesExceededError, if its tries are used up,
        and ImproperlyConfigured for other arguments if tasks wait for the result of this one."""
        request = self.request
        if request.called_directly:
            raise exc or Retry("Task can be retried", None)
        limit = self.max_retries if max_retries is None else max_retries
        if limit is not None and request.retries >= limit:
            if exc is not None:
                raise exc
            raise MaxRetriesExceededError(
                f"Can't retry {self.name}[{request.id}] args:{request.args} kwargs:"
                f"{request.kwargs}",
                task_args=request.args,
                task_kwargs=request.kwargs,
            )
        if eta is None and countdown is None:
            countdown = self.default_retry_delay
        asked = Retry(exc=exc, when=eta or countdown, is_eager=request.is_eager)
        chosen = {name: value for name, value in options.items() if name in _RETRY_OPTIONS}
        if chosen or not throw or self._differ(request, args, kwargs):
            if request.has_dependents and throw:
                raise ImproperlyConfigured(
                    f"task {self.name!r}: other tasks wait for the result of this run, so that a"
                    " retry must run the same arguments; submit a new chain, and return"
                )
            again = self.signature(
                request.args if args is None else args,
                request.kwargs if kwargs is None else kwargs,
                **{"eta": eta, "countdown": countdown, **chosen},
            ).set(retries=request.retries + 1)
            if request.is_eager and throw:
                asked.sig = again  # which runs when this run has ended
            else:
                asked.is_submitted = True
                (again.apply if request.is_eager else again.apply_async)()
        if throw:
            raise asked from exc
        return asked

    def _differ(self, request: Context, args: Any, kwargs: Any) -> bool:
        """Return whether given arguments are other ones than those of the run."""
        pairs = (("args", args, request.args), ("kwargs", kwargs, request.kwargs))
        return any(
            given is not None and to_json(what, given) != to_json(what, now)
            for what, given, now in pairs
        )

    def autoretry(self, error: BaseException) -> None:
        """Call `retry` if the options of the task say so for this error."""
        if not isinstance(error, tuple(self.autoretry_for)) or isinstance(
            error, tuple(self.dont_autoretry_for)
        ):
            return
        options = dict(self.retry_kwargs)
        if self.retry_backoff:
            options["countdown"] = backoff(
                max(1.0, float(self.retry_backoff)),
                self.request.retries,
                self.retry_backoff_max,
                self.retry_jitter,
            )
        self.retry(exc=error, **options)

    # hooks ----------------------------------------------------------------------------------------

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Run before each run."""

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Run after a run that returned."""

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Run after a run that will be tried again; `exc` is that of `retry`, or None."""

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Run when the task is registered."""

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Run after the last run, which failed."""

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Run after a run that returned or failed, not after one that is tried again."""

    # submitting -----------------------------------------------------------------------------------

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Submit the task with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult:
        """Submit the task. Beside Celery's options, `fairness_key`, `weight`, `ordering_key`,
        `unique_key`, `context` and `connection` are those of Fairlead. Raise TypeError for
        arguments that do not fit, InvalidTask for what is not JSON, and ImproperlyConfigured for
        options that cannot be carried out."""
        given = {"task_id": task_id, "link": link, "link_error": link_error, **options}
        chosen = {name: value for name, value in given.items() if value is not None}
        result = self.signature(tuple(args or ()), dict(kwargs or {}), **chosen).apply_async()
        assert isinstance(result, AsyncResult)
        return result

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Submit the task after the commit of Django's transaction."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Submit the task after the commit of Django's transaction, as `apply_async`."""
        transaction: Any = importlib.import_module("django.db").transaction
        transaction.on_commit(lambda: self.apply_async(*args, **kwargs) and None)

    def apply(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        throw: bool | None = None,
        **options: Any,
    ) -> EagerResult:
        """Run the task here and now, with its hooks and retries, and return its result."""
        result = self.signature(tuple(args or ()), dict(kwargs or {}), **options).apply(throw=throw)
        assert isinstance(result, EagerResult)
        return result

    def signature(self, args: Any = None, kwargs: Any = None, **options: Any) -> Signature:
        """Return a signature of the task."""
        immutable = options.pop("immutable", False)
        return Signature(self.name, args, kwargs, options, app=self._app, immutable=immutable)

    subtask = signature

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature with these arguments."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature that gets no results of the tasks before it."""
        return self.signature(args, kwargs, immutable=True)

    def map(self, it: Iterable[Any]) -> Signature:
        """Return the signature of one task that calls this one with each item."""
        return xmap(self.s(), it, app=self._app)

    def starmap(self, it: Iterable[Any]) -> Signature:
        """Return the signature of one task that calls this one with the arguments of each item."""
        return xstarmap(self.s(), it, app=self._app)

    def chunks(self, it: Iterable[Any], n: int) -> chunks:
        """Return a group of tasks that call this one with the arguments of `n` items each."""
        return chunks(self.s(), it, n, app=self._app)

    def AsyncResult(self, task_id: str) -> AsyncResult:
        """Return the result of a task by its id."""
        return AsyncResult(task_id, app=self.app)

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None
    ) -> None:
        """Show a custom state of this run, with a map of JSON, as `state` and `info` of its result,
        within a second. Raise ImproperlyConfigured for another task than the one
        that runs here, or for more than 1000 bytes."""
        custom_state.report(self.request, task_id, state, meta)

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError if the arguments do not fit the function."""
        if self.typing:
            try:
                _parameters(self.run).bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.name}() {error}") from None


def _parameters(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def backoff(factor: float, retries: int, maximum: float, is_full_jitter: bool) -> float:
    """Return the seconds until the next try: `factor * 2**retries` up to `maximum`, with full
    jitter a random part of that."""
    wait = min(maximum, factor * 2.0 ** min(retries, 60))
    return random.uniform(0, wait) if is_full_jitter else wait


def retry_seconds(asked: Retry) -> float:
    """Return the seconds from now until the time of a Retry, at least 0."""
    when = asked.when
    if isinstance(when, datetime):
        aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return max(0.0, aware.timestamp() - time.time())
    if isinstance(when, timedelta):
        return max(0.0, when.total_seconds())
    return max(0.0, float(when or 0))
