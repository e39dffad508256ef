"""Names of Celery that the shim lacks: why, and what to use instead. Their use raises an error with
both, and `fairlead celery-report` finds the lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

Missing = Mapping[str, tuple[str, str]]
"""Why there is no such name, and what to use instead."""

TASK: Missing = {
    "replace": ("a running task cannot become another", "submit the other task, and return"),
    "add_trail": ("the tasks that a run submits are not recorded", "return their ids"),
    "add_to_chord": ("a chord is written whole at its submit", "submit another task"),
    "send_event": ("there are no events", "log it"),
    "backend": ("there is no result backend", "AsyncResult, or app.fairlead.handle(id)"),
    "signature_from_request": ("a run is no message", "self.signature(...)"),
    "subtask_from_request": ("a run is no message", "self.signature(...)"),
    "add_around": ("methods are not wrapped", "a base class"),
    "request_stack": ("a run has one request", "self.request"),
    "push_request": ("a run has one request", "task.apply(), or fairlead.testing"),
    "pop_request": ("a run has one request", "task.apply(), or fairlead.testing"),
    "is_aborted": ("there are no abortable tasks", "fairlead.current_task().cancelled"),
}
RESULT: Missing = {
    "children": ("the tasks that a run submits are not recorded", "return their ids"),
    "collect": ("the tasks that a run submits are not recorded", "return their ids"),
    "iterdeps": ("the tasks that a run submits are not recorded", "return their ids"),
    "get_leaf": ("the tasks that a run submits are not recorded", "return their ids"),
    "graph": ("the tasks that a run submits are not recorded", "return their ids"),
    "build_graph": ("the tasks that a run submits are not recorded", "return their ids"),
    "then": ("there are no promises", "link=, or await handle.result_async()"),
    "backend": ("there is no result backend", "app.fairlead.handle(id)"),
    "_get_task_meta": ("there is no result backend", "result.state, .info and .traceback"),
    "exists": ("there is no result backend", "result.record()"),
    "args": ("arguments end with their task", "fairlead tasks show, or the result"),
    "kwargs": ("arguments end with their task", "fairlead tasks show, or the result"),
    "revoke_by_stamped_headers": ("there are no stamps", "app.control.revoke of ids"),
}
RESULTS: Missing = {
    "save": ("groups are not stored", "keep result.as_tuple(), and result_from_tuple"),
    "restore": ("groups are not stored", "keep result.as_tuple(), and result_from_tuple"),
    "delete": ("groups are not stored", "nothing"),
    "then": ("there are no promises", "a chord"),
    "iter_native": ("there is no result backend", "fairlead.as_completed"),
    "backend": ("there is no result backend", "app.fairlead.handle(id)"),
}
SIGNATURE: Missing = {
    "freeze": ("a signature gets its id at its submit", "set(task_id=uuid())"),
    "stamp": ("there are no stamps", "headers="),
    "stamp_links": ("there are no stamps", "headers="),
    "election": ("there are no elections", "unique_key="),
    "unchain_tasks": ("a chain is no list of links", "chain.tasks"),
    "prepare_steps": ("a chain is written whole", "chain.tasks"),
}
APPLICATION: Missing = {
    "connection": ("there is no broker", "app.fairlead"),
    "connection_for_read": ("there is no broker", "app.fairlead"),
    "connection_for_write": ("there is no broker", "app.fairlead"),
    "connection_or_acquire": ("there is no broker", "app.fairlead"),
    "broker_connection": ("there is no broker", "app.fairlead"),
    "producer_or_acquire": ("there is no broker", "app.fairlead"),
    "producer_pool": ("there is no broker", "app.fairlead"),
    "pool": ("there is no broker", "app.fairlead"),
    "amqp": ("there is no broker", "task_queues with names"),
    "events": ("there are no events", "the history or the console"),
    "backend": ("there is no result backend", "AsyncResult, or app.fairlead.handle(id)"),
    "steps": ("there are no bootsteps", "an interceptor, or App(observer=...)"),
    "user_options": ("there is no command line of its own", "settings, or the environment"),
    "start": ("there is no command line of its own", "fairlead worker MODULE:APP"),
    "worker_main": ("there is no command line of its own", "fairlead worker MODULE:APP"),
    "Worker": ("there is no command line of its own", "fairlead worker MODULE:APP"),
    "WorkController": ("there is no command line of its own", "fairlead worker MODULE:APP"),
    "Beat": ("every worker submits periodic tasks", "beat_schedule"),
    "loader": ("there are no loaders", "config_from_object"),
    "log": ("logging is that of the worker", "fairlead worker --log-level, --log-format"),
    "config_from_envvar": ("there are no loaders", "config_from_object(os.environ[...])"),
    "config_from_cmdline": ("there is no command line of its own", "config_from_object"),
    "setup_security": ("there are no signed messages", "TLS and the logins of the database"),
    "select_queues": ("an application has all its queues", "fairlead worker --queues"),
}
CONTROL: Missing = {
    name: ("there is no remote control", instead)
    for name, instead in {
        "inspect": "fairlead nodes, fairlead queues, the console",
        "add_consumer": "another worker with --queues",
        "cancel_consumer": "fairlead queues pause",
        "broadcast": "fairlead commands, the console or its JSON API",
        "pool_grow": "more workers",
        "pool_shrink": "fewer workers",
        "pool_restart": "a restart of the workers",
        "autoscale": "fairlead worker --concurrency",
        "purge": "fairlead tasks cancel with a filter",
        "discard_all": "fairlead tasks cancel with a filter",
        "shutdown": "a signal to the workers",
        "ping": "fairlead nodes",
        "rate_limit": "rate_limit= of the task, or fairlead queues limit",
        "time_limit": "time_limit= of the task",
        "enable_events": "the history or the console",
        "disable_events": "the history or the console",
        "election": "unique_key=",
        "heartbeat": "fairlead nodes",
        "terminate": "app.control.revoke",
        "revoke_by_stamped_headers": "app.control.revoke of ids",
    }.items()
}


class Names:
    """Base of a class that lacks names of its model in Celery."""

    _missing: ClassVar[Missing] = {}

    def __init_subclass__(cls, *, names: Missing | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if names is not None:
            cls._missing = names

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(refusal(type(self), name))


def refusal(kind: type[Names], name: str) -> str:
    """Return why a class has no attribute of this name, and what to use instead if Celery has
    it."""
    found = kind._missing.get(name)
    if found is None:
        return f"{kind.__name__!r} object has no attribute {name!r}"
    why, instead = found
    return f"{kind.__name__} has no {name!r}: {why}; instead: {instead}"
