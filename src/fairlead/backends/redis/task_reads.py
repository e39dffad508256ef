"""Bounded reads on Redis alone, which keeps tasks in ERROR only."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.redis.database import SQL_STORES
from fairlead.backends.redis.dead_letters import DeadLetters
from fairlead.backends.redis.registry import RedisSteps
from fairlead.errors import NotSupported
from fairlead.model import State
from fairlead.ports.task_reads import (
    MOST_WALKED,
    Backlog,
    ErrorFact,
    KeySetting,
    RunFact,
    TaskPage,
)
from fairlead.ports.task_records import TaskFilter


def require_error(where: TaskFilter) -> None:
    """Raise NotSupported unless the filter selects tasks in ERROR."""
    if where.state is not State.ERROR:
        raise NotSupported(
            f"Redis can list only tasks in ERROR (--state ERROR); {SQL_STORES} list all"
        )


class RedisTaskReads:
    """A `fairlead.ports.task_reads.TaskReads` of the dead letters."""

    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters

    def page(
        self,
        where: TaskFilter,
        limit: int,
        newest_first: bool,
        most_walked: int = MOST_WALKED,
    ) -> RedisSteps[TaskPage]:
        """Return tasks in ERROR only, oldest first only."""
        require_error(where)
        if newest_first:
            raise NotSupported(f"Redis lists the oldest tasks first; {SQL_STORES} both ways")
        if where.argument is not None:
            raise NotSupported(f"Redis cannot search arguments; {SQL_STORES} can")
        return (yield from self._dead_letters.search(where, limit, most_walked))

    def count(self, where: TaskFilter, most: int) -> RedisSteps[tuple[int, bool]]:
        page = yield from self.page(where, most + 1, True)
        return min(len(page.tasks), most), page.after is not None

    def runs(self, limit: int) -> RedisSteps[list[RunFact]]:
        raise NotSupported(f"Redis keeps no history of runs; {SQL_STORES} do")
        yield

    def backlog(self) -> RedisSteps[Backlog]:
        raise NotSupported(f"Redis keeps no rows of tasks; {SQL_STORES} do")
        yield

    def errors(self, limit: int) -> RedisSteps[list[ErrorFact]]:
        found = yield from self._dead_letters.matching(TaskFilter(state=State.ERROR), limit)
        return [
            ErrorFact(t.id, t.queue, t.name, t.fairness_key, t.run_at, t.error_type) for t in found
        ]

    def mark(self) -> RedisSteps[tuple[object, ...]]:
        raise NotSupported(f"Redis keeps no rows of tasks; {SQL_STORES} do")
        yield

    def key_settings(self, keys: Sequence[tuple[str, str]]) -> RedisSteps[list[KeySetting]]:
        raise NotSupported(f"Redis keeps no settings of single keys; {SQL_STORES} do")
        yield
