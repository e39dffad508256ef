"""The examination: all checks, in order, on one survey of the cluster."""

from __future__ import annotations

from fairlead.operate.context import OperateContext
from fairlead.operate.doctor.checks import CHECKS
from fairlead.operate.doctor.finding import Finding
from fairlead.operate.doctor.survey import take_survey


async def examine(context: OperateContext) -> list[Finding]:
    """Check the store, the nodes and the queues. Raise StoreUnavailable or SchemaMismatch when the
    store cannot be read."""
    survey = await take_survey(context)
    return [finding for check in CHECKS async for finding in check(survey)]
