"""Checks of each queue: its workers, its waiting tasks, the owners of its partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from fairlead.clock import MICROS
from fairlead.model import PartitionKey, State
from fairlead.operate.doctor.checks.ordered import check_ordered
from fairlead.operate.doctor.finding import Finding, counted, note, problem
from fairlead.operate.doctor.survey import Survey
from fairlead.operate.summary import QueueNumbers
from fairlead.operate.why import causes, longest_waiting

OLD_SECONDS = 300
"""Age of a SUBMITTED task, in seconds, from which it is reported."""

QueueCheck = Callable[[Survey, QueueNumbers], AsyncIterator[Finding]]


async def check_queues(survey: Survey) -> AsyncIterator[Finding]:
    """Report on every queue in turn."""
    for queue in survey.queues:
        for check in QUEUE_CHECKS:
            async for finding in check(survey, queue):
                yield finding


async def check_task_names(survey: Survey) -> AsyncIterator[Finding]:
    """Report the tasks in the store that wait for a worker that has a handler for their name."""
    for (queue, name), count in _names(survey).items():
        serving = survey.serving(queue)
        if serving and not any(name in node.names for node in serving):
            known = name in survey.context.handlers
            yield problem(
                f"{survey.about}{counted(count, 'task')} named {name!r} in {queue}: none of its"
                f" living workers ({len(serving)}) has a handler for this name, so they wait",
                "deploy this application to the workers"
                if known
                else "start a worker of an application that declares it",
            )


def _names(survey: Survey) -> Mapping[tuple[str, str], int]:
    """Return the number of tasks that may run, by queue and name."""
    if (facts := survey.facts) is None:
        return {}
    found: Counter[tuple[str, str]] = Counter()
    for count in facts.backlog.counts:
        if count.state is not State.ERROR:
            found[count.queue, count.name] += count.tasks
    return {pair: round(tasks * facts.backlog.factor) for pair, tasks in found.items()}


async def _unserved(survey: Survey, queue: QueueNumbers) -> AsyncIterator[Finding]:
    waiting, declared = queue.waiting.number + queue.backlog.number, survey.context.queues
    if waiting and not survey.serving(queue.queue):
        cure = "start `fairlead worker` for this queue"
        if declared and queue.queue not in declared:
            cure = (
                "this application does not declare it, so its workers do not serve it: add"
                f" app.queue({queue.queue!r}) until these tasks have run, and {cure}"
            )
        yield problem(
            f"queue {queue.queue}: {survey.about}{counted(waiting, 'task')} and no living worker",
            cure,
        )


async def _paused(survey: Survey, queue: QueueNumbers) -> AsyncIterator[Finding]:
    if queue.is_paused:
        yield note(f"queue {queue.queue} is paused", f"`fairlead queues resume {queue.queue}`")


async def _in_error(survey: Survey, queue: QueueNumbers) -> AsyncIterator[Finding]:
    if queue.errors.number:
        least = "at least " if queue.errors.at_least else ""
        yield problem(
            f"queue {queue.queue}: {least}{counted(queue.errors.number, 'task')} in ERROR; a person"
            " must decide",
            f"`fairlead tasks --state ERROR --queue {queue.queue}`",
        )


async def _old(survey: Survey, queue: QueueNumbers) -> AsyncIterator[Finding]:
    if queue.oldest_ready_at is None or queue.is_paused:
        return
    age = (survey.now - queue.oldest_ready_at) / MICROS
    if age <= OLD_SECONDS:
        return
    waited = f"queue {queue.queue}: the oldest task has waited {age:,.0f} s"
    found = None if survey.facts is None else longest_waiting(survey.facts, queue.queue)
    if found is None or survey.facts is None:
        yield note(waited, "look at its workers and limits")
        return
    for cause in causes(survey.context, survey.facts, found, queue=queue.queue):
        yield note(f"{waited}, of {found or '(no key)'}: {cause.what}", cause.cure)


async def _unowned(survey: Survey, queue: QueueNumbers) -> AsyncIterator[Finding]:
    owners = survey.owners
    if owners is None or not survey.serving(queue.queue):
        return
    free = [p for p in range(queue.partitions) if PartitionKey(queue.queue, p) not in owners]
    if free:
        which = ", ".join(map(str, free))
        yield note(
            f"queue {queue.queue}: nobody reads partition {which} now",
            "a worker takes it over within seconds",
        )


async def _fewer_declared(survey: Survey, queue: QueueNumbers) -> AsyncIterator[Finding]:
    declared = survey.context.queues.get(queue.queue)
    if declared is None or queue.queue in survey.context.ordered_queues:
        return
    if declared.partitions < queue.partitions:
        yield note(
            f"queue {queue.queue}: {declared.partitions} partitions here, {queue.partitions} in the"
            " store, which is in force",
        )


QUEUE_CHECKS: Sequence[QueueCheck] = (
    _unserved,
    _paused,
    _in_error,
    _old,
    _unowned,
    check_ordered,
    _fewer_declared,
)
