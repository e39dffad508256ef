"""Checks of the store, the coordinator and the nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fairlead.errors import StoreUnavailable
from fairlead.operate.doctor.finding import Finding, ok, problem
from fairlead.operate.doctor.survey import Survey


async def check_store(survey: Survey) -> AsyncIterator[Finding]:
    """Report the task store, which the survey has reached."""
    tables = "" if survey.sql is None else ", its tables are up to date"
    yield ok(f"{survey.context.store.database.location}: reachable{tables}")


async def check_coordinator(survey: Survey) -> AsyncIterator[Finding]:
    """Report the coordinator and its leases."""
    leases = survey.leases
    if isinstance(leases, StoreUnavailable):
        yield problem(
            str(leases),
            "start the server: until then no partition and no poller moves to another node, and no"
            " task with a cluster-wide limit starts",
        )
        return
    owners = set(leases.values())
    location = survey.context.coordinator.location
    yield ok(f"{location}: {len(leases)} leases of {len(owners)} workers")


async def check_silent_nodes(survey: Survey) -> AsyncIterator[Finding]:
    """Report the nodes whose heartbeat has stopped."""
    for name in sorted(survey.silent):
        yield problem(
            f"node {name} sends no heartbeats; the other workers resume its tasks",
            "start a worker if none is left",
        )
