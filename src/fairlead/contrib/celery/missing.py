"""Names, options and settings of Celery that are not here, each with its replacement: one error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.abc import MetaPathFinder
from typing import Any, ClassVar

from fairlead.errors import ConfigurationError


class CeleryError(Exception):
    """Base of the exceptions of `fairlead.contrib.celery`."""


class ImproperlyConfigured(CeleryError, ConfigurationError):
    """Raised for names, options and settings of Celery that are not carried over."""


_INSTEAD = {
    "app.fairlead.interceptors, with a fairlead.Interceptor": "signals before_start",
    "on_failure of a base class (base=), or app.fairlead.on_incident": "link_error on_error",
    "the last lines of the task": "on_success after_return",
    "fairlead.current_task().progress(...)": "update_state send_event",
    "a list in one argument, or a group": "map starmap chunks xmap xstarmap",
    "AsyncResult of each id, or fairlead.gather and as_completed": """
        ResultSet EagerResult join_native as_tuple as_list result_from_tuple save restore children
        collect completed_count""",
    "get(disable_sync_subtasks=False), or a chord": "allow_join_result",
    "a chain, or await app.fairlead.handle(id).result_async()": "then on_message callback",
    "result.handle.record(), and app.fairlead.management.attempts(id)": """
        date_done worker backend backends""",
    "nothing: the history deletes results": "forget",
    "a submit of another task, and return": "replace add_to_chord signature_from_request",
    "task.apply(), or fairlead.testing": "push_request pop_request request_stack",
    "transaction.on_commit(lambda: task.delay(...)), or connection= in the transaction": """
        delay_on_commit apply_async_on_commit""",
    "fairlead.current_task()": "current_task is_aborted root_id parent_id group hostname",
    "task_id=uuid(), and clone()": "freeze stamp from_dict skew",
    "the option link=": "link",
    "task.s(...), or app.send_task(name, ...)": "signature subtask maybe_signature canvas",
    "AsyncResult(id).revoke(), and the commands `fairlead tasks`, `queues` and `nodes`": """
        control inspect""",
    "the history and the console": "events",
    "app.fairlead, whose store is broker and result backend": """
        connection connection_for_read connection_for_write pool producer_pool amqp""",
    "fairlead worker MODULE:APP": "worker_main start Worker Beat bootsteps steps apps beat bin",
    "config_from_object, or settings in code": """
        config_from_envvar config_from_cmdline config_source add_defaults loader setup_security""",
    "options of the tasks": "task_annotations task_routes task_default_rate_limit",
    "timezone=": "enable_utc",
    "beat_schedule, in code": """
        beat_scheduler add_periodic_task on_after_configure on_after_finalize""",
    "a timedelta, a number of seconds or crontab": "schedule solar",
    "return, or raise the error; to run again: self.retry(), or raise fairlead.Retry(seconds)": """
        Ignore Reject""",
    "time_limit=, and fairlead.current_task().cancelled in long loops": """
        soft_time_limit task_soft_time_limit SoftTimeLimitExceeded""",
    "fairlead.errors.TaskTimeout": "TimeLimitExceeded",
    "fairlead.errors.StoreUnavailable": "OperationalError",
    "a time among the arguments, which the task looks at when it starts": "expires",
    "context=, a map of text that fairlead.current_task().context shows": "headers",
    "queue=": """
        exchange routing_key delivery_info task_default_exchange task_default_exchange_type
        task_default_routing_key""",
    "plain values, of which the task makes its models": "pydantic",
}  # fmt: skip
REPLACEMENTS = {name: cure for cure, names in _INSTEAD.items() for name in names.split()}
"""Replacements of names, options and settings."""


def refusal(what: str, name: str, otherwise: str = "") -> ImproperlyConfigured:
    """Return the error for a name. `otherwise`: the cure for one that is in no table."""
    cure = REPLACEMENTS.get(name, otherwise)
    return ImproperlyConfigured(f"{what} {name!r} of Celery is not carried over; use {cure}")


def check_options(what: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise ImproperlyConfigured for an option that is neither known nor without meaning here, and
    for another serializer than JSON."""
    for name in sorted({*given} - {*known} - {*_WITHOUT_MEANING.split()}):
        raise refusal(f"{what}: option", name, f"one of {', '.join(sorted(known))}")
    check_serializer(f"{what}: serializer", given.get("serializer"))


def check_serializer(what: str, value: Any) -> None:
    """Raise ImproperlyConfigured for another serializer than JSON."""
    if value not in (None, "json", "application/json"):
        raise ImproperlyConfigured(
            f"{what} {value!r}: arguments and results are JSON; Fairlead never unpickles; use"
            " 'json', and ids"
        )


_WITHOUT_MEANING = """
    acks_late acks_on_failure_or_timeout add_to_parent compression delivery_mode lazy producer
    reject_on_worker_lost retry retry_policy send_events serializer shadow
    store_errors_even_if_ignored throws track_started trail"""
"""Options of tasks and submits that change nothing here: a task is acknowledged after its run, and
is a row of a database."""


def lookup(owner: str) -> Callable[[str], Any]:
    """Return `__getattr__` of a module: it raises ImproperlyConfigured for a name of Celery, else
    AttributeError."""

    def find(name: str) -> Any:
        if name in REPLACEMENTS:
            raise refusal(owner, name)
        raise AttributeError(f"{owner} has no attribute {name!r}")

    return find


class Names:
    """Base of a class that lacks names of its model in Celery."""

    def __getattr__(self, name: str) -> Any:
        return lookup(type(self).__name__)(name)


class OfApplication(Names):
    """Base of what belongs to an application: its own, or the current one."""

    _app: Any = None
    current: ClassVar[Callable[[], Any]]
    """Returns the current application; `app.py` sets it."""

    @property
    def app(self) -> Any:
        """The application."""
        return self._app or OfApplication.current()


class _Modules(MetaPathFinder):
    """Raises the error for an import of a module of Celery that is not here."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        start, _, name = fullname.rpartition(".")
        if start == __package__ and name in REPLACEMENTS:
            raise refusal("module", name)


sys.meta_path.append(_Modules())  # the last one, which is asked for what the others lack
