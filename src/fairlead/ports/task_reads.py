"""Bounded reads of tasks and of their history, for consoles. `TaskRecords.reads` returns them.

No read costs more on a larger table: each walks at most a fixed number of rows and says where it
stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from fairlead.model import State, TaskRecord
from fairlead.ports.statements import Steps
from fairlead.ports.task_records import TaskFilter

MOST_WALKED = 20_000
"""Greatest number of rows that one page walks over."""
MOST_SEARCHED_ARGUMENTS = 2000
"""Number of payloads in which one page of at most 500 tasks searches an argument; a larger page
searches four for each task that it may have."""
MOST_PAYLOADS = 16 << 20
"""Bytes of stored payloads in which one page searches an argument."""
MOST_PAYLOAD = 1 << 20
"""Greatest size in bytes of a payload in which an argument is searched, stored or unpacked."""
MOST_SAMPLED = 10_000
"""Number of unfinished tasks up to which `backlog` counts them all."""


class TaskPage(msgspec.Struct, frozen=True):
    """A page of tasks."""

    tasks: list[TaskRecord]
    after: str | None
    """Cursor of the next page; None at the end."""
    is_cut: bool = False
    """Whether the page has ended because it walked over as many rows as a page may, so that a next
    page may have more tasks even if this one is empty."""
    not_searched: int = 0
    """Tasks of this page's range that were left out because their payload is too long to search."""


class RunFact(NamedTuple):
    """One attempt of the history."""

    queue: str
    name: str
    fairness_key: str
    weight: float
    ready_at: int | None
    claimed_at: int | None
    started_at: int | None
    finished_at: int
    outcome: str
    next_state: str


class KeyCount(NamedTuple):
    """Unfinished tasks of a name and fairness key in one state, among those that were looked at."""

    queue: str
    name: str
    fairness_key: str
    state: State
    tasks: int
    oldest_at: int
    """Earliest time at which one of them became ready, or is to run if it waits."""
    weight: float
    """Greatest weight of the tasks."""


class Backlog(NamedTuple):
    """Counts of unfinished tasks by queue, name, fairness key and state."""

    counts: list[KeyCount]
    factor: float
    """Number of tasks for which one in `counts` stands: 1 if all were counted, more if a sample
    was."""


class ErrorFact(NamedTuple):
    """A task in ERROR."""

    task_id: str
    queue: str
    name: str
    fairness_key: str
    since: int
    error_type: str | None


class KeySetting(NamedTuple):
    """Settings that people and policies have made for a fairness key."""

    queue: str
    fairness_key: str
    weight: float | None
    slots: int | None
    """Tasks of the key that each node may run at once."""


class TaskReads(Protocol):
    """Bounded reads, for people. A store without rows raises NotSupported."""

    def page(
        self,
        where: TaskFilter,
        limit: int,
        newest_first: bool,
        most_walked: int = MOST_WALKED,
    ) -> Steps[TaskPage]:
        """Return a page of tasks that match, by id; with a final state, of finished ones, by their
        end. Walks over at most `most_walked` rows after `where.after`. Raises InvalidTask for an
        `after` that is no cursor."""

    def count(self, where: TaskFilter, most: int) -> Steps[tuple[int, bool]]:
        """Return the number of tasks that match, counted up to `most` and as far as one page walks,
        and whether there may be more. Reads no task whole."""

    def runs(self, limit: int) -> Steps[list[RunFact]]:
        """Return the latest attempts, latest first."""

    def backlog(self) -> Steps[Backlog]:
        """Return counts of the unfinished tasks: of all if there are few, else of a sample that is
        the same for the same rows."""

    def errors(self, limit: int) -> Steps[list[ErrorFact]]:
        """Return tasks in ERROR, latest first."""

    def mark(self) -> Steps[tuple[object, ...]]:
        """Return a value that differs after a task has ended, an incident was opened, or settings
        of queues have changed. Costs a few look-ups in indexes. Submits have notifications, and the
        start of a task changes nothing here."""

    def key_settings(self, keys: Sequence[tuple[str, str]]) -> Steps[list[KeySetting]]:
        """Return the settings of those (queue, fairness key) that have any."""
