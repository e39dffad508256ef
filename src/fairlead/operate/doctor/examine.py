"""The examination: all checks, in order, on one survey of the cluster."""

from __future__ import annotations

from fairlead.errors import BatchTooLarge
from fairlead.operate.context import OperateContext
from fairlead.operate.doctor.checks import CHECKS
from fairlead.operate.doctor.finding import Finding, problem
from fairlead.operate.doctor.survey import take_survey
from fairlead.operate.facts import Facts


async def examine(context: OperateContext, *, facts: Facts | None = None) -> list[Finding]:
    """Check the store, the nodes and the queues, by bounded reads. Raise StoreUnavailable or
    SchemaMismatch when the store cannot be read."""
    survey = await take_survey(context, facts)
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += [finding async for finding in check(survey)]
        except BatchTooLarge as error:  # other checks need smaller statements
            findings.append(problem(str(error)))
    return findings
