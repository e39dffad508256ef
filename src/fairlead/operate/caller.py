"""The caller of an operation: who it is, what it may see and do, and how it reads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fairlead.errors import InvalidTask, NotAllowed, UnknownTask
from fairlead.model import tenant_of
from fairlead.operate.changes import A_PERSON
from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts
from fairlead.operate.filters import TaskFilters
from fairlead.operate.masking import Mask, check_search
from fairlead.operate.tasks import Management

T = TypeVar("T")


class NoRight(NotAllowed):
    """Raised for a change for which the caller has no right."""


class Wait(Protocol):
    """Waits in a thread for a read that is a coroutine."""

    def __call__(self, reading: Coroutine[Any, Any, T], /) -> T:
        """Return the result of the coroutine."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The person or program that calls operations, through a console, a tool or a command."""

    context: OperateContext
    wait: Wait
    name: str = A_PERSON
    """Name of the person, which the audit keeps."""
    rights: frozenset[str] | None = None
    """Changes that the caller may make; None is all."""
    tenants: frozenset[str] | None = None
    """Tenants to which everything is limited; None is no limit."""
    mask: Mask | None = None
    """Function that returns the arguments of tasks without secrets; None shows them as they are."""
    shows_arguments: bool = True
    trace_url: Callable[[str], str | None] | None = None
    """Function that returns the address of a trace."""
    read_facts: Callable[[], Facts] | None = None
    """Function that returns facts which other callers use too; None reads them anew, and the doctor
    counts every task."""
    is_command: bool = False
    """Whether the caller is a command: it performs the bulk actions for which it asks, and waits
    for exact counts and for all log lines."""

    @property
    def management(self) -> Management:
        """Return the commands for tasks and queues. Raise StoreUnavailable, SchemaMismatch."""
        return Management(self.context)

    def facts(self) -> Facts | None:
        """Return the facts that callers share; None to read them anew."""
        return None if self.read_facts is None else self.read_facts()

    def may(self, right: str) -> bool:
        """Return whether the caller has a right."""
        return self.rights is None or right in self.rights

    def tenant_named(self, key: str) -> str:
        """Return the tenant of a fairness key. Raise UnknownTask if the caller may not see it."""
        name = tenant_of(key)
        if self.tenants is not None and name not in self.tenants:
            raise UnknownTask(f"no tenant {name!r}")
        return name

    def shown(self, name: str, arguments: Any) -> Any:
        """Return the arguments of a task of this name as they may be shown."""
        return arguments if self.mask is None else self.mask(name, arguments)

    def searchable(self, filters: TaskFilters) -> TaskFilters:
        """Return the filter if it searches only for arguments that are shown. Raise InvalidTask."""
        if not self.shows_arguments and filters.get("argument") is not None:
            raise InvalidTask("argument: arguments are not shown here, and so cannot be searched")
        return check_search(self.mask, filters)
