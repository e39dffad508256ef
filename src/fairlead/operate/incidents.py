"""Reads of incidents for people."""

from __future__ import annotations

from fairlead.clock import MICROS
from fairlead.core import values
from fairlead.errors import InvalidTask
from fairlead.model import INCIDENT_ENDS, Incident
from fairlead.operate.context import OperateContext


def latest_incidents(context: OperateContext, below: int | None, limit: int) -> list[Incident]:
    """Return open incidents without their tasks, delivered or not, the latest first: at most
    `limit` whose ids are below `below`; None is no bound. Raise InvalidTask for a number that no
    id or limit can be."""
    if below is not None:
        values.whole("below", below, 0, (1 << 63) - 1, error=InvalidTask)
    values.whole("limit", limit, 0, values.MOST_ROWS, InvalidTask)
    store = context.cluster
    since = context.clock.now() - round(INCIDENT_ENDS * MICROS)
    found: list[Incident] = store.database.read_now(store.incidents.latest(below, limit, since))
    return found
