"""Bodies of the requests of the JSON API. A field that a body does not have is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from fairlead.core import values
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT, State
from fairlead.operate.batches import MOST_CHANGED
from fairlead.operate.changes import (
    CHANGES,
    Change,
    NewValues,
    Reschedule,
    Resume,
)
from fairlead.operate.filters import TaskFilters, instant

Text = Annotated[str, Meta(max_length=values.MOST_KEY_BYTES)]
Moment = Annotated[datetime, Meta(tz=True, description="An instant with its offset (ISO 8601).")]
Age = Annotated[int, Meta(ge=0, le=10 * 365 * 86_400, description="Seconds.")]
Version = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]
Why = Annotated[str, Meta(min_length=1, max_length=500)]
Weight = Annotated[float, Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)]
Slots = Annotated[int, Meta(ge=1, le=values.MOST_COUNT, description="Tasks at once on each node.")]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the bodies."""


class Filter(Body, frozen=True, kw_only=True):
    """Conditions on tasks; all must hold. One that is absent selects any task."""

    state: State | None = None
    queue: Text | None = None
    name: Text | None = None
    fairness_key: Text | None = None
    tenant: Text | None = None
    ordering_key: Text | None = None
    unique_key: Text | None = None
    tags: Text | None = None
    id: Text | None = None
    argument: Text | None = None
    error: Text | None = None
    older_than: Age | None = None
    submitted_from: Moment | None = None
    submitted_before: Moment | None = None


def filters_of_body(body: msgspec.Struct) -> TaskFilters:
    """Return the filter that a body with the fields of Filter has."""
    given: dict[str, Any] = {
        name: value
        for name in Filter.__struct_fields__
        if (value := getattr(body, name)) is not None
    }
    if "older_than" in given:
        given["older_than"] = timedelta(seconds=given["older_than"])
    found: TaskFilters = given  # type: ignore[assignment]
    return found


# changes of tasks ---------------------------------------------------------------------------------


class NoValues(Body, frozen=True, kw_only=True):
    """A change without values: retry, cancel, fail."""


class ResumeValues(Body, frozen=True, kw_only=True):
    """Values of resume: `force` also runs running tasks, which then run twice."""

    force: bool = False


class RescheduleValues(Body, frozen=True, kw_only=True):
    """Values of reschedule: the new time; a past one means now."""

    run_at: Moment


class ChangeValues(Body, frozen=True, kw_only=True):
    """Values of change; one that is absent stays as it is."""

    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    new_fairness_key: Text | None = None


VALUES: dict[str, type[Body]] = {
    "retry": NoValues,
    "resume": ResumeValues,
    "reschedule": RescheduleValues,
    "change": ChangeValues,
    "cancel": NoValues,
    "fail": NoValues,
}
"""Values of each change, by its verb."""


def one_body(verb: str) -> type[Body]:
    """Return the body of a change of one task. `version`: change the task at this version only."""
    number = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    return _body(f"{verb.title()}Task", VALUES[verb], ("version", number | None, None))


def named_body(verb: str) -> type[Body]:
    """Return the body of a change of named tasks."""
    ids = Annotated[list[Text], Meta(min_length=1, max_length=MOST_CHANGED)]
    return _body(f"{verb.title()}Tasks", VALUES[verb], ("ids", ids))


def matching_body(verb: str) -> type[Body]:
    """Return the body of a change of all tasks that match a filter, or of the first `limit`. An
    empty filter needs `all`."""
    limit = Annotated[int, Meta(ge=0, le=values.MOST_ROWS)]
    return _body(
        f"{verb.title()}Matching",
        VALUES[verb],
        ("filter", Filter, Filter()),
        ("all", bool, False),
        ("limit", limit | None, None),
    )


def change_of(verb: str, body: Any, actor: str) -> Change:
    """Return the change that a body asks for. Raise InvalidTask for an instant that no task can
    have."""
    match verb:
        case "resume":
            return Resume(force=body.force, actor=actor)
        case "reschedule":
            return Reschedule(run_at=instant("run_at", body.run_at), actor=actor)
        case "change":
            return NewValues(
                priority=body.priority, fairness_key=body.new_fairness_key, actor=actor
            )
        case _:
            return CHANGES[verb](actor=actor)


def _body(name: str, kind: type[Body], *fields: Any) -> type[Body]:
    made = msgspec.defstruct(
        name, fields, bases=(kind,), frozen=True, kw_only=True, forbid_unknown_fields=True
    )
    made.__doc__ = kind.__doc__
    return cast(type[Body], made)
