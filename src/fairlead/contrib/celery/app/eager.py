"""Tasks that run at the call: `apply`, and `task_always_eager`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery import canvas, runner, states
from fairlead.contrib.celery.exceptions import NotRegistered, Retry
from fairlead.contrib.celery.plan import Before, Node, Plan, nodes_of
from fairlead.contrib.celery.request import Context
from fairlead.contrib.celery.result import EagerResult, GroupResult, Result
from fairlead.contrib.celery.signature import listed
from fairlead.contrib.celery.utils.ids import uuid

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery


def run_here(app: Celery, wanted: canvas.Signature, throws: bool) -> Result:
    """Run all tasks of a signature here, one after the other; return the result of the last.
    With `throws`, raise the exception of a task that fails."""
    plan = Plan()
    last = wanted.add_to(plan, None)
    ended: dict[str, EagerResult] = {}
    for node in plan.nodes:
        ended[node.id] = _run_node(app, node, ended, throws)
    return _eager(last, ended)


def _run_node(
    app: Celery, node: Node, ended: Mapping[str, EagerResult], throws: bool
) -> EagerResult:
    wanted = node.signature
    task = app.tasks.get(wanted.task)
    if task is None:
        app._import()
        task = app.tasks.get(wanted.task)
    if task is None:
        raise NotRegistered(f"no task {wanted.task!r} is registered")
    id = wanted.id or node.id
    for each in nodes_of(node.before):
        if ended[each.id].state != states.SUCCESS:
            return EagerResult(id, ended[each.id].result, states.FAILURE, name=task.name)
    args = [*wanted.args]
    if node.before is not None and not wanted.immutable:
        args.insert(0, _values(node.before, ended))
    if node.before is None:
        task.check_arguments(tuple(args), wanted.kwargs)
    retries = int(wanted.options.get("retries") or 0)
    while True:
        request = Context(
            id=id,
            row_id=id,
            task=task.name,
            args=tuple(args),
            kwargs=wanted.kwargs,
            retries=retries,
            is_eager=True,
            called_directly=False,
            root_id=id,
            hostname=socket.gethostname(),
            headers=wanted.options.get("headers") or {},
            delivery_info={"is_eager": True},
        )
        outcome = runner.call(task, request, (None, app.time_limits_of(task)[1]))
        asked = outcome.error
        if not isinstance(asked, Retry) or asked.is_submitted:
            break
        if asked.sig is not None:  # a retry with other arguments
            other = asked.sig.apply(throw=throws)
            return EagerResult(id, other.result, other.state, other.traceback, task.name)
        retries += 1
    if outcome.state == states.FAILURE:
        if throws and outcome.error is not None:
            raise outcome.error
        for each in listed(wanted.options.get("link_error")):
            errback = canvas.signature(each, app=app)
            called = app.tasks.get(errback.task)
            takes = called is None or runner.takes_error(called, errback.args, errback.kwargs)
            given = (request, outcome.error, outcome.traceback) if takes else (id,)
            errback.clone(given).apply()
    return EagerResult(id, outcome.value, outcome.state, outcome.traceback, task.name)


def _eager(last: Before, ended: Mapping[str, EagerResult]) -> Result:
    if isinstance(last, Node):
        return ended[last.id]
    return GroupResult(uuid(), [_eager(each, ended) for each in last or []])


def _values(before: Before, ended: Mapping[str, EagerResult]) -> Any:
    if isinstance(before, Node):
        return ended[before.id].result
    return [_values(each, ended) for each in before or []]
