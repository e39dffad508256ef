"""Checks of the doctor, in the order in which they report."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from fairlead.operate.doctor.checks import (
    channel,
    cluster,
    history,
    incidents,
    limits,
    policies,
    queues,
)
from fairlead.operate.doctor.finding import Finding
from fairlead.operate.doctor.survey import Survey

Check = Callable[[Survey], AsyncIterator[Finding]]

CHECKS: Sequence[Check] = (
    cluster.check_store,
    cluster.check_connections,
    cluster.check_memory,
    cluster.check_coordinator,
    channel.check_channel,
    cluster.check_silent_nodes,
    cluster.check_versions,
    queues.check_queues,
    incidents.check_backlog,
    incidents.check_incidents,
    incidents.check_refused_writes,
    incidents.check_watched,
    history.check_readers,
    policies.check_policies,
    policies.check_switches,
    limits.check_cluster_limits,
    queues.check_task_names,
)
