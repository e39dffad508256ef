"""Checks of a trigger channel with servers of its own: the servers and the topics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.operate.doctor.finding import MOST_SHOWN, Finding, counted, note, ok, problem
from fairlead.operate.doctor.survey import Survey
from fairlead.ports.trigger_channel import ChannelStatus, PartitionStatus


async def check_channel(survey: Survey) -> AsyncIterator[Finding]:
    """Report the servers of the channel, and the topics."""
    channel, status = survey.context.channel, survey.channel
    if status is None:
        return
    if isinstance(status, ConfigurationError):
        yield problem(str(status))
        return
    if isinstance(status, StoreUnavailable):
        yield problem(
            str(status),
            "start the server if it is down: until then, workers read the rows of the tasks for"
            " 10 s, then no new task starts; nothing is lost",
        )
        return
    yield ok(f"{channel.location}: reachable, {status.servers}")
    for finding in _topics(survey, status):
        yield finding


def _topics(survey: Survey, status: ChannelStatus) -> Iterator[Finding]:
    with_leases = {key.queue for key in survey.lease_owners or {}}
    for queue in survey.queues:
        name = queue.queue
        partitions = [found for found in status.partitions if found.queue == name]
        if not partitions and name in with_leases:
            continue  # leases hold the partitions of an ordered queue
        if len(partitions) < queue.partitions:
            yield note(
                f"topic of {name}: {len(partitions) or 'no'} partitions, the queue has"
                f" {queue.partitions}",
                "the next worker that starts creates the topic or adds the partitions",
            )
        else:
            yield ok(
                f"topic of {name}: {counted(len(partitions), 'partition')}, {_lag(partitions)}"
            )


def _lag(partitions: Sequence[PartitionStatus]) -> str:
    lags = [f"{found.partition}: {found.lag:,}" for found in partitions if found.lag]
    more = ", ..." if len(lags) > MOST_SHOWN else ""
    each = f" ({', '.join(lags[:MOST_SHOWN])}{more})" if lags else ""
    return f"lag {sum(found.lag for found in partitions):,}{each}"
