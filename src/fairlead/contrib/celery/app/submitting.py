"""Rows of the tasks of a signature: what a call, its task, its routes and the settings say."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.contrib.celery import canvas, mapping, signals
from fairlead.contrib.celery.app import routes
from fairlead.contrib.celery.app.making import foreign_handler
from fairlead.contrib.celery.conf import Conf
from fairlead.contrib.celery.exceptions import ImproperlyConfigured, NotRegistered
from fairlead.contrib.celery.messages import Extras, Failed, from_json, to_json
from fairlead.contrib.celery.plan import Before, Node, Plan
from fairlead.contrib.celery.request import running
from fairlead.contrib.celery.result import AsyncResult, GroupResult, Result
from fairlead.contrib.celery.signature import listed
from fairlead.contrib.celery.utils.ids import uuid
from fairlead.declare.handler import Handler
from fairlead.declare.options import Options
from fairlead.declare.task import Draft
from fairlead.errors import InvalidTask, UnknownTask

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery

_OWN = ("fairness_key", "weight", "ordering_key", "context", "connection")
_WITHOUT_EFFECT = frozenset(
    {
        "retry",
        "retry_policy",
        "serializer",
        "compression",
        "add_to_parent",
        "reply_to",
        "publisher",
        "producer",
        "shadow",
        "delivery_mode",
        "group_id",
        "group_index",
        "chord",
        "replaced_task_nesting",
        "root_id",
        "parent_id",
        "argsrepr",
        "kwargsrepr",
    }
)
CUSTOM_ID = "celery-id/"
"""Beginning of the unique key of a task whose id no row can have."""


def submit(
    app: Celery, wanted: canvas.Signature, errback_of: Failed | None, unique_key: str | None
) -> Result:
    """Submit a signature with all that belongs to it in one transaction; return the result of
    its last tasks. Raise the errors of `Task.apply_async`."""
    plan = Plan()
    last = wanted.add_to(plan, None)
    group = uuid()
    parent = running()
    drafts = []
    for position, node in enumerate(plan.nodes):
        extras: dict[str, Any] = {"errback_of": None if node.before is not None else errback_of}
        if len(plan.nodes) > 1:
            extras["group"] = group
        if parent is not None:
            extras |= {"parent": parent.request.id, "root": parent.request.root_id}
        key = unique_key and f"{unique_key}/{position}"
        drafts.append(_draft(app, node, extras, key))
    _announce(signals.before_task_publish, drafts)
    handles = app.fairlead.submit_many(drafts) if drafts else []
    _announce(signals.after_task_publish, drafts)
    ids = {
        node.id: node.signature.id or handle.id
        for node, handle in zip(plan.nodes, handles, strict=True)
    }
    return _result(app, last, ids, group)


def _announce(signal: signals.Signal, drafts: list[Draft]) -> None:
    """Send a signal of the submit. Headers that its receivers add are headers of the task."""
    for draft in drafts if signal.receivers else ():
        extras: Extras = draft.kwargs["celery"]
        id, name = extras.id or draft.id, draft.handler.name
        own = {"id": id, "task": name, "lang": "py", "retries": extras.retries}
        own |= {"root_id": extras.root or id, "parent_id": extras.parent, "group": extras.group}
        headers = {**own, **extras.headers}
        signal.send(
            sender=name,
            headers=headers,
            body=(from_json(draft.kwargs["args"]), from_json(draft.kwargs["kwargs"]), {}),
            properties={"correlation_id": id},
            routing_key=draft.handler.queue,
            exchange="",
        )
        added = {key: value for key, value in headers.items() if key not in own}
        if added != extras.headers:
            found = to_json(f"headers of task {name!r}", added)
            draft.kwargs["celery"] = msgspec.structs.replace(extras, headers=found)


def _result(app: Celery, last: Before, ids: Mapping[str, str], group: str) -> Result:
    if isinstance(last, Node):
        parent = None
        if last.before is not None:
            parent = _result(app, last.before, ids, group)
        name = last.signature.task
        return AsyncResult(ids[last.id], task_name=name, app=app, parent=parent)
    results = [_result(app, each, ids, group) for each in last or []]
    parents = [each.parent for each in results if each.parent is not None]
    return GroupResult(group, results, parents[0] if len(parents) == len(results) > 0 else None)


def _draft(app: Celery, node: Node, extras: dict[str, Any], unique_key: str | None) -> Draft:
    """Return the draft of one task of a plan. Raise the errors of `Task.apply_async`."""
    wanted = node.signature
    options = {name: value for name, value in wanted.options.items() if value is not None}
    name = wanted.task
    routed = str(wanted.kwargs["task"]["task"]) if name in mapping.NAMES else name
    task = app.tasks.get(routed)
    now = datetime.now(UTC)
    queue = options.pop("queue", None) or (None if task is None else task.queue)
    if queue is None:
        route = routes.route_of(
            app.conf.task_routes, routed, wanted.args, wanted.kwargs, options, task
        )
        queue = route.pop("queue", None)
        kept = {each for each in ("priority", "expires") if getattr(task, each, None) is not None}
        options = {k: v for k, v in route.items() if k not in kept and v is not None} | options
    if node.before is None and extras["errback_of"] is None and task is not None and routed == name:
        task.check_arguments(wanted.args, wanted.kwargs)
    custom = options.pop("task_id", None)
    unique = options.pop("unique_key", unique_key)
    if custom is not None and custom != node.id:
        extras["id"], unique = str(custom), unique or f"{CUSTOM_ID}{custom}"
    elif custom is not None:
        _check_free(app, custom)
    eta = options.pop("eta", None)
    countdown = options.pop("countdown", None)
    run_at = _instant(eta) if eta is not None else _later(now, countdown)
    extras["eta"] = run_at
    expires = options.pop("expires", None if task is None else task.expires)
    if expires is not None:
        is_instant = isinstance(expires, datetime | str)
        extras["expires"] = _instant(expires) if is_instant else _later(now, expires)
    errbacks = listed(options.pop("link_error", None))
    what = f"task {name!r}"
    extras["link_error"] = to_json(what, [dict(canvas.signature(each)) for each in errbacks])
    extras["headers"] = to_json(what, options.pop("headers", None) or {})
    extras["retries"] = options.pop("retries", 0)
    extras["ignore_result"] = options.pop("ignore_result", None)
    extras |= {"wakes": node.wakes, "is_partial": node.is_partial}
    extras["after"] = node.after
    if node.before is not None or extras["errback_of"] is not None:
        extras["passes"] = not wanted.immutable
    priority = options.pop("priority", None)
    if priority is None and task is not None:
        priority = task.priority
    own = {name: options.pop(name) for name in _OWN if name in options}
    options.pop("link", None)
    _check_rest(app, name, options, queue)
    checked = Options().changed(
        {
            "priority": app.priority_of(priority),
            "run_at": run_at,
            "unique_key": unique,
            **own,
        }
    )
    kwargs = {
        "args": to_json(what, list(wanted.args)),
        "kwargs": to_json(what, wanted.kwargs),
        "celery": Extras(**extras),
    }
    return Draft(_handler(app, name, queue), (), kwargs, checked, node.id)


def _check_free(app: Celery, task_id: str) -> None:
    try:
        record = app.handle_of(task_id).record()
    except UnknownTask:
        return
    raise InvalidTask(
        f"task_id {task_id!r} is that of a task which is {record.state}; make an id for each"
        " submit, or use a text of your own, such as 'order-17', to submit once"
    )


def _check_rest(app: Celery, name: str, options: Mapping[str, Any], queue: Any) -> None:
    rest = set(options) - _WITHOUT_EFFECT
    if queue is not None:
        rest -= {"exchange", "routing_key"}
    if serializer := options.get("serializer"):
        Conf({"task_serializer": serializer})
    if rest:
        cure = (
            "there are no exchanges: use queue="
            if rest & {"exchange", "routing_key"}
            else "set it on the task"
        )
        raise ImproperlyConfigured(
            f"task {name!r}: option {', '.join(sorted(rest))} is not carried over; {cure}"
        )


def _handler(app: Celery, name: str, queue: Any) -> Handler:
    """Return the handler of a task, for another queue a copy. Raise ImproperlyConfigured for a
    queue that no worker would serve."""
    fairlead = app.fairlead
    handler = fairlead.handlers.get(name)
    if handler is None:
        if queue is None:
            raise NotRegistered(
                f"no task {name!r} is registered; import its module, or name the queue of the"
                " other application that has it"
            )
        handler = foreign_handler(name, routes.name_of(queue) or "")
        if handler.queue not in fairlead.queues:
            fairlead.queue(handler.queue)
        return handler
    wanted = routes.name_of(queue)
    if wanted is None or wanted == handler.queue:
        return handler
    if wanted not in fairlead.queues:
        raise ImproperlyConfigured(
            f"task {name!r}: no worker serves the queue {wanted!r}; name it in task_queues or"
            f" task_routes. Queues: {', '.join(sorted(fairlead.queues))}"
        )
    copied = copy.copy(handler)
    copied.queue = wanted
    return copied


def _instant(when: Any) -> datetime:
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    if not isinstance(when, datetime):
        raise ImproperlyConfigured(f"eta={when!r}: use a datetime")
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _later(now: datetime, seconds: Any) -> datetime | None:
    if seconds is None:
        return None
    wait = seconds if isinstance(seconds, timedelta) else timedelta(seconds=float(seconds))
    return now + wait
