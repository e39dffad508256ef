"""Operations of the JSON API that read the history of the lake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, get_args

from fairlead.clock import to_micros
from fairlead.core.values import instant
from fairlead.errors import ConfigurationError, NotSupported, UnknownTask
from fairlead.model import tenant_of
from fairlead.model.lake_history import HistoryRows
from fairlead.ports.lake_history import By, LakeHistory, Measure, Question
from fairlead.web.api import documents
from fairlead.web.api.conversion import taken
from fairlead.web.api.operations import Parameter, Read, choice, text
from fairlead.web.inputs import BadInput
from fairlead.web.page import Page

T = TypeVar("T", bound=Any)

_MOST_PARTS, _PARTS = 50, 10
_MOST_POINTS = 200
_BYS: list[str] = list(get_args(By))
_MEASURES: list[str] = list(get_args(Measure))


def _question(page: Page, history: LakeHistory) -> Question:
    """Return the period and the parts that a query asks for. Raise BadInput, and UnknownTask for a
    tenant that the viewer may not see."""
    scope = page.access.tenants
    if (tenant := page.query.exact("tenant")) is not None:
        if not page.access.sees(tenant):
            raise UnknownTask(f"no tenant {tenant_of(tenant)!r}")
        scope = frozenset({tenant_of(tenant)})
    asked = {
        name: to_micros(instant(name, at, BadInput))
        for name in ("since", "until")
        if (at := page.query.text(name, 64)) is not None
    }
    ends: dict[str, int] = {}
    if (extent := history.extent()) is not None:
        ends["since"] = max(extent.since, asked.get("since", extent.since))
        ends["until"] = min(extent.until, asked.get("until", extent.until))
        if ends["since"] >= ends["until"]:
            raise BadInput("the lake has nothing between since and until: choose another period")
    return Question(
        **ends,
        by=cast(By, page.query.one_of("by", _BYS, "queue")),
        measure=cast(Measure, page.query.one_of("measure", _MEASURES, "pickup")),
        queue=page.query.text("queue"),
        tenants=scope,
        top=page.query.whole("top", 1, _MOST_PARTS, _PARTS),
        points=page.query.whole("points", 1, _MOST_POINTS, _MOST_POINTS),
    )


def _opened(page: Page) -> LakeHistory:
    """Return the history. Raise NotSupported without a lake."""
    try:
        return page.parts.lake.history()
    except ConfigurationError as error:
        raise NotSupported(str(error)) from error


def _respond(
    kind: type[T], read: Callable[[LakeHistory, Question], HistoryRows[Any]]
) -> Callable[[Page], T]:
    def respond(page: Page) -> T:
        history = _opened(page)
        found = read(history, _question(page, history))
        return taken(
            kind,
            found,
            step=found.step_s,
            built_at=found.as_of.built_at,
            history_until=found.as_of.history_until,
        )

    return respond


def _number(name: str, description: str, most: int, default: int) -> Parameter:
    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    return Parameter(name=name, description=description, schema=schema)


_PERIOD = (
    text("since", "ISO 8601, in UTC without an offset; default: the first hour of the lake."),
    text("until", "ISO 8601, in UTC without an offset; default: the last hour of the lake."),
    text("queue", "Queue."),
    text("tenant", "Tenant, or any of its fairness keys."),
    _number("top", "Parts that are named; the others together are one.", _MOST_PARTS, _PARTS),
)
_POINTS = _number("points", "Steps, at most; 1 for the whole period.", _MOST_POINTS, _MOST_POINTS)
_BY = choice("by", "Parts.", _BYS, "queue")

HISTORY: tuple[Read, ...] = (
    Read(
        name="history_runs",
        path="/history/runs",
        summary="Return runs, failures and worker time over a period.",
        result=documents.RunsHistory,
        respond=_respond(documents.RunsHistory, lambda history, question: history.runs(question)),
        parameters=(*_PERIOD, _BY, _POINTS),
        scoped=True,
    ),
    Read(
        name="history_waits",
        path="/history/waits",
        summary="Return percentiles of waits, or of another duration, over a period.",
        result=documents.WaitsHistory,
        respond=_respond(documents.WaitsHistory, lambda history, question: history.waits(question)),
        parameters=(*_PERIOD, _BY, choice("measure", "Duration.", _MEASURES, "pickup"), _POINTS),
        scoped=True,
    ),
    Read(
        name="history_shares",
        path="/history/shares",
        summary="Return the worker time that each tenant got, and that was due to it.",
        result=documents.SharesHistory,
        respond=_respond(
            documents.SharesHistory, lambda history, question: history.shares(question)
        ),
        parameters=(*_PERIOD, _POINTS),
        scoped=True,
    ),
    Read(
        name="history_tenants",
        path="/history/tenants",
        summary="Return the tenants with most worker time in a period.",
        result=documents.TenantsHistory,
        respond=_respond(
            documents.TenantsHistory, lambda history, question: history.top_tenants(question)
        ),
        parameters=_PERIOD,
        scoped=True,
    ),
)
"""All operations on the history."""
