"""Access to the console, as frozen values: who may read and do what, for which tenants."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from fairlead.core import values
from fairlead.errors import ConfigurationError
from fairlead.model import tenant_of

ACTIONS = frozenset(
    {
        "retry",
        "resume",
        "reschedule",
        "cancel",
        "fail",
        "change",
        "pause",
        "weight",
        "limit",
        "periodic",
        "policy",
    }
)
"""Names of the actions. `change` gives tasks another priority or fairness key; `pause` also
resumes; `periodic` runs, pauses and resumes periodic tasks; `policy` approves and rolls back."""

_MOST_TENANTS = 1000


@dataclass(frozen=True, kw_only=True)
class Access:
    """Rights of one viewer. Any access may read, except `Access.none()`.

    Raises ConfigurationError for an action that does not exist and for a tenant that no key names.
    """

    actions: frozenset[str] = frozenset()
    """Actions that the viewer may do."""
    tenants: frozenset[str] | None = None
    """Tenants (first parts of fairness keys) to which every read and action is limited; None is no
    limit."""
    name: str = "a person"
    """Name of the viewer, which the audit keeps."""
    reads: bool = True
    """Whether the viewer may see anything."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", _names("actions", self.actions))
        if unknown := self.actions - ACTIONS:
            raise ConfigurationError(
                f"action {values.brief(min(unknown))} is unknown; use {', '.join(sorted(ACTIONS))}"
            )
        if self.tenants is not None:
            object.__setattr__(self, "tenants", _names("tenants", self.tenants))
            if len(self.tenants) > _MOST_TENANTS:
                raise ConfigurationError(f"more than {_MOST_TENANTS} tenants in one access")
        values.text("name", self.name, values.MOST_NAME_BYTES)

    @classmethod
    def none(cls) -> Access:
        """Return the access of a viewer who may see nothing."""
        return cls(reads=False)

    @classmethod
    def read(cls, tenants: Collection[str] | None = None, *, name: str = "a person") -> Access:
        """Return the access of a viewer who may see everything of these tenants, or of all."""
        return cls(tenants=_given(tenants), name=name)

    @classmethod
    def full(cls, tenants: Collection[str] | None = None, *, name: str = "a person") -> Access:
        """Return the access of a viewer who may do every action, on these tenants or on all."""
        return cls(actions=ACTIONS, tenants=_given(tenants), name=name)

    def may(self, action: str) -> bool:
        """Return whether the viewer may do this action."""
        return self.reads and action in self.actions

    def sees(self, fairness_key: str) -> bool:
        """Return whether the viewer may see tasks of this fairness key."""
        return self.reads and (self.tenants is None or tenant_of(fairness_key) in self.tenants)

    def reading(self) -> Access:
        """Return this access without any action."""
        return replace(self, actions=frozenset())


def _given(tenants: Collection[str] | None) -> frozenset[str] | None:
    return None if tenants is None else _names("tenants", tenants)


def _names(what: str, given: object) -> frozenset[str]:
    return frozenset(
        values.text(what, each, may_be_empty=True) for each in values.many(what, given)
    )
