"""Checks of the cluster-wide limits that the application declares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import msgspec

from fairlead.core.limits.sharded_permits import held_permits
from fairlead.engine.cluster_limits import cluster_wide, follow
from fairlead.operate.doctor.finding import MOST_SHOWN, Finding, ok, problem
from fairlead.operate.doctor.survey import Survey
from fairlead.operate.holding import cancelling, declared_limits


async def check_cluster_limits(survey: Survey) -> AsyncIterator[Finding]:
    """Report the limits whose slots are held for far longer than usual, and how many permits of
    each limit the nodes hold."""
    context = survey.context
    for limit in declared_limits(context, survey.facts):
        if cure := cancelling(limit.held):
            yield problem(limit.text(), cure)
    if not survey.has_leases:
        return
    for name in cluster_wide(context.queues.values(), context.handlers.values()):
        try:
            held = await follow(context.coordinator, name, held_permits())
        except msgspec.DecodeError as error:
            yield problem(
                f"the permit ledger of the cluster-wide limit {name} cannot be read: {error}",
                "stop the workers, delete the ledger from the coordinator, and start the workers,"
                " which write a new ledger",
            )
        else:
            yield ok(f"cluster-wide limit {name}: permits held by workers: {_held(held)}")


def _held(held: Mapping[str, int]) -> str:
    pools = sorted(held)
    texts = [f"{pool} {held[pool]}".lstrip() for pool in pools[:MOST_SHOWN]]
    texts += [f"and {len(pools) - MOST_SHOWN} more keys"] if len(pools) > MOST_SHOWN else []
    return ", ".join(texts) or "none"
