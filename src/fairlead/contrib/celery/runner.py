"""One run of a task: what it waits for, its request, its hooks and its retries; and runs at the
call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import fairlead
from fairlead.contrib.celery.exceptions import ChordError, Retry
from fairlead.contrib.celery.messages import (
    Context,
    ExceptionInfo,
    Extras,
    from_json,
    running,
    to_json,
)
from fairlead.contrib.celery.result import AsyncResult, grouped
from fairlead.contrib.celery.signatures import Node, Signature, mapped
from fairlead.contrib.celery.states import FAILURE, RETRY, SUCCESS
from fairlead.contrib.celery.task import Task
from fairlead.contrib.celery.waiting import log, results
from fairlead.errors import Snooze

if TYPE_CHECKING:
    from fairlead.contrib.celery.app import Celery


MOST_AT_ONCE = 1000
"""Runs at the call of a task that is always retried, after which the last Retry is its error."""


class AsTheTaskSays:
    """The retry policy of a task whose run has already decided whether it is tried again."""

    def delay(self, tries: int, error: BaseException) -> float | None:
        """Return the seconds for which a run asked, else None."""
        return error.seconds() if isinstance(error, Retry) else None


def handler_function(app: Celery, task: Task) -> Callable[..., Any]:
    """Return the function by which Fairlead runs a task. It returns plain data, and raises what
    ends the run in another way: an error, Retry or Snooze."""

    def run(args: list[Any], kwargs: dict[str, Any], celery: Extras = Extras()) -> Any:  # noqa: B008
        current = fairlead.current_task()
        assert current is not None
        given = from_json(args)
        if celery.after is not None:
            try:
                before = from_json(results(app.fairlead, celery.after, current.attempt))
            except ChordError:
                app.waker.ended(current.id, celery.wakes)
                raise
            if celery.eta is not None and celery.eta > datetime.now(UTC):
                raise Snooze(celery.eta)
            given = [before, *given] if celery.passes else given
        request = Context(
            id=current.id,
            task=task.name,
            args=given,
            kwargs=from_json(kwargs),
            retries=current.tries - 1,
            eta=celery.eta,
            called_directly=False,
        )
        choices = (celery.ignore_result, task.ignore_result, app.conf.task_ignore_result)
        is_ignored = next(each for each in choices if each is not None) and not celery.wakes
        state, value = call(task, request, is_encoded=not is_ignored)
        if state != RETRY:
            app.waker.ended(current.id, celery.wakes)
        if state != SUCCESS:
            raise value
        return None if is_ignored else value

    return run


def call(task: Task, request: Context, is_encoded: bool = False) -> tuple[str, Any]:
    """Call the function of a task with its request and hooks; return the state and the result, or
    the exception that ended the run. With `is_encoded`, the result is plain data of JSON, and one
    that cannot be so fails the run."""
    token = running.set((task, request))
    about = (request.id, request.args, request.kwargs)
    try:
        try:
            value = task(*request.args, **request.kwargs)
            value = to_json(f"result of task {task.name!r}", value) if is_encoded else value
            return SUCCESS, value
        except Retry:
            raise
        except Exception as error:
            task.autoretry(error)
            raise
    except Retry as asked:
        _hook(task.on_retry, asked.exc, *about, ExceptionInfo(asked))
        return RETRY, asked
    except Exception as error:
        _hook(task.on_failure, error, *about, ExceptionInfo(error))
        return FAILURE, error
    finally:
        running.reset(token)


def _hook(hook: Callable[..., None], *args: Any) -> None:
    """Call a hook. Its exception is logged and changes nothing else, as in Celery: the run has
    ended."""
    try:
        hook(*args)
    except Exception:
        log.exception("a hook raised an exception", extra={"hook": hook.__name__})


# at the call -------------------------------------------------------------------------------------


def run_here(app: Celery, wanted: Signature, throws: bool) -> Any:
    """Run all tasks of a signature here, one after the other; return the result of the last. With
    `throws`, raise the exception of a task that fails. Raise NotRegistered."""
    nodes: list[Node] = []
    last = wanted.add_to(nodes, None, {})
    ended: dict[str, AsyncResult] = {}
    for node in nodes:
        ended[node.id] = _run_node(app, node, ended, throws)
    return grouped(mapped(last, lambda node: ended[node.id]))


def _run_node(
    app: Celery, node: Node, ended: Mapping[str, AsyncResult], throws: bool
) -> AsyncResult:
    wanted, task = node.signature, app.task_of(node.signature.task)
    args = wanted.args
    earlier: list[AsyncResult] = []
    if node.before is None:
        task.check_arguments(args, wanted.kwargs)
    else:
        mapped(node.before, lambda each: earlier.append(ended[each.id]))
        before = mapped(node.before, lambda each: ended[each.id].result)
        args = args if wanted.immutable else (before, *args)
    for each in earlier:
        if not each.successful():
            return AsyncResult(node.id, ended=(FAILURE, each.result, each.traceback))
    request = Context(
        id=node.id,
        task=task.name,
        args=args,
        kwargs=wanted.kwargs,
        is_eager=True,
        called_directly=False,
    )
    state, value = call(task, request)
    while state == RETRY:
        request.retries += 1
        state, value = call(task, request) if request.retries < MOST_AT_ONCE else (FAILURE, value)
    if state == FAILURE and throws:
        raise value
    trace = ExceptionInfo(value).traceback if state == FAILURE else None
    return AsyncResult(node.id, ended=(state, value, trace))
