"""Tasks in ERROR on Redis alone: the dead letters of their queues, until a person decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple

import msgspec

from fairlead.backends.redis.queues import Queues
from fairlead.backends.redis.registry import RedisSteps, Registry
from fairlead.backends.redis.sharded.claims import PriorityLane
from fairlead.backends.redis.sharded.dead_letters import (
    MOST_SEARCHED,
    Condition,
    DeadLetterSteps,
    Place,
    Revival,
)
from fairlead.backends.redis.sharded.message import DeadLetterHead
from fairlead.backends.redis.task_messages import (
    PAYLOAD,
    REASONS,
    TASK,
    Body,
    dead,
    is_cut,
    record,
    replaced,
)
from fairlead.model import PRIORITIES, TaskRecord, tenant_of
from fairlead.ports.task_reads import TaskPage
from fairlead.ports.task_records import TaskFilter, TaskVersion


class DeadLetter(NamedTuple):
    """A task in ERROR, without its payload."""

    head: DeadLetterHead
    task: TaskRecord
    body: Body

    @property
    def lane(self) -> PriorityLane:
        """The lane of the task."""
        return PriorityLane(self.task.queue, self.task.priority)


class DeadLetters:
    """The dead letters of all queues. Lists read the heads of dead letters, a page at a time."""

    def __init__(self, registry: Registry, queues: Queues) -> None:
        self._registry = registry
        self._queues = queues

    def lanes(self, queue: str | None = None) -> RedisSteps[list[PriorityLane]]:
        """Return the lanes of a queue, or of every queue, that were ever written to."""
        found: list[PriorityLane] = []
        for each in (yield from self._registry.settings()):
            if queue in (None, each):
                found += yield from self._queues.written(each)
        return found

    def page(self, lane: PriorityLane, after: str) -> RedisSteps[tuple[str, list[TaskRecord]]]:
        """Return the tasks of the next dead letters of a lane after a position, and the position of
        the last letter; "" if there are no more."""
        position, letters = yield from self._page(lane, after)
        return position, [letter.task for letter in letters]

    def search(self, where: TaskFilter, limit: int, most: int) -> RedisSteps[TaskPage]:
        """Return a page of at most `limit` tasks that match, from about `most` dead letters."""
        queues = [
            queue
            for queue in (yield from self._registry.settings())
            if where.queue in (None, queue)
        ]
        rounds = max(1, most // MOST_SEARCHED // max(1, len(queues)))
        tasks: list[TaskRecord] = []
        ends: list[str] = []
        for queue in queues:
            some, end = yield from self._look(queue, where, limit, rounds)
            tasks += some
            if end is not None:
                ends.append(end)
        first_end = min(ends, default=None)
        if first_end is not None:  # the next page has the tasks after it
            tasks = [task for task in tasks if task.id <= first_end]
        found = nsmallest(limit, tasks, key=lambda task: task.id)
        is_full = len(found) == limit and bool(found)
        after = found[-1].id if is_full else first_end
        return TaskPage(found, after, not is_full and after is not None)

    def _look(
        self, queue: str, where: TaskFilter, limit: int, rounds: int
    ) -> RedisSteps[tuple[list[TaskRecord], str | None]]:
        """Return at most `limit` tasks of a queue that match, and the id after which to go on, or
        None at the end. `rounds`: scripts to run, at most."""
        steps = self._steps(PriorityLane(queue, PRIORITIES[0]))
        conditions = _conditions(where)
        found: list[TaskRecord] = []
        begin_at, end = b"" if where.after is None else f"{where.after}!".encode(), None
        while rounds > 0 and len(found) < limit:
            rounds, left = rounds - 1, limit - len(found)
            begin_at, page = yield from steps.search(where.fairness_key, conditions, begin_at, left)
            found += yield from self._matching_of(queue, page, where)
            end = begin_at.decode(errors="replace").partition(" ")[0] or None
            if end is None:
                break
        return found, end

    def _matching_of(
        self, queue: str, page: Sequence[tuple[Place, DeadLetterHead]], where: TaskFilter
    ) -> RedisSteps[list[TaskRecord]]:
        """Return the tasks with these heads that match."""
        found: list[TaskRecord] = []
        for place, head in page:
            lane = PriorityLane(queue, int(place.section))
            letters = yield from self._of_tasks(lane, [head])
            found += [letter.task for letter in letters if _matches(letter.task, where)]
        return found

    def matching(self, where: TaskFilter, limit: int) -> RedisSteps[list[TaskRecord]]:
        """Return at most `limit` tasks that match, by id and so the oldest first."""
        found: list[TaskRecord] = []
        for queue in (yield from self._registry.settings()):
            if where.queue in (None, queue):
                found += yield from self._matching(queue, where, limit)
        return nsmallest(limit, found, key=lambda task: task.id)

    def _matching(self, queue: str, where: TaskFilter, limit: int) -> RedisSteps[list[TaskRecord]]:
        steps = self._steps(PriorityLane(queue, PRIORITIES[0]))
        conditions = _conditions(where)
        found: list[TaskRecord] = []
        begin_at = b"" if where.after is None else f"{where.after}!".encode()
        while len(found) < limit:
            left = limit - len(found)
            begin_at, page = yield from steps.search(where.fairness_key, conditions, begin_at, left)
            found += yield from self._matching_of(queue, page, where)
            if not begin_at:
                break
        return found

    def of(self, task_id: str) -> RedisSteps[DeadLetter | None]:
        """Return the dead letter of a task; None if the task is not in ERROR."""
        for queue in (yield from self._registry.settings()):
            for letter in (yield from self._named(queue, [task_id])):
                return letter
        return None

    def task(self, task_id: str) -> RedisSteps[TaskRecord | None]:
        """Return a task in ERROR, with the whole text of its error."""
        found = yield from self.of(task_id)
        if found is None or not is_cut(found.head):
            return None if found is None else found.task
        letter = yield from self._steps(found.lane).letter(found.head.position)
        return None if letter is None else record(*found.lane, letter, found.body)

    def payload(self, task_id: str) -> RedisSteps[tuple[bytes, str] | None]:
        """Return the payload of a task in ERROR, and its format."""
        found = yield from self.of(task_id)
        if found is None:
            return None
        letter = yield from self._steps(found.lane).letter(found.head.position)
        return None if letter is None else (letter.values[PAYLOAD], found.body.payload_format)

    def records(
        self, wanted: Sequence[tuple[str, str]]
    ) -> RedisSteps[dict[tuple[str, int], TaskRecord]]:
        """Return those of the tasks (queue, id) that are in ERROR, by id and version."""
        ids: defaultdict[str, list[str]] = defaultdict(list)
        for queue, task_id in wanted:
            ids[queue].append(task_id)
        found = {}
        for queue, of_queue in ids.items():
            for letter in (yield from self._named(queue, of_queue)):
                found[letter.task.id, letter.task.version] = letter.task
        return found

    def requeue(self, tasks: Sequence[TaskVersion], reset_tries: bool) -> RedisSteps[set[str]]:
        """Put tasks back into their queues, to run at once. Return the ids of those that were in
        ERROR in this version."""
        moved: set[str] = set()
        for lane, letters in (yield from self._in_version(tasks)).items():
            revivals = []
            for letter in letters:
                tries = 0 if reset_tries else letter.body.tries
                body = msgspec.structs.replace(
                    letter.body, attempts=letter.task.attempt, tries=tries
                )
                revivals.append(Revival(letter.head, replaced(body), REASONS))
            are_there = yield from self._steps(lane).revive(revivals)
            moved |= _ids(letters, are_there)
        return moved

    def drop(self, tasks: Sequence[TaskVersion]) -> RedisSteps[set[str]]:
        """Remove tasks for good. Return the ids of those that were in ERROR in this version."""
        dropped: set[str] = set()
        for lane, letters in (yield from self._in_version(tasks)).items():
            positions = [letter.head.position for letter in letters]
            dropped |= _ids(letters, (yield from self._steps(lane).drop(positions)))
        return dropped

    def _in_version(
        self, tasks: Sequence[TaskVersion]
    ) -> RedisSteps[dict[PriorityLane, list[DeadLetter]]]:
        """Return one dead letter of each task that is in ERROR in this version, by lane."""
        left = dict(tasks)
        found: defaultdict[PriorityLane, list[DeadLetter]] = defaultdict(list)
        for queue in (yield from self._registry.settings()):
            if left:
                for letter in (yield from self._named(queue, list(left))):
                    if left.get(letter.task.id) == letter.task.version:
                        del left[letter.task.id]
                        found[letter.lane].append(letter)
        return found

    def _steps(self, lane: PriorityLane) -> DeadLetterSteps:
        return DeadLetterSteps(self._queues.at(lane))

    def _page(self, lane: PriorityLane, after: str) -> RedisSteps[tuple[str, list[DeadLetter]]]:
        heads = yield from self._steps(lane).page(after)
        letters = yield from self._of_tasks(lane, heads)
        return heads[-1].position if heads else "", letters

    def _named(self, queue: str, ids: Sequence[str]) -> RedisSteps[list[DeadLetter]]:
        """Return the dead letters of tasks of one queue."""
        any_lane = PriorityLane(queue, PRIORITIES[0])
        places = yield from self._steps(any_lane).places(ids)
        return (yield from self._at(queue, chain.from_iterable(places)))

    def _at(self, queue: str, places: Iterable[Place]) -> RedisSteps[list[DeadLetter]]:
        """Return the dead letters of tasks at these places of one queue."""
        by_lane: defaultdict[PriorityLane, list[str]] = defaultdict(list)
        for section, position in places:
            by_lane[PriorityLane(queue, int(section))].append(position)
        found: list[DeadLetter] = []
        for lane, positions in by_lane.items():
            heads = yield from self._steps(lane).heads_at(positions)
            found += yield from self._of_tasks(lane, [head for head in heads if head is not None])
        return found

    def _of_tasks(
        self, lane: PriorityLane, heads: Sequence[DeadLetterHead]
    ) -> RedisSteps[list[DeadLetter]]:
        """Return the dead letters with these heads, without messages that are no tasks."""
        found = []
        for head in heads:
            body = dead(head)
            if body is None and TASK not in head.values:
                # The context of the task may be too large for a head.
                letter = yield from self._steps(lane).letter(head.position)
                body = None if letter is None else dead(letter)
            if body is not None:
                found.append(DeadLetter(head, record(*lane, head, body), body))
        return found


def _ids(letters: Sequence[DeadLetter], were_there: Sequence[bool]) -> set[str]:
    return {
        letter.task.id for letter, was_there in zip(letters, were_there, strict=True) if was_there
    }


def _conditions(where: TaskFilter) -> list[Condition]:
    """Return conditions that the heads of all tasks meet which match; others may meet them too."""
    found = []
    if where.name is not None:
        found.append(Condition(where.name.encode(), True, (TASK,)))
    if where.error is not None:
        found.append(Condition(_lower(where.error), False, REASONS))
    return found


def _lower(text: str) -> bytes:
    """Return a text with its ASCII letters in lower case."""
    return text.encode(errors="replace").lower()


def _matches(record: TaskRecord, where: TaskFilter) -> bool:
    return (
        where.queue in (None, record.queue)
        and where.name in (None, record.name)
        and where.fairness_key in (None, record.fairness_key)
        and (where.after is None or record.id > where.after)
        and (where.older_than is None or record.submitted_at < where.older_than)
        and (where.submitted_from is None or record.submitted_at >= where.submitted_from)
        and where.ordering_key in (None, record.ordering_key)
        and where.unique_key in (None, record.unique_key)
        and record.id.replace("-", "").startswith(where.id_prefix or "")
        and (where.tenants is None or tenant_of(record.fairness_key) in where.tenants)
        and (
            where.error is None
            or _lower(where.error) in _lower(f"{record.error_type}\n{record.error_text}")
        )
    )
