"""Settings of a Celery application: those with a meaning here, and what replaces the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from fairlead.contrib.celery.exceptions import ImproperlyConfigured

DEFAULTS: dict[str, Any] = {
    "accept_content": ["json"],
    "beat_schedule": {},
    "enable_utc": True,
    "imports": (),
    "include": (),
    "result_serializer": "json",
    "task_always_eager": False,
    "task_annotations": None,
    "task_default_priority": None,
    "task_default_queue": "celery",
    "task_default_rate_limit": None,
    "task_eager_propagates": False,
    "task_ignore_result": False,
    "task_queues": None,
    "task_routes": None,
    "task_serializer": "json",
    "task_soft_time_limit": None,
    "task_time_limit": None,
    "timezone": None,
    "broker_url": None,
    "result_backend": None,
    "fairlead_url": None,
    "fairlead_first_priority": None,
}
"""Settings that the shim reads, with their defaults."""

REPLACED: tuple[tuple[str, str], ...] = (
    (
        "broker_",
        "the tasks live in the store of FAIRLEAD_URL; broker_url only says which end of the"
        " priorities runs first",
    ),
    ("redis_", "Fairlead's URL has what it needs"),
    ("result_", "results live in the store for as long as its history"),
    ("database_", "results live in the store"),
    *(
        (f"{backend}_", "results live in the store")
        for backend in (
            "arangodb",
            "azureblockblob",
            "cache",
            "cassandra",
            "cosmosdbsql",
            "couchbase",
            "elasticsearch",
            "gcs",
            "mongodb",
            "s3",
        )
    ),
    ("control_", "the console and the commands of fairlead replace remote control"),
    ("worker_concurrency", "fairlead worker --concurrency"),
    ("worker_max_tasks_per_child", "fairlead worker has options to replace its processes"),
    ("worker_prefetch_multiplier", "a worker claims only what it has room to run"),
    ("worker_hijack_root_logger", "fairlead worker --log-level and --log-format"),
    ("worker_redirect_stdouts", "standard output is left alone"),
    ("worker_", "see `fairlead worker --help`"),
    ("beat_", "every worker submits periodic tasks, each once in the cluster; there is no beat"),
    ("event_", "the history and the console replace events"),
    ("task_acks_late", "a task is acknowledged after its run; if its worker dies, it runs again"),
    ("task_reject_on_worker_lost", "a task whose worker died runs again"),
    ("task_acks_on_", "a failed task stays in the store"),
    ("task_track_started", "a running task is always STARTED"),
    ("task_send_sent_event", "the history has each submit"),
    ("task_publish_", "a submit is one transaction; catch StoreUnavailable to try again"),
    ("task_protocol", "there is no message protocol"),
    ("task_compression", "large arguments are always compressed"),
    ("task_retry_on_worker_lost", "a task whose worker died runs again"),
    ("task_default_delivery_mode", "every task is durable"),
    ("task_default_queue_type", "there are no kinds of queues of a broker"),
    ("task_repr_maxlevels", "no argument is logged"),
    ("task_create_missing_queue", "name each queue in task_queues, task_routes or a task"),
    ("task_default_exchange", "there are no exchanges: use queue="),
    ("task_default_routing_key", "there are no routing keys: use queue="),
    ("task_queue_max_priority", "every queue has the priorities 0 to 9"),
    ("task_inherit_parent_priority", "give priority= to each task"),
    ("task_remote_tracebacks", "an error always has its traceback as text"),
    ("task_store_", "results and errors are always stored"),
    ("task_allow_error_cb_on_chord_header", "the errbacks of a chord run if its header fails"),
    ("deprecated_", "not needed"),
    ("security_", "use TLS and the logins of the database"),
)
"""Beginnings of settings without effect, and what takes their place; the first that fits counts."""

_OLD_NAMES = {
    "celery_eager_propagates_exceptions": "task_eager_propagates",
    "celery_task_result_expires": "result_expires",
    "celeryd_task_time_limit": "task_time_limit",
    "celeryd_task_soft_time_limit": "task_soft_time_limit",
}
_OLD_STARTS = (
    ("celery_", ""),
    ("celery_", "task_"),
    ("celeryd_", "worker_"),
    ("celerybeat_", "beat_"),
)
"""Beginnings of names in the style of Celery 3, and of present names, the first known one of which
counts."""
_EXCHANGES = {"exchange", "exchange_type", "routing_key"}
_JSON = ("json", "application/json", "application/x-json")
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Conf(MutableMapping[str, Any]):
    """The settings, as a map and by attribute. Names in the style of Celery 3 are translated.
    `unknown` has the names that neither the shim nor Celery knows."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.__dict__["_values"] = {}
        self.__dict__["unknown"] = {}
        self.__dict__["replaced"] = {}
        self.update(given or {})

    def __getitem__(self, name: str) -> Any:
        name = current_name(name)
        if name in self._values:
            return self._values[name]
        return DEFAULTS[name]

    def __setitem__(self, name: str, value: Any) -> None:
        name = current_name(name)
        self._values[name] = _checked(name, value)
        if name in DEFAULTS:
            return
        instead = replacement(name)
        (self.unknown if instead is None else self.replaced)[name] = instead

    def __delitem__(self, name: str) -> None:
        del self._values[current_name(name)]

    def __iter__(self) -> Iterator[str]:
        return iter({**DEFAULTS, **self._values})

    def __len__(self) -> int:
        return len({**DEFAULTS, **self._values})

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            instead = replacement(current_name(name))
            cure = "" if instead is None else f" here, and none was given; {instead}"
            raise AttributeError(f"no setting {name!r}{cure}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def is_set(self, name: str) -> bool:
        """Return whether the setting was given."""
        return name in self._values


def current_name(name: str) -> str:
    """Return the present name of a setting."""
    lowered = name.lower()
    for old, new in () if lowered in _OLD_NAMES else _OLD_STARTS:
        present = new + lowered.removeprefix(old)
        if lowered.startswith(old) and _is_setting(present):
            return present
    return _OLD_NAMES.get(lowered, lowered)


def replacement(name: str) -> str | None:
    """Return what takes the place of a setting that has no effect; None for an unknown one."""
    return next((instead for start, instead in REPLACED if name.startswith(start)), None)


def found_in(source: Any, namespace: str | None) -> dict[str, Any]:
    """Return the settings of an object or a map, those of a namespace without its prefix."""
    pairs = (
        source.items()
        if isinstance(source, Mapping)
        else ((name, getattr(source, name)) for name in dir(source))
    )
    prefix = f"{namespace}_".lower() if namespace else ""
    names = {}
    for name, value in pairs:
        if not isinstance(name, str) or name.startswith("_"):
            continue
        lowered = name.lower()
        if prefix and lowered.startswith(prefix):
            names[lowered.removeprefix(prefix)] = value
        elif not prefix and _is_setting(current_name(name)):
            names[current_name(name)] = value
        elif name == "TIME_ZONE":  # of Django
            names.setdefault("timezone", value)
    return names


def _is_setting(name: str) -> bool:
    return name in DEFAULTS or replacement(name) is not None


def objection(name: str, value: Any) -> tuple[str, str] | None:
    """Return why a setting cannot have this value, and what to use instead; None if it can."""
    if name in ("task_serializer", "result_serializer") and value not in _JSON:
        return "arguments and results are JSON; Fairlead never unpickles", "'json', and ids"
    if name == "accept_content" and not any(each in _JSON for each in value):
        return "arguments and results are JSON", "'json'"
    if name == "beat_scheduler" and not str(value).startswith("celery.beat"):
        return (
            "periodic tasks of a database or another scheduler are not read",
            "beat_schedule, in code",
        )
    if name == "task_annotations":
        for each in value if isinstance(value, list | tuple) else [value or {}]:
            if not isinstance(each, Mapping):
                return "an object is no map of annotations", "a map of names, or '*', to attributes"
            given = [attributes for attributes in each.values() if isinstance(attributes, Mapping)]
            if any(str(name).startswith("@") for attributes in given for name in attributes):
                return "methods are not wrapped", "a base class of the task"
    if name == "task_routes" and isinstance(value, Mapping):
        for route in value.values():
            if isinstance(route, Mapping) and not route.get("queue") and {*route} & _EXCHANGES:
                return "there are no exchanges and no routing keys", "queue"
    return None


def _checked(name: str, value: Any) -> Any:
    """Return the value. Raise ImproperlyConfigured for one that cannot be carried out."""
    if (found := objection(name, value)) is not None:
        raise ImproperlyConfigured(f"{name}={value!r}: {found[0]}; use {found[1]}")
    if isinstance(DEFAULTS.get(name), bool) and isinstance(value, str):
        try:
            return _BOOLEANS[value.lower()]
        except KeyError:
            raise ImproperlyConfigured(f"{name}={value!r}: use True or False") from None
    return value


_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:/\s*([smh]))?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def rate_of(limit: object) -> tuple[int, float] | None:
    """Return a rate limit such as "10/m" as (tasks, seconds); None for none. Raise
    ImproperlyConfigured for another form."""
    if limit is None or limit == 0 or limit == "0":
        return None
    found = _RATE.fullmatch(str(limit).strip())
    if found is None:
        raise ImproperlyConfigured(f"rate_limit={limit!r}: use '10/s', '10/m' or '10/h'")
    number, seconds = float(found[1]), _SECONDS[found[2]]
    if not number:
        return None
    return (round(number), seconds) if number >= 1 else (1, seconds / number)
