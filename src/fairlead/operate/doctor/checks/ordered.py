"""Checks of an ordered queue: its partitions, its schedule, its log."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fairlead.errors import (
    ConfigurationError,
    NotSupported,
    SchemaMismatch,
    StoreUnavailable,
    UnknownQueue,
)
from fairlead.operate.doctor.finding import Finding, counted, note, ok, problem
from fairlead.operate.doctor.survey import Survey
from fairlead.operate.ordered import OrderedManagement
from fairlead.operate.summary import QueueNumbers
from fairlead.ordered.layout import command, other_layout
from fairlead.ordered.partition import STALE_SECONDS


async def check_ordered(survey: Survey, queue: QueueNumbers) -> AsyncIterator[Finding]:
    """Report the partitions of an ordered queue; nothing for a queue of another kind."""
    if not survey.has_leases:
        return
    name = queue.queue
    try:
        management = OrderedManagement(survey.context)
    except NotSupported:
        return
    declared = survey.context.ordered_queues.get(name)
    if declared is not None and declared.partitions != queue.partitions:
        yield problem(str(other_layout(name, queue.partitions, declared.partitions)))
    try:
        warnings = await management.check_log(name)
        views = await management.status(name)
    except UnknownQueue:  # tasks were submitted before any worker started
        return
    except (ConfigurationError, SchemaMismatch) as error:
        yield problem(str(error))
        return
    except StoreUnavailable as error:
        yield problem(str(error), "start the server: until then the tasks of the queue wait")
        return
    for warning in warnings:
        yield note(warning)
    if not views:
        return
    for target in {view.moving_to for view in views} - {None}:
        yield problem(
            f"queue {name}: a move to {target} partitions has not ended, and no worker can serve"
            " the queue until then",
            f"let the command end; if it was cut off, run `{command(name, target or 0)}` again",
        )
    for view in views:
        if view.trouble is not None and view.reloads > 1:
            yield problem(
                f"queue {name}, partition {view.partition}: reloaded {view.reloads} times in a"
                f" row: {view.trouble}",
                "cure this error; until then the tasks of the partition wait, and none is lost",
            )
        if view.unreadable:
            yield problem(
                f"queue {name}, partition {view.partition}: {view.unreadable} stored tasks cannot"
                " be read; each blocks its ordering key",
                "the incidents task_unreadable name the rows: correct them, or end the tasks by"
                f" `fairlead ordered drop {name} ORDERING_KEY`",
            )
    if stale := sum(view.stale for view in views):
        late = sum(view.stale > 0 for view in views)
        yield problem(
            f"queue {name}: {counted(stale, 'task')} in {counted(late, 'partition')} due more than"
            f" {STALE_SECONDS:.0f} s ago",
            f"list them by `fairlead ordered --queue {name}`; to end a stuck task, run `fairlead"
            f" ordered drop {name} ORDERING_KEY`",
        )
    unfinished, lag = sum(view.unfinished for view in views), sum(view.lag for view in views)
    yield ok(
        f"queue {name}: {counted(unfinished, 'task')} in the schedule,"
        f" {counted(lag, 'entry', 'entries')} in the log, of {counted(len(views), 'partition')}"
    )
