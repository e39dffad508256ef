"""Tasks: functions that run with `self.request`, hooks and retries."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fairlead.contrib.celery import missing
from fairlead.contrib.celery.exceptions import ImproperlyConfigured, MaxRetriesExceededError, Retry
from fairlead.contrib.celery.messages import Context, running
from fairlead.contrib.celery.result import AsyncResult
from fairlead.contrib.celery.signatures import Args, Kwargs, Signature


class Task(missing.OfApplication):
    """A task. Subclasses are bases with hooks and attributes (`base=`), or define `run` themselves.
    Delays and time limits (`default_retry_delay`, `retry_backoff_max`, `time_limit`) are
    seconds."""

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
    ignore_result: bool | None = None
    priority: int | None = None
    queue: str | None = None
    abstract: bool = False
    MaxRetriesExceededError = MaxRetriesExceededError

    def __init_subclass__(cls) -> None:
        for name in vars(cls).keys() & missing.REPLACEMENTS.keys():
            raise missing.refusal(cls.__name__, name)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; subclasses define it. Raise NotImplementedError here."""
        raise NotImplementedError("Tasks must define the run method.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    @property
    def request(self) -> Context:
        """The request of the run; an empty one outside a run."""
        found = running.get()
        return found[1] if found is not None and found[0].name == self.name else Context()

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Run after a run that will be tried again; `exc` is that of `retry`, or None."""

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Run after the last run, which failed."""

    def retry(
        self, args: Args = None, kwargs: Kwargs = None, exc: BaseException | None = None,
        throw: bool = True, eta: datetime | None = None, countdown: float | None = None,
        max_retries: int | None = None, **options: Any,
    ) -> Retry:  # fmt: skip
        """Run the task again after `countdown` seconds or at `eta`: raise Retry. Raise `exc`, or
        MaxRetriesExceededError, if its tries are used up, and ImproperlyConfigured without `throw`
        and for other options or arguments than those of the run."""
        request = self.request
        if request.called_directly:
            raise exc or Retry()
        is_same = args is None or list(args) == list(request.args)
        is_same = is_same and (kwargs is None or dict(kwargs) == request.kwargs)
        if options or not throw or not is_same:
            raise ImproperlyConfigured(
                f"task {self.name!r}: a retry runs the same arguments with the same options; for"
                " others, submit a task and return"
            )
        limit = self.max_retries if max_retries is None else max_retries
        if limit is not None and request.retries >= limit:
            raise exc or MaxRetriesExceededError(
                f"Can't retry {self.name}[{request.id}] args:{request.args} kwargs:{request.kwargs}"
            )
        if eta is None and countdown is None:
            countdown = self.default_retry_delay
        raise Retry(exc=exc, when=eta or countdown) from exc

    def autoretry(self, error: BaseException) -> None:
        """Call `retry` if the options of the task say so for this error."""
        is_left = isinstance(error, tuple(self.dont_autoretry_for))
        if is_left or not isinstance(error, tuple(self.autoretry_for)):
            return
        options = dict(self.retry_kwargs)
        if self.retry_backoff:
            wait = max(1.0, float(self.retry_backoff)) * 2.0 ** min(self.request.retries, 60)
            wait = min(self.retry_backoff_max, wait)
            options["countdown"] = random.uniform(0, wait) if self.retry_jitter else wait
        self.retry(exc=error, **options)

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Submit the task with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Args = None, kwargs: Kwargs = None, **options: Any) -> AsyncResult:
        """Submit the task. Celery's options: `countdown` (seconds), `eta`, `queue`, `priority`,
        `task_id`, `link` and `ignore_result`; those of Fairlead: `fairness_key`, `weight`,
        `ordering_key`, `unique_key`, `unique_for`, `context` and `connection`. Raise TypeError for
        arguments that do not fit, InvalidTask for what is not JSON, and ImproperlyConfigured for
        other options."""
        result: AsyncResult = self.signature(args, kwargs, **options).apply_async()
        return result

    def apply(
        self, args: Args = None, kwargs: Kwargs = None, throw: bool | None = None, **options: Any
    ) -> AsyncResult:
        """Run the task here and now, with its hooks and retries, and return its result."""
        result: AsyncResult = self.signature(args, kwargs, **options).apply(throw=throw)
        return result

    def signature(self, args: Args = None, kwargs: Kwargs = None, **options: Any) -> Signature:
        """Return a signature of the task."""
        immutable = options.pop("immutable", False)
        return Signature(self, args, kwargs, options, app=self._app, immutable=immutable)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature with these arguments."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature that gets no results of the tasks before it."""
        return self.signature(args, kwargs, immutable=True)

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError if the arguments do not fit the function."""
        if self.typing:
            try:
                inspect.signature(self.run).bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.name}() {error}") from None


OPTIONS = frozenset(Task.__annotations__) - {"abstract", "name"}
"""Options of `Celery.task` besides `name`, `base` and `bind`."""
