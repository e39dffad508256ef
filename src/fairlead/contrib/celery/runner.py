"""One run of a task: what it waits for, its request, its hooks, its retries and its errbacks."""

from __future__ import annotations

import functools
import inspect
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import fairlead
from fairlead.contrib.celery import held, signals, states
from fairlead.contrib.celery.canvas import signature
from fairlead.contrib.celery.exceptions import (
    Ignore,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
)
from fairlead.contrib.celery.messages import (
    Extras,
    Failed,
    Ignored,
    from_json,
    ignored_result,
    to_json,
)
from fairlead.contrib.celery.request import Context, Running, running, set_running
from fairlead.contrib.celery.result import AsyncResult
from fairlead.contrib.celery.task import ExceptionInfo, Task, retry_seconds
from fairlead.contrib.celery.time_limits import TimeLimit
from fairlead.errors import InvalidTask, Snooze
from fairlead.errors import Retry as RunAgain

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery

_PATIENCE = 0.5
"""Seconds after which a thread that outlasted its time limit is interrupted."""


class Retried(RunAgain):
    """Raised to run a task again after some seconds; its text is the error of this run."""

    def __init__(self, asked: Retry) -> None:
        super().__init__(retry_seconds(asked))
        self.args = (str(asked),)


class AsTheTaskSays:
    """The retry policy of a task whose run has already decided whether it is tried again."""

    def delay(self, tries: int, error: BaseException) -> float | None:
        """Return 0 for a run that asked to be tried again, else None."""
        return 0.0 if type(error) is Retried else None


class Outcome:
    """End of one call of the function of a task."""

    def __init__(self, state: str, value: Any, error: BaseException | None = None) -> None:
        self.state = state
        self.value = value
        self.error = error

    @property
    def traceback(self) -> str | None:
        """Text of the error with its traceback; None without an error."""
        return None if self.error is None else ExceptionInfo.of(self.error).traceback


def run(app: Celery, task: Task, args: list[Any], kwargs: dict[str, Any], extras: Extras) -> Any:
    """Run a task of the store; return its result as plain data. Raise what ends the run in another
    way: an error, Retried or Snooze."""
    current = fairlead.current_task()
    assert current is not None
    app.on_first_run()
    given = from_json(args)
    shown = extras.id or current.id
    if extras.expires is not None and datetime.now(UTC) >= extras.expires:
        request = Context(
            id=shown, row_id=current.id, task=task.name, args=given, kwargs=from_json(kwargs)
        )
        signals.task_revoked.send(
            sender=task, request=request, terminated=False, signum=None, expired=True
        )
        app.fairlead.management.cancel(current.id, actor=f"its expiry at {extras.expires}")
        return None
    if extras.after is not None:
        try:
            before = held.results(app.fairlead, extras.after)
        except held.NotYet:
            raise Snooze(held.next_look(current.attempt)) from None
        except held.BrokenDependency as broken:
            wakes = list(extras.wakes)
            if not isinstance(extras.after, str):  # the body of a chord
                wakes += _submit_errbacks(app, extras, Failed(shown, current.id, args, kwargs))
            held.cancel(app.fairlead, current.id, str(broken))
            app.waker.wake(wakes, False)
            return None
        if extras.eta is not None and extras.eta > datetime.now(UTC):
            raise Snooze(extras.eta)
        if extras.passes:
            given = [from_json(before), *given]
    if extras.errback_of is not None:
        of = extras.errback_of
        if isinstance(of, str):
            of = Failed(of, of, [], {})
        if not AsyncResult(of.row_id, app=app).ready():
            raise Snooze(held.next_look(current.attempt))
        if extras.passes:
            given = [*(_error(app, of) if takes_error(task, given, kwargs) else [of.id]), *given]
    request = Context(
        id=shown,
        row_id=current.id,
        task=task.name,
        args=given,
        kwargs=from_json(kwargs),
        retries=extras.retries + current.tries - 1,
        eta=extras.eta,
        expires=extras.expires,
        called_directly=False,
        root_id=extras.root or shown,
        parent_id=extras.parent,
        group=extras.group,
        headers=extras.headers,
        hostname=f"fairlead@{socket.gethostname()}",
        delivery_info={
            "exchange": "",
            "routing_key": current.queue,
            "priority": app.celery_priority(current.priority),
            "redelivered": current.attempt > current.tries,
        },
        timelimit=(task.time_limit, task.soft_time_limit),
        errbacks=extras.link_error,
        has_dependents=bool(extras.wakes),
    )
    ignores = app.ignores_result(task) if extras.ignore_result is None else extras.ignore_result
    is_kept = extras.wakes or not ignores
    failed = Failed(shown, current.id, to_json("args", given) if extras.link_error else [], kwargs)
    outcome = call(task, request, app.time_limits_of(task), is_encoded=bool(is_kept))
    errbacks = functools.partial(_submit_errbacks, app, extras, failed)
    wakes = [*extras.wakes, *(errbacks() if outcome.state == states.FAILURE else ())]
    if wakes or extras.link_error:
        on_failure = errbacks if outcome.state != states.FAILURE else None
        app.waker.ended(held.Ended(current.id, wakes, extras.is_partial, on_failure))
    if outcome.error is not None:
        if isinstance(outcome.error, Retry):
            if outcome.error.is_submitted:
                return None
            raise Retried(outcome.error) from None
        if isinstance(outcome.error, Reject) and outcome.error.requeue:
            raise Snooze(datetime.now(UTC) + timedelta(seconds=1))
        raise outcome.error
    if outcome.state == states.IGNORED:
        state, meta = request.reported or (None, None)
        return ignored_result(Ignored(state, to_json("meta of update_state", meta)))
    return outcome.value if is_kept else None


def call(
    task: Task,
    request: Context,
    limits: tuple[float | None, float | None],
    is_encoded: bool = False,
) -> Outcome:
    """Call the function of a task with its request, hooks and signals. With `is_encoded`, the value
    of the outcome is plain data of JSON, and one that cannot be so fails the run."""
    hard, soft = limits
    before = running()
    set_running(Running(task, request))
    try:
        outcome = _called(task, request, hard, soft)
        encoded: Any = None
        if is_encoded and outcome.state == states.SUCCESS:
            try:
                encoded = to_json(f"result of task {task.name!r}", outcome.value)
            except InvalidTask as error:
                outcome = Outcome(states.FAILURE, error, error)
        _after(task, request, outcome)
        if is_encoded and outcome.state == states.SUCCESS:
            outcome.value = encoded
        return outcome
    finally:
        set_running(before)


def _called(task: Task, request: Context, hard: float | None, soft: float | None) -> Outcome:
    id, args, kwargs = request.id or "", request.args, request.kwargs
    signals.task_prerun.send(sender=task, task_id=id, task=task, args=args, kwargs=kwargs)
    try:
        task.before_start(id, args, kwargs)
        try:
            with (
                TimeLimit(None if hard is None else hard + _PATIENCE, TimeLimitExceeded),
                TimeLimit(soft, SoftTimeLimitExceeded),
            ):
                set_running(Running(task, request, is_entering=True))
                value = task(*args, **kwargs)
        except (Retry, Ignore, Reject):
            raise
        except Exception as error:
            task.autoretry(error)
            raise
    except Retry as asked:
        return Outcome(states.RETRY, asked, asked)
    except Ignore as ignored:
        return Outcome(states.IGNORED, ignored)
    except Reject as rejected:
        return Outcome(states.REJECTED, rejected, rejected)
    except Exception as error:
        return Outcome(states.FAILURE, error, error)
    return Outcome(states.SUCCESS, value)


def _after(task: Task, request: Context, outcome: Outcome) -> None:
    """Call the hooks and send the signals for the end of a run."""
    id, args, kwargs = request.id or "", request.args, request.kwargs
    info = None if outcome.error is None else ExceptionInfo.of(outcome.error)
    error = outcome.error
    if outcome.state == states.SUCCESS:
        _hook(task, "on_success", outcome.value, id, args, kwargs)
        signals.task_success.send(sender=task, result=outcome.value)
    elif outcome.state == states.RETRY:
        assert isinstance(error, Retry)
        _hook(task, "on_retry", error.exc, id, args, kwargs, info)
        signals.task_retry.send(sender=task, request=request, reason=error, einfo=info)
    elif outcome.state == states.FAILURE:
        _hook(task, "on_failure", error, id, args, kwargs, info)
        signals.task_failure.send(
            sender=task,
            task_id=id,
            exception=error,
            args=args,
            kwargs=kwargs,
            traceback=None if error is None else error.__traceback__,
            einfo=info,
        )
    if outcome.state in (states.SUCCESS, states.FAILURE):
        _hook(task, "after_return", outcome.state, outcome.value, id, args, kwargs, info)
    signals.task_postrun.send(
        sender=task,
        task_id=id,
        task=task,
        args=args,
        kwargs=kwargs,
        retval=outcome.value,
        state=outcome.state,
    )


def _hook(task: Task, name: str, *args: Any) -> None:
    """Call a hook. Its exception is logged and changes nothing else, as in Celery: the run has
    ended."""
    try:
        getattr(task, name)(*args)
    except Exception:
        signals.log.exception("a hook raised an exception", extra={"hook": name})


def _submit_errbacks(app: Celery, extras: Extras, failed: Failed) -> list[str]:
    """Submit the errbacks of a failed task, each once although the run may repeat; return their
    ids."""
    ids = []
    for position, given in enumerate(extras.link_error):
        key = f"celery-errback/{failed.row_id}/{position}"
        submitted = app.submit(signature(given, app=app), errback_of=failed, unique_key=key)
        ids += [submitted.id] if isinstance(submitted, AsyncResult) else []
    return ids


def takes_error(errback: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an errback, called with these arguments of its own, gets (request, exception,
    traceback) of the failed task rather than its id alone."""
    parameters = inspect.signature(errback.run).parameters.values()
    positional = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and each.name not in kwargs
    ]
    has_rest = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return len(positional) > len(args) + 1 or (has_rest and not inspect.ismethod(errback.run))


def _error(app: Celery, failed: Failed) -> list[Any]:
    """Return (request, exception, traceback) of a failed task."""
    result = AsyncResult(failed.row_id, app=app)
    record = result.record()
    request = Context(
        id=failed.id,
        row_id=failed.row_id,
        task=None if record is None else record.name,
        args=from_json(failed.args),
        kwargs=from_json(failed.kwargs),
        retries=0 if record is None else max(0, record.tries - 1),
        called_directly=False,
    )
    error = result.result
    if not isinstance(error, BaseException):
        error = TaskRevokedError("the task has not failed any more")
    return [request, error, result.traceback]
