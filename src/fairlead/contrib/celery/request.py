"""The request of the task that runs: its id, arguments, retries, and how it was delivered."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from fairlead.contrib.celery.task import Task


class Context(msgspec.Struct, kw_only=True, dict=True):
    """Fields of `self.request`; a project may add more. Outside a run, `called_directly` is True
    and the id is None."""

    id: str | None = None
    row_id: str | None = None
    """Id of the task in the store, which differs from `id` only if the caller chose one that no row
    can have."""
    task: str | None = None
    args: Sequence[Any] = ()
    """A list for a task of the store, and a tuple for one that runs at the call, as in Celery."""
    kwargs: dict[str, Any] = {}
    retries: int = 0
    eta: datetime | None = None
    expires: datetime | None = None
    is_eager: bool = False
    called_directly: bool = True
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    group_index: int | None = None
    ignore_result: bool | None = None
    shadow: str | None = None
    headers: dict[str, Any] = {}
    hostname: str | None = None
    delivery_info: dict[str, Any] = {}
    timelimit: tuple[float | None, float | None] = (None, None)
    callbacks: list[Any] = []
    errbacks: list[Any] = []
    chain: list[Any] = []
    chord: Any = None
    reply_to: str | None = None
    origin: str | None = None
    loglevel: int | None = None
    logfile: str | None = None
    utc: bool = True
    reported: Any = None
    """Last custom state of the run and its meta, as a pair."""
    has_dependents: bool = False
    """Whether other tasks wait for the result of this one."""

    @property
    def correlation_id(self) -> str | None:
        """Id of the task."""
        return self.id

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set fields, or attributes of the project's own."""
        for name, value in dict(*args, **kwargs).items():
            setattr(self, name, value)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or a header of this name, else `default`."""
        return getattr(self, name, self.headers.get(name, default))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.headers:
            raise AttributeError(f"the request has neither a field nor a header {name!r}")
        return self.headers[name]


class Running(msgspec.Struct):
    """The task that runs in this context, and its request."""

    task: Task
    request: Context
    is_entering: bool = False
    """Whether the next call of the task is the one of this run."""


_running: ContextVar[Running | None] = ContextVar("fairlead_celery_running", default=None)


def running() -> Running | None:
    """Return the task that runs in this context; None outside a run."""
    return _running.get()


def set_running(found: Running | None) -> None:
    """Set the task that runs in this context."""
    _running.set(found)
