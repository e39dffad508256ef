"""The filter of tasks in the parameters of a request: the address of a list is its filter."""

from __future__ import annotations

from datetime import timedelta

from fairlead.core import values
from fairlead.model import State
from fairlead.operate.filters import TaskFilters
from fairlead.web.inputs import BadInput, Inputs

NAMES = frozenset({*TaskFilters.__annotations__, "no_key"})
"""Parameters of a filter."""

_OTHERS = {"state", "older_than", "submitted_from", "submitted_before"}
"""Conditions that are no texts."""
_MOST_SECONDS = 10 * 365 * 86_400


def filters_of(inputs: Inputs) -> TaskFilters:
    """Return the filter that a query or a form has. `older_than` is in seconds, instants are ISO
    8601, in UTC without a zone. Raise BadInput."""
    found = TaskFilters()
    if (state := inputs.one_of("state", list(State))) is not None:
        found["state"] = State(state)
    for name in sorted(TaskFilters.__annotations__.keys() - _OTHERS):
        if (text := inputs.text(name)) is not None:
            found[name] = text  # type: ignore[literal-required]
    if inputs.flag("no_key"):
        found["fairness_key"] = ""
    if seconds := inputs.whole("older_than", 0, _MOST_SECONDS, 0):
        found["older_than"] = timedelta(seconds=seconds)
    for name in ("submitted_from", "submitted_before"):
        if (text := inputs.text(name, 64)) is not None:
            found[name] = values.instant(name, text, BadInput)  # type: ignore[literal-required]
    return found


def pairs_of(inputs: Inputs) -> dict[str, list[str]]:
    """Return the parameters of the filter alone, for the hidden fields of a form."""
    found: dict[str, list[str]] = {}
    for name, value in inputs.pairs():
        if name in NAMES and value:
            found.setdefault(name, []).append(value)
    return found
