"""Checks of incidents: undelivered ones, refused writes, and lanes whose record cannot be read."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fairlead.clock import MICROS
from fairlead.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from fairlead.model import INCIDENT_ENDS, WATCHED, IncidentKind
from fairlead.operate.doctor.finding import Finding, note, problem
from fairlead.operate.doctor.survey import Survey

LATE_SECONDS = 300
"""Age of an undelivered incident, in seconds, from which it is reported."""

_MOST = 1000
"""Undelivered incidents that are counted."""

_SHOWN = 3
"""Undelivered incidents that are shown one by one."""


async def check_incidents(survey: Survey) -> AsyncIterator[Finding]:
    """Report incidents that wait for their delivery."""
    store = survey.context.cluster
    found = await store.database.read(store.incidents.undelivered(_MOST))
    late = [i for i in found if survey.now - i.since > LATE_SECONDS * MICROS]
    if not late:
        return
    shown = "; ".join(f"{i.kind} of {i.subject} after {i.deliveries} calls" for i in late[:_SHOWN])
    more = "" if len(late) <= _SHOWN else f"; and {len(late) - _SHOWN} more"
    many = f"at least {len(late)}" if len(found) == _MOST else str(len(late))
    yield problem(
        f"{many} incidents are not delivered: {shown}{more}",
        "start a worker, or look in its log why on_incident fails",
    )


async def check_refused_writes(survey: Survey) -> AsyncIterator[Finding]:
    """Report writes that the store refuses alone."""
    counts = await survey.context.cluster.incidents.counts(_open_since(survey))
    for (kind, queue, name), count in sorted(counts.items()):
        if kind == IncidentKind.WRITE_REFUSED:
            yield problem(
                f"the store refuses the ends of {count} runs of {name or 'tasks'} in queue {queue}",
                "read the error in the incidents write_refused or in the logs of the workers, and"
                " correct the trigger, constraint or limit that it names",
            )


async def check_watched(survey: Survey) -> AsyncIterator[Finding]:
    """Report the queues that stall, are flooded or fail, and the workers whose clock is off; note
    those that did, or that have lost nodes, in the last hour."""
    store = survey.context.cluster
    reported = [*WATCHED, IncidentKind.CLOCK_OFF]
    kinds = [kind for kind in reported if kind is not IncidentKind.NODE_LOSS]
    since = _open_since(survey)
    present = await store.database.read(store.incidents.open(kinds, _MOST, since))
    found = await store.database.read(store.incidents.open(reported, _MOST))
    shown = {incident.id for incident in present}
    past = [incident for incident in found if incident.id not in shown]
    for say, incidents in ((problem, present), (note, past)):
        for incident in incidents[:_SHOWN]:
            yield say(f"in the last hour: {incident.details}")
        if (more := len(incidents) - _SHOWN) > 0:
            yield say(
                f"{more} more queues, keys or nodes have had such problems in the last hour",
                "see the screen of incidents in the console",
            )


def _open_since(survey: Survey) -> int:
    """Return the instant of the earliest last report of an incident that is not over."""
    return survey.now - round(INCIDENT_ENDS * MICROS)


async def check_backlog(survey: Survey) -> AsyncIterator[Finding]:
    """Report a store of backlogs that cannot be read."""
    if survey.context.backlog is None:
        return
    try:
        await survey.context.backlog.records()
    except StoreUnavailable as error:
        yield problem(f"the store of backlogs does not respond: {error}", "start its server")
    except (ConfigurationError, SchemaMismatch) as error:
        yield problem(str(error))
