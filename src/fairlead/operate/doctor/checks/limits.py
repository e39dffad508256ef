"""Checks of the cluster-wide limits that the application declares."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from fairlead.core.limits import permits
from fairlead.engine.cluster_limits import cluster_wide
from fairlead.operate.doctor.finding import MOST_SHOWN, Finding, ok, problem
from fairlead.operate.doctor.survey import Survey


async def check_cluster_limits(survey: Survey) -> AsyncIterator[Finding]:
    """Report how many permits of each limit the nodes hold."""
    context = survey.context
    if not survey.has_leases:
        return
    for name in cluster_wide(context.queues.values(), context.handlers.values()):
        data, _ = await context.coordinator.read_ledger(name)
        try:
            ledger = permits.decode(data)
        except msgspec.DecodeError as error:
            yield problem(
                f"the permit ledger of the cluster-wide limit {name} cannot be read: {error}",
                "stop the workers, delete the ledger from the coordinator, and start the workers,"
                " which write a new ledger",
            )
        else:
            yield ok(f"cluster-wide limit {name}: permits held by workers: {_held(ledger)}")


def _held(ledger: permits.PermitLedger) -> str:
    pools = sorted({pool for holding in ledger.nodes.values() for pool in holding.shares})
    held = [f"{pool} {permits.held(ledger, pool)}".lstrip() for pool in pools[:MOST_SHOWN]]
    held += [f"and {len(pools) - MOST_SHOWN} more keys"] if len(pools) > MOST_SHOWN else []
    return ", ".join(held) or "none"
