"""Checks of computed weights and limits: the queues in which they are in force or switched off."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fairlead.operate.doctor.finding import Finding, counted, note, ok
from fairlead.operate.doctor.survey import Survey
from fairlead.operate.store.policies import PolicyState, PolicyStore


async def check_policies(survey: Survey) -> AsyncIterator[Finding]:
    """Report the queues with computed weights or limits in force."""
    if survey.sql is None:
        return
    newest = survey.sql.database.read_now(PolicyStore(survey.sql).newest())
    for queue, policy in sorted(newest.items()):
        if policy.state == PolicyState.ACTIVE and (policy.guarded or policy.limits):
            window = ", in its canary window" if policy.judged_at is None else ""
            limits = f", limits of {len(policy.limits)}" if policy.limits else ""
            yield ok(
                f"queue {queue}: computed weights of {counted(len(policy.guarded), 'key')}{limits},"
                f" version {policy.version}{window}",
            )


async def check_switches(survey: Survey) -> AsyncIterator[Finding]:
    """Report the queues whose tuning is off or frozen."""
    if survey.sql is None:
        return
    for switch in survey.sql.database.read_now(PolicyStore(survey.sql).switches()):
        where = f" --queue {switch.queue}" if switch.queue else ""
        yield note(
            f"computed weights of {switch.queue or 'every queue'} are {switch.mode}, by"
            f" {switch.author}: {switch.why}",
            f"`fairlead pipeline tune on{where}`",
        )
