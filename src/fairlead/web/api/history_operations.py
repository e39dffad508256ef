"""Operations of the JSON API that read the history of the lake."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from fairlead.errors import ConfigurationError, NotSupported
from fairlead.model.lake_history import HistoryRows, Runs, Shares, Tenant, Waits
from fairlead.operate.operations import Arguments, Operation, Text, declare
from fairlead.ports.lake_history import By, LakeHistory, Measure, Question
from fairlead.web.lake import question_of
from fairlead.web.page import Page

Time = Annotated[str, Meta(max_length=64, description="ISO 8601, in UTC without an offset.")]
Points = Annotated[int, Meta(ge=1, le=200, description="Steps, at most; 1 for the whole period.")]


class Period(Arguments, frozen=True, kw_only=True):
    """Part of the history; without `since` and `until`, all of it."""

    since: Time | None = None
    until: Time | None = None
    queue: Text | None = None
    tenant: Annotated[Text, Meta(description="Tenant, or any of its fairness keys.")] | None = None
    top: Annotated[int, Meta(ge=1, le=50, description="Parts with a name; others are one.")] = 10


HISTORY: list[Operation] = []
"""All operations on the history."""
_read = partial(declare, HISTORY, base=Period, scoped=True, needs_page=True)


@_read("/history/runs")
def history_runs(
    page: Page, *, by: By = "queue", points: Points = 200, **period: Any
) -> HistoryRows[Runs]:
    """Return runs, failures and worker time over a period."""
    history, question = _asked(page, by=by, points=points, **period)
    return history.runs(question)


@_read("/history/waits")
def history_waits(
    page: Page,
    *,
    by: By = "queue",
    measure: Measure = "pickup",
    points: Points = 200,
    **period: Any,
) -> HistoryRows[Waits]:
    """Return percentiles of waits, or of another duration, over a period."""
    history, question = _asked(page, by=by, measure=measure, points=points, **period)
    return history.waits(question)


@_read("/history/shares")
def history_shares(page: Page, *, points: Points = 200, **period: Any) -> HistoryRows[Shares]:
    """Return the worker time that each tenant got, and that was due to it."""
    history, question = _asked(page, points=points, **period)
    return history.shares(question)


@_read("/history/tenants")
def history_tenants(page: Page, **period: Any) -> HistoryRows[Tenant]:
    """Return the tenants with most worker time in a period."""
    history, question = _asked(page, **period)
    return history.top_tenants(question)


def _asked(page: Page, **asked: Any) -> tuple[LakeHistory, Question]:
    """Return the history and the question. Raise NotSupported without a lake."""
    try:
        history = page.parts.lake.history()
    except ConfigurationError as error:
        raise NotSupported(str(error)) from error
    return history, question_of(page.caller, history.extent(), **asked)
