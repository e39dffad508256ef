"""Tasks that a test has submitted, found by their task, arguments and options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from fairlead.clock import to_datetime
from fairlead.core.payload import unpack
from fairlead.declare.handler import Handler
from fairlead.declare.options import Options
from fairlead.declare.task import Task
from fairlead.errors import UnknownTask
from fairlead.model import NewTask

MOST_SHOWN = 20
"""Maximum number of submitted tasks in the message of a failed assertion."""

_OPTIONS = ("fairness_key", "weight", "priority", "ordering_key", "unique_key")
_PLAIN = Options()


class Named(Protocol):
    """A declared task, also of Celery's names."""

    @property
    def name(self) -> str | None:
        """Name of the task in task rows."""


@dataclass(frozen=True)
class SubmittedTask:
    """A task that was submitted in a committed transaction."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    """Arguments by name, as the handler gets them, defaults included."""
    queue: str
    run_at: datetime
    """Earliest start; the time of the submit if none was asked for. Aware, UTC."""
    fairness_key: str
    weight: float
    priority: int
    ordering_key: str | None
    unique_key: str | None
    _is_scheduled: bool = field(repr=False, default=False)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        shown = [f"{self.name}({arguments})"]
        for option in _OPTIONS:
            if (value := getattr(self, option)) != getattr(_PLAIN, option):
                shown.append(f"{option}={value!r}")
        if self._is_scheduled:
            shown.append(f"run_at={self.run_at.isoformat()}")
        return " ".join(shown)


@dataclass(frozen=True)
class Wanted:
    """Tasks that a test looks for: their name, some arguments, and the options that are not those
    of a plain submit."""

    name: str
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, task: Named, handlers: Mapping[str, Handler], given: Mapping[str, Any]) -> Wanted:
        """Return the tasks to look for. Raises UnknownTask for a task of another application,
        TypeError for what is no task, and for an argument that the task does not have."""
        name = getattr(task, "name", None)
        if not isinstance(name, str):
            raise TypeError(f"{task!r} is no task: give what @app.task has returned")
        if name not in handlers:
            raise UnknownTask(
                f"no task {name!r} in this application, which has {', '.join(sorted(handlers))}"
            )
        known = handlers[name].arguments.names
        if unknown := [each for each in given if each not in known]:
            raise TypeError(
                f"task {name!r} has no argument {', '.join(unknown)}; it has"
                f" {', '.join(known) or 'none'}"
            )
        options = task.draft().options if isinstance(task, Task) else _PLAIN
        chosen = {each: getattr(options, each) for each in (*_OPTIONS, "run_at")}
        changed = {k: v for k, v in chosen.items() if v != getattr(_PLAIN, k)}
        return cls(name, given, changed)

    def fits(self, task: SubmittedTask) -> bool:
        """Return whether a submitted task is one of those."""
        return (
            task.name == self.name
            and all(value == task.arguments[name] for name, value in self.arguments.items())
            and all(value == getattr(task, name) for name, value in self.options.items())
        )

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        options = "".join(f" {name}={value!r}" for name, value in self.options.items())
        return f"{self.name}({arguments}){options}"


def submitted_task(task: NewTask, handler: Handler) -> SubmittedTask:
    """Return a written task for people, with decoded arguments."""
    args, kwargs = handler.arguments.decode(unpack(task.payload, task.payload_format))
    return SubmittedTask(
        task.id,
        task.name,
        {**dict(zip(handler.arguments.names, args, strict=False)), **kwargs},
        task.queue,
        to_datetime(task.run_at),
        task.fairness_key,
        task.weight,
        task.priority,
        task.ordering_key,
        task.unique_key,
        not task.is_due,
    )


def shown(tasks: Iterable[SubmittedTask], uncommitted: Sequence[SubmittedTask]) -> str:
    """Return the tasks as lines of a message."""
    lines = [f"  {task}" for task in tasks]
    lines += [f"  {task} - not in the store: not committed, or not new" for task in uncommitted]
    more = len(lines) - MOST_SHOWN
    return "\n".join([*lines[:MOST_SHOWN], *([f"  and {more} more"] if more > 0 else [])])
