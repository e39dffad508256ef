"""Checks of the store, the coordinator and the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.operate.doctor.finding import Finding, counted, note, ok, problem
from fairlead.operate.doctor.survey import Survey

LEAST_MEMORY = 2048
"""Memory and temporary files, in kB, that the largest statements of workers and submitters need."""

NEARLY_ALL = 0.9
"""Share of the allowed connections from which on their number is a problem."""


async def check_store(survey: Survey) -> AsyncIterator[Finding]:
    """Report the task store, which the survey has reached."""
    tables = "" if survey.sql is None else ", its tables are up to date"
    yield ok(f"{survey.context.cluster.database.location}: reachable{tables}")


async def check_connections(survey: Survey) -> AsyncIterator[Finding]:
    """Report the connections to the server of the task store, and how close they are to a limit."""
    found = None if survey.sql is None else survey.sql.database.connections()
    if found is None:
        return
    limits = [(found.used, found.most, "max_connections of the server")]
    if found.most_of_role is not None:
        limits.append((found.used_by_role, found.most_of_role, "the CONNECTION LIMIT of the role"))
    for used, most, name in limits:
        if used >= most * NEARLY_ALL:
            yield problem(
                f"{used} of {most} connections are in use ({name}); {found.ours} are Fairlead's",
                "lower pool_size in the URL, run fewer workers, put a pooler in between, or raise"
                f" {name}",
            )
            return
    yield ok(
        f"{found.used} of {found.most} connections are in use, {found.ours} by Fairlead; each pool"
        f" of a process has at most {found.pool_size}"
    )
    if not found.has_sessions:
        yield note(
            "a pooler in transaction mode is in between: workers poll instead of listening, share"
            " no work of one partition, and a killed worker is noticed after 10 s",
            "add ?direct=host:port to the URL of workers for the one connection that listens",
        )


async def check_memory(survey: Survey) -> AsyncIterator[Finding]:
    """Report limits of the server by which it refuses large statements."""
    found = None if survey.sql is None else survey.sql.database.memory()
    if found is None or found.temp_file_limit is None:
        return
    if found.work_mem + found.temp_file_limit < LEAST_MEMORY:
        yield problem(
            f"the server refuses large batches: work_mem is {found.work_mem} kB, and"
            f" temp_file_limit is {found.temp_file_limit} kB",
            "set work_mem of the role or database to 2MB or more, or raise temp_file_limit",
        )


async def check_coordinator(survey: Survey) -> AsyncIterator[Finding]:
    """Report the coordinator and its leases."""
    leases = survey.leases
    if isinstance(leases, ConfigurationError):
        yield problem(str(leases))
        return
    if isinstance(leases, StoreUnavailable):
        yield problem(
            str(leases),
            "start the server: until then no partition and no poller moves to another node, and no"
            " task with a cluster-wide limit starts",
        )
        return
    owners = set(leases.values())
    location = survey.context.coordinator.location
    yield ok(f"{location}: {counted(len(leases), 'lease')} of {counted(len(owners), 'worker')}")


async def check_versions(survey: Survey) -> AsyncIterator[Finding]:
    """Report living nodes of several versions of Fairlead."""
    living = [each for each in survey.nodes if each.node not in survey.silent]
    by_version = Counter(each.facts.version for each in living)
    if len(by_version) > 1:
        shown = ", ".join(f"{version} ({number})" for version, number in sorted(by_version.items()))
        yield note(
            f"workers run {len(by_version)} versions of Fairlead: {shown}",
            "upgrade the older workers; `fairlead nodes` lists them",
        )


async def check_silent_nodes(survey: Survey) -> AsyncIterator[Finding]:
    """Report the nodes whose heartbeat has stopped."""
    for name in sorted(survey.silent):
        yield problem(
            f"node {name} sends no heartbeats; the other workers resume its tasks",
            "start a worker if none is left",
        )
