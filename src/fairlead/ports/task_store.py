"""The task store, as three narrow ports: insert tasks; read lanes; claim tasks and end their runs.

A new store begins here. `fairlead.ports.cluster` and `fairlead.ports.sql_store` add what several
worker processes and people need. All calls take batches; each change is a compare-and-set on the
version. Times are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from fairlead.model import (
    NEVER,
    ClaimedTask,
    Finish,
    LaneKey,
    NewTask,
    State,
    Submitted,
    Trigger,
)
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Database, Steps


class ClaimTerms(NamedTuple):
    """Terms on which a node claims the tasks of one name."""

    stuck_at: int = NEVER
    """Instant after which the task is stuck even if its node lives (microseconds since the
    epoch)."""
    policy: int = 0
    """Treatment of a task that gets stuck or ends in ERROR: bits of RESUME_STUCK, SKIP_FAILED and
    IGNORE_STUCK. The claim stores the bits, so that nodes without a handler for the task follow
    them too."""


Terms = Mapping[str, ClaimTerms]
"""Terms of a claim by the names of its tasks."""

PLAIN_TERMS = ClaimTerms()
"""Terms of a name without terms of its own: its tasks never get stuck."""

RESUME_STUCK = 1
"""Bit of `ClaimTerms.policy`: resume a stuck task. Without the bit, the task moves to ERROR."""

SKIP_FAILED = 2
"""Bit of `ClaimTerms.policy`: a task in ERROR does not hold back the later tasks of its ordering
key."""

IGNORE_STUCK = 4
"""Bit of `ClaimTerms.policy`: report a stuck task, and change nothing."""


SubmitSteps = Steps[tuple[list[Submitted], Notification | None]]
"""Steps that insert tasks; they return the results in the order of the tasks, and the notification
to announce after the commit, None if the transaction carries it."""


class Stuck(NamedTuple):
    """A task past its `stuck_at`, and the state that its policy asks for."""

    id: str
    version: int
    queue: str
    name: str
    node: str | None
    claimed_at: int | None
    to: State


class Woken(NamedTuple):
    """Result of a poller's move: how many tasks moved, and the notification for their nodes."""

    moved: int
    notification: Notification | None


class Completed(NamedTuple):
    """Result of a completion: the ids this node no longer held, and the notification to announce
    after the commit."""

    refused: list[str]
    notification: Notification | None


class Insertion(Protocol):
    """Insertion of new tasks."""

    @property
    def database(self) -> Database:
        """Database that runs the steps, in whatever transaction the caller chooses."""

    def submission(self, tasks: Sequence[NewTask]) -> SubmitSteps:
        """Insert the tasks. A unique key is taken in its queue while its task is unfinished, and
        until `unique_until`: for a taken key, insert nothing and return the id of its task.
        Raises NotSupported for a task option that the store lacks."""

    def bulk(
        self, pieces: Iterable[Sequence[NewTask]]
    ) -> Steps[tuple[list[Submitted], list[Notification]]]:
        """Insert a great number of tasks, as `submission` does, piece by piece. A piece may be made
        while the one before is written; an error while a piece is made ends the transaction."""


class LaneReads(Protocol):
    """Reads of the tasks that may run, by lane and by ordering key."""

    @property
    def database(self) -> Database:
        """Database that runs the steps."""

    def ready(self, lane: LaneKey, above: int, limit: int) -> Steps[list[Trigger]]:
        """Return SUBMITTED tasks of one lane with a ready_seq (`seq` of the trigger) greater than
        `above`, ascending, at most `limit`; never one twice."""

    def ready_of(
        self, lane: LaneKey, keys: Sequence[tuple[str, int]], limit: int
    ) -> Steps[list[Trigger]]:
        """Return SUBMITTED tasks of these fairness keys of one lane: of each (key, position) those
        with a greater ready_seq, at most `limit`, the lowest first. All of them ascend by
        ready_seq. No key is empty. The cost does not grow with the number of tasks of other
        keys."""

    def ready_without(
        self, lane: LaneKey, above: int, limit: int
    ) -> Steps[tuple[list[Trigger], int | None]]:
        """Return the first SUBMITTED tasks without a fairness key of one lane with a greater
        ready_seq than `above`, ascending, at most `limit`, and the position to continue after; None
        if there are no more. May return none although there are more: the cost is bounded."""

    def ready_keys(self, lane: LaneKey, above: str, limit: int) -> Steps[list[tuple[str, int]]]:
        """Return the first `limit` fairness keys after `above` that have SUBMITTED tasks in the
        lane, each with its greatest ready_seq, ascending in an order of the store. The empty key
        comes before all others. Some keys may have only claimed tasks. The cost grows with the
        number of keys, not with the number of tasks."""

    def lanes(self) -> Steps[list[LaneKey]]:
        """Return every lane that has SUBMITTED tasks, and maybe some whose tasks are all claimed.
        The cost grows with the number of these lanes, not with the number of tasks."""

    def ordered(
        self, keys: Sequence[tuple[str, str]], limit: int
    ) -> Steps[list[tuple[Trigger, State]]]:
        """Return the first `limit` unfinished tasks of each (queue, ordering key), in the order in
        which they must run. The cost does not grow with the number of tasks behind them."""

    def changed(self, tasks: Sequence[tuple[str, int]]) -> Steps[list[str]]:
        """Return the ids of those tasks, given by (id, version), that have ended or have another
        version now."""

    def unfinished(self, queues: Sequence[str]) -> Steps[tuple[int, int]]:
        """Return how many tasks of these queues are left to run or to retry, and how many are in
        ERROR. Tasks scheduled ahead that have never run do not count. May read every
        unfinished task."""


class Claims(Protocol):
    """Claims of tasks, ends of their runs, and returns of tasks that are due, lost or stuck."""

    async def claim(
        self, node: str, triggers: Sequence[Trigger], now: int, terms: Terms
    ) -> list[ClaimedTask]:
        """Move the tasks that still have the version of their trigger from SUBMITTED to PROCESSING,
        on the terms of their names; of many claims of a task exactly one wins. A task with an
        ordering key is refused until all tasks before it, in (run_at, submission) order, have
        ended. A store that is a cluster too refuses all of a node that is not registered, because
        nobody would notice its death."""

    async def complete(self, node: str, finishes: Sequence[Finish]) -> Completed:
        """End the attempts and move their tasks on, in one transaction; refuse those whose version
        has moved on and write nothing for them."""

    async def hand_back(self, node: str, held: Sequence[tuple[str, int]]) -> Notification | None:
        """Make claimed tasks that were not started SUBMITTED again, at their old position and with
        no attempt spent. `held`: pairs of (id, version held)."""

    async def still_held(self, node: str, ids: Sequence[str], noted: bool = False) -> set[str]:
        """Return those of the tasks that this node still holds in PROCESSING. `noted`: `ids` are
        all that the node knows it holds, the oldest claim first; a store that finds running tasks
        by no index notes them for people."""

    async def held(self, node: str) -> list[tuple[str, int]]:
        """Return (id, version) of all tasks that this node holds in PROCESSING."""

    async def wake_due(self, now: int, limit: int) -> Woken:
        """Move WAITING tasks that are due to SUBMITTED."""

    async def next_due(self) -> int | None:
        """Return when the next WAITING task is due (microseconds since the epoch); None if there is
        none."""

    async def resume_lost(
        self,
        nodes: Sequence[str],
        now: int,
        limit: int,
        most_lost: int = 5,
    ) -> Woken:
        """Move the tasks that these dead nodes had in PROCESSING to SUBMITTED, with a `lost`
        attempt each. A task that has now been lost `most_lost` times moves to ERROR, because it may
        be the one that kills its nodes."""

    async def stuck(self, now: int, limit: int) -> list[Stuck]:
        """Return at most `limit` tasks in PROCESSING past their stuck_at whose policy does not
        ignore that."""

    async def release_stuck(
        self,
        task_id: str,
        version: int,
        to: State,
        now: int,
        reason: str,
    ) -> Notification | None:
        """Move a stuck task to SUBMITTED or ERROR, with a `lost` attempt; change nothing if the
        version is stale."""


class TaskStore(Insertion, LaneReads, Claims, Protocol):
    """The three ports together. One class may implement them all."""
