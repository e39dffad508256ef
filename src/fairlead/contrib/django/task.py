"""The class of Django tasks on Fairlead, with options that Django's own class lacks."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from fairlead.contrib.django.compat import InvalidTask, Task
from fairlead.core.policies.retry import RetryPolicy
from fairlead.declare.options import Options
from fairlead.model import DEFAULT_WEIGHT

_DECLARED = ("retry", "timeout", "transactional")
"""Fields that belong to the function: a worker reads them from its own code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairleadTask(Task):
    """A Django task with Fairlead's options, for the decorator; `using` takes those of a submit."""

    fairness_key: str = ""
    """Key, such as the tenant, among which a queue is shared."""
    weight: float = DEFAULT_WEIGHT
    """Share of the fairness key."""
    ordering_key: str | None = None
    """Tasks with one ordering key run one at a time, in order."""
    unique_key: str | None = None
    """While a task with this key is unfinished, `enqueue` returns that task's result."""
    unique_for: timedelta | None = None
    """Time after `enqueue` for which it does so although the task has ended."""
    tags: str = ""
    """Text by which people find the task."""
    retry: RetryPolicy | None = None
    """Retry policy; None: that of the backend."""
    timeout: float | None = None
    """Maximum seconds of one run; None: that of the backend."""
    transactional: bool = False
    """Whether the ORM writes of the function commit together with the end of the task."""

    def using(self, **changes: Any) -> FairleadTask:
        """Return a copy with other values of priority, queue_name, run_after, backend,
        fairness_key, weight, ordering_key, unique_key, unique_for or tags; None keeps the present
        one. Raise InvalidTask for others, and for values out of bounds."""
        if wrong := sorted(set(changes) & set(_DECLARED)):
            raise InvalidTask(
                f"using({wrong[0]}=...): {wrong[0]} belongs to the function, because a worker reads"
                " it from its own code: give it to the decorator, or declare another task"
            )
        if wrong := sorted(set(changes) - {each.name for each in fields(self)}):
            raise InvalidTask(f"using({wrong[0]}=...): no such option")
        return replace(
            self, **{name: value for name, value in changes.items() if value is not None}
        )

    def stored(self, queue_name: str, priority: int | None) -> FairleadTask:
        """Return a copy with the queue and the priority of a stored task, which are not checked:
        settings may have changed since its submit, and another backend may have its queue."""
        found = object.__new__(type(self))
        for each in fields(self):
            object.__setattr__(found, each.name, getattr(self, each.name))
        object.__setattr__(found, "queue_name", queue_name)
        if priority is not None:
            object.__setattr__(found, "priority", priority)
        return found

    def options(self, **more: Any) -> Options:
        """Return the options of a submit. Raise fairlead's InvalidTask for one out of bounds."""
        return Options().changed(
            {
                "fairness_key": self.fairness_key,
                "weight": self.weight,
                "ordering_key": self.ordering_key,
                "unique_key": self.unique_key,
                "unique_for": self.unique_for,
                "tags": self.tags,
                **more,
            }
        )
