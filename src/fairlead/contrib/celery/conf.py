"""Settings of a Celery application: those with a meaning here, and the others."""

from __future__ import annotations

import difflib
import re
from collections import UserDict
from collections.abc import Mapping
from typing import Any

from fairlead.contrib.celery import missing
from fairlead.contrib.celery.exceptions import ImproperlyConfigured
from fairlead.core.limits.limits import RateLimit
from fairlead.declare.options import Options

DEFAULTS: dict[str, Any] = {
    "beat_schedule": {},
    "broker_url": None,
    "enable_utc": True,
    "fairlead_url": None,
    "imports": (),
    "include": (),
    "task_always_eager": False,
    "task_default_priority": None,
    "task_default_queue": "celery",
    "task_eager_propagates": False,
    "task_ignore_result": False,
    "task_queues": (),
    "task_time_limit": None,
    "timezone": None,
}
"""Settings that are read, with their defaults."""
WITHOUT_EFFECT = frozenset((
    "beat_cron_starting_deadline", "beat_enable_remote_control", "beat_max_loop_interval",
    "beat_remote_control_max_tick_age", "beat_schedule_filename", "beat_sync_every",
    "task_acks_late", "task_acks_on_failure", "task_acks_on_failure_or_timeout",
    "task_acks_on_timeout", "task_allow_error_cb_on_chord_header", "task_compression",
    "task_create_missing_queue_exchange_type", "task_create_missing_queue_type",
    "task_create_missing_queues", "task_default_delivery_mode", "task_default_queue_type",
    "task_inherit_parent_priority", "task_protocol", "task_publish_retry",
    "task_publish_retry_policy", "task_queue_max_priority", "task_reject_on_worker_lost",
    "task_remote_tracebacks", "task_repr_maxlevels", "task_retry_on_worker_lost",
    "task_send_sent_event", "task_serializer", "task_store_eager_result",
    "task_store_errors_even_if_ignored", "task_track_started",
))  # fmt: skip
"""Settings of tasks and of beat that change nothing here: a task is acknowledged after its run, and
is a row of a database. Those of brokers, result backends and processes change nothing either."""
KNOWN = WITHOUT_EFFECT | DEFAULTS.keys() | missing.REPLACEMENTS.keys()
_STORES = ("sqlite:", "postgres:", "postgresql:", "memory:")
HIGHEST = 9


class Conf(UserDict[str, Any]):
    """The settings, as a map and by attribute. Raises ImproperlyConfigured for one that cannot be
    carried out, and for an unknown one of tasks or beat. Other names are the project's own."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.__dict__["data"] = dict(DEFAULTS)
        self.update(given)

    def __setitem__(self, name: str, value: Any) -> None:
        name = name.lower()
        is_default = not value if DEFAULTS.get(name) is None else value == DEFAULTS[name]
        if name in missing.REPLACEMENTS and not is_default:
            raise missing.refusal("setting", name)
        if name.startswith(("beat_", "task_")) and name not in KNOWN:
            raise missing.refusal("setting", name, f"one of {', '.join(_similar(name))}")
        if name in ("task_serializer", "result_serializer"):
            missing.check_serializer(name, value)
        if isinstance(DEFAULTS.get(name), bool) and isinstance(value, str):
            value = value.lower() in ("true", "1", "yes")
        self.data[name] = value

    def __getattr__(self, name: str) -> Any:
        if name not in self.data:
            raise AttributeError(f"no setting {name!r}")
        return self.data[name]

    __setattr__ = __setitem__

    def store_url(self) -> str | None:
        """Return the URL of the store that the settings name."""
        broker = str(self.broker_url or "")
        return self.fairlead_url or (broker if broker.startswith(_STORES) else None)

    def queues(self) -> set[str]:
        """Return the queues that the settings name."""
        return {self.task_default_queue, *(str(getattr(q, "name", q)) for q in self.task_queues)}

    def priority_of(self, given: int | None) -> int:
        """Return Fairlead's priority (0 first) for Celery's: 9 is first with RabbitMQ, 0 with a
        broker_url of Redis. Without one, the default of Fairlead."""
        priority: int | None = self.task_default_priority if given is None else given
        if priority is None:
            return Options().priority
        is_redis = str(self.broker_url or "").startswith(("redis", "sentinel"))
        return priority if is_redis else HIGHEST - priority


def _similar(name: str) -> list[str]:
    """Return the settings that are read and whose names are most like this one."""
    return difflib.get_close_matches(name, DEFAULTS, cutoff=0.0)


def found_in(source: Any, namespace: str | None) -> dict[str, Any]:
    """Return the settings of an object or a map, those of a namespace without its prefix. Raise
    ImproperlyConfigured for names in the style of Celery 3."""
    names = source if isinstance(source, Mapping) else dir(source)
    prefix = f"{namespace}_".lower() if namespace else ""
    found = {}
    for name in names:
        key = name.lower().removeprefix(prefix)
        if not prefix and re.match("CELERY(D|BEAT)?_", name):
            raise ImproperlyConfigured(
                f"setting {name}: use names such as task_default_queue, or namespace='CELERY' and"
                " CELERY_TASK_DEFAULT_QUEUE"
            )
        is_known = prefix or key in DEFAULTS or key in missing.REPLACEMENTS
        is_setting = name.lower().startswith(prefix) and is_known
        if is_setting or name == "TIME_ZONE":  # of Django; an object may list names that it lacks
            value = source[name] if isinstance(source, Mapping) else getattr(source, name)
            if is_setting:
                found[key] = value
            else:
                found.setdefault("timezone", value)
    return found


def rate_of(limit: object) -> RateLimit | None:
    """Return a rate limit such as "10/m"; None for none. Raise ImproperlyConfigured for another
    form."""
    number, _, unit = str(limit or 0).partition("/")
    seconds = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}.get(unit)
    if not number.isdigit() or seconds is None:
        raise ImproperlyConfigured(f"rate_limit={limit!r}: use '10/s', '10/m' or '10/h'")
    return RateLimit(int(number), per=seconds) if int(number) else None
