"""Tasks in ERROR on Redis alone: the dead letters of their queues, until a person decides."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.backends.redis.queues import Queues
from fairlead.backends.redis.registry import RedisSteps, Registry
from fairlead.backends.redis.sharded.claims import PriorityLane
from fairlead.backends.redis.task_messages import Body, dead, entry, record
from fairlead.model import TaskRecord
from fairlead.ports.task_records import TaskFilter

MOST_LISTED = 10_000
"""Greatest number of dead letters of a lane that a search reads."""


class DeadLetter(NamedTuple):
    """A task in ERROR."""

    position: str
    """Position among the dead letters of the lane."""
    task: TaskRecord
    body: Body

    @property
    def lane(self) -> PriorityLane:
        """The lane of the task."""
        return PriorityLane(self.task.queue, self.task.priority)


class DeadLetters:
    """The dead letters of all queues."""

    def __init__(self, registry: Registry, queues: Queues) -> None:
        self._registry = registry
        self._queues = queues

    def all(self) -> RedisSteps[list[DeadLetter]]:
        """Return the dead letters in any order, without messages that are no tasks."""
        found = []
        for queue in (yield from self._registry.settings()):
            for lane in (yield from self._queues.written(queue)):
                for position, letter in (yield from self._queues.at(lane).dead(MOST_LISTED)):
                    if (body := dead(letter)) is not None:
                        found.append(
                            DeadLetter(position, record(queue, lane.priority, letter, body), body)
                        )
        return found

    def matching(self, where: TaskFilter, limit: int) -> RedisSteps[list[TaskRecord]]:
        """Return at most `limit` tasks that match, by id and so the oldest first."""
        found = [letter.task for letter in (yield from self.all()) if _matches(letter.task, where)]
        return sorted(found, key=lambda task: task.id)[:limit]

    def of(self, task_id: str) -> RedisSteps[DeadLetter | None]:
        """Return the dead letter of a task; None if the task is not in ERROR."""
        return next(
            (letter for letter in (yield from self.all()) if letter.task.id == task_id), None
        )

    def requeue(self, task_id: str, version: int, reset_tries: bool) -> RedisSteps[bool]:
        """Put the task back into its queue, to run at once. Return False if the task is not in
        ERROR in this version."""
        letter = yield from self._in_version(task_id, version)
        if letter is None:
            return False
        tries = 0 if reset_tries else letter.body.tries
        message = msgspec.structs.replace(letter.body, attempts=letter.task.attempt, tries=tries)
        steps = self._queues.at(letter.lane)
        return (yield from steps.revive(letter.position, entry(message, letter.task.fairness_key)))

    def drop(self, task_id: str, version: int) -> RedisSteps[bool]:
        """Remove the task for good. Return False if the task is not in ERROR in this version."""
        letter = yield from self._in_version(task_id, version)
        return letter is not None and (
            yield from self._queues.at(letter.lane).revive(letter.position, None)
        )

    def _in_version(self, task_id: str, version: int) -> RedisSteps[DeadLetter | None]:
        letter = yield from self.of(task_id)
        return letter if letter is not None and letter.task.version == version else None


def _matches(record: TaskRecord, where: TaskFilter) -> bool:
    return (
        where.queue in (None, record.queue)
        and where.name in (None, record.name)
        and where.fairness_key in (None, record.fairness_key)
        and (where.after is None or record.id > where.after)
        and (where.older_than is None or record.submitted_at < where.older_than)
    )
