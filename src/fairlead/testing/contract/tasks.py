"""Tasks, claims and ends of runs for tests of task stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from fairlead.core.ids import IdSource, id_text
from fairlead.model import (
    ClaimedTask,
    Finish,
    LaneKey,
    NewTask,
    Submitted,
    Trigger,
    TriggerPath,
)
from fairlead.ports.cluster import NodeFacts
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_store import ClaimTerms, TaskStore

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
LATE = NOW + 10_000_000 * SECOND
"""Instant after all others of the tests."""
AWKWARD = (
    """Robert'); DROP TABLE fairlead_tasks;-- "quoted" \\ %s $1 ?1 {x} """
    "\u00fc \U0001f9ed\nsecond line\ttab"
)

FACTS = NodeFacts(slots=1, version="0.1.0", python="3.12.0")
"""Facts of a node."""

_source = IdSource()


class Versioned(Protocol):
    """Task with an id and a version."""

    @property
    def id(self) -> str:
        """Id of the task."""


def make(count: int = 1, **changes: Any) -> list[NewTask]:
    """Return new tasks, submitted NOW and due, with these fields changed."""
    task = NewTask(
        id="",
        queue="mail",
        partition=0,
        name="send",
        payload=b'{"n":1}',
        payload_format="json",
        priority=5,
        fairness_key="",
        weight=1.0,
        ordering_key=None,
        unique_key=None,
        run_at=changes.get("submitted_at", NOW),
        submitted_at=NOW,
        keep_result=False,
        context=None,
    )
    return [
        msgspec.structs.replace(task, id=id_text(new), **changes)
        for new in _source.block(count, NOW)
    ]


def awkward(count: int, **changes: Any) -> list[NewTask]:
    """Return new tasks of the lane (AWKWARD, 3, 0) that became due before NOW, with values that a
    store may spoil."""
    fields = {
        "queue": AWKWARD,
        "partition": 3,
        "name": AWKWARD,
        "payload": b"\x00\xff" + AWKWARD.encode(),
        "payload_format": "json+zlib",
        "priority": 0,
        "fairness_key": AWKWARD,
        "weight": 0.001,
        "context": '{"a":"b"}',
        "run_at": NOW - 5,
    }
    return make(count, **fields, **changes)


def submit(store: TaskStore, tasks: Sequence[NewTask]) -> list[Submitted]:
    """Submit the tasks; return the results without the positions."""
    return without_positions(store.database.run(store.submission(tasks))[0])


def without_positions(submitted: Sequence[Submitted]) -> list[Submitted]:
    """Return the results without the positions, which have a test of their own."""
    return [Submitted(id, is_new) for id, is_new, _ in submitted]


def wanted(
    tasks: Sequence[Versioned], version: int = 1, path: str = TriggerPath.HOOK
) -> list[Trigger]:
    """Return triggers of these tasks, all at one version."""
    [plain] = make()
    return [
        Trigger(
            id=task.id,
            version=version,
            path=path,
            **{name: getattr(task, name, getattr(plain, name)) for name in _OF_TASK},
        )
        for task in tasks
    ]


_OF_TASK = {*Trigger.__struct_fields__} & {*NewTask.__struct_fields__} - {"id"}
"""Fields of a trigger that its task has too."""


async def registered(store: TaskStore, node: str) -> None:
    """Register the node, if the store is a cluster too."""
    register: Any = getattr(store, "register_node", None)
    if register is not None:
        await register(node, [], [], NOW, FACTS)


async def claimed(
    store: TaskStore,
    tasks: Sequence[Versioned],
    node: str = "node-1",
    version: int = 1,
    stuck_at: int = NOW + 60 * SECOND,
    policy: int = 0,
) -> list[ClaimedTask]:
    """Claim the tasks one microsecond after NOW, on a node that is registered; return the won
    ones. `stuck_at`: microseconds since the epoch."""
    await registered(store, node)
    triggers = wanted(tasks, version)
    terms = dict.fromkeys((each.name for each in triggers), ClaimTerms(stuck_at, policy))
    return await store.claim(node, triggers, NOW + 1, terms)


def done(task: ClaimedTask, **changes: Any) -> Finish:
    """Return the end of a run, a successful one unless the changes say otherwise."""
    fields: dict[str, Any] = {
        "outcome": "done",
        "next_state": "DONE",
        "started_at": NOW + 2,
        "finished_at": NOW + 3,
    } | changes
    return Finish(task.id, task.version, row=task.row, **fields)


def ready(
    store: TaskStore, partition: int = 0, priority: int = 5, above: int = 0, limit: int = 10_000
) -> list[Trigger]:
    """Return the triggers of one lane of the queue `mail`."""
    lane = LaneKey("mail", partition, priority)
    return store.database.run(store.ready(lane, above, limit))


def ready_ids(store: TaskStore, **lane: int) -> list[str]:
    """Return the ids of the tasks that are ready in one lane, in their order."""
    return [trigger.id for trigger in ready(store, **lane)]


async def in_error(store: SqlStore, count: int) -> list[str]:
    """Move `count` new tasks to ERROR; return their ids."""
    tasks = make(count)
    submit(store, tasks)
    held = await claimed(store, tasks)
    failure = {"error_type": "ValueError", "error_text": "no"}
    finishes = [done(task, outcome="failed", next_state="ERROR", **failure) for task in held]
    await store.complete("node-1", finishes)
    await store.incidents.sweep(0, NOW, 2 * count)
    return [task.id for task in tasks]
