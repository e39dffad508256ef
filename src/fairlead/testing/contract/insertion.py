"""The promises of `fairlead.ports.task_store.Insertion`. Fixture: `store`, an empty task store."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.model import (
    ClaimedTask,
    LaneKey,
    Submitted,
)
from fairlead.ports.notification import Lane
from fairlead.ports.task_store import (
    TaskStore,
)
from fairlead.testing.contract.tasks import (
    AWKWARD,
    NOW,
    SECOND,
    awkward,
    claimed,
    done,
    make,
    ready,
    ready_ids,
    submit,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("count", [1, 60])
async def test_a_claim_brings_every_field_that_a_run_needs(store: TaskStore, count: int) -> None:
    """`ready` returns triggers and `claim` returns tasks with every field as submitted."""
    tasks = awkward(count)
    assert submit(store, tasks) == [Submitted(task.id, True) for task in tasks]
    found = store.database.run(store.ready(LaneKey(AWKWARD, 3, 0), 0, 1000))
    assert [trigger.id for trigger in found] == [task.id for task in tasks]
    first = found[0]
    assert (first.version, first.name, first.fairness_key, first.weight) == (
        1,
        AWKWARD,
        AWKWARD,
        0.001,
    )
    (task,) = await claimed(store, tasks[:1])
    assert msgspec.structs.replace(task, row=0, batch=0) == ClaimedTask(
        tasks[0].id, 2, 1, 1, tasks[0].payload, "json+zlib", NOW, False, '{"a":"b"}'
    )


@pytest.mark.parametrize("count", [4, 200])
async def test_tasks_that_are_due_are_ready_and_the_others_wait(
    store: TaskStore, count: int
) -> None:
    """Only due tasks are ready; `next_due` returns the time of the first of the others."""
    due, later = make(count), make(count, run_at=NOW + 9 * SECOND)
    mixed = [task for pair in zip(due, later, strict=True) for task in pair]
    _, notification = store.database.run(store.submission(mixed))
    assert notification is None or notification.due == NOW + 9 * SECOND
    assert ready_ids(store) == [task.id for task in due]
    assert await store.next_due() == NOW + 9 * SECOND
    assert await claimed(store, later) == []


async def test_a_notification_names_each_lane_once(store: TaskStore) -> None:
    """The notification of a submit names each lane once, with a position to read from."""
    tasks = [*make(30), *make(20, partition=1), *make(20, priority=0)]
    notification = store.database.run(store.submission(tasks))[1]
    assert notification is not None  # no store's transaction carries that of so many tasks alone
    assert {(lane.partition, lane.priority) for lane in notification.ready} == {
        (0, 5),
        (1, 5),
        (0, 0),
    }
    assert (
        all(isinstance(lane, Lane) for lane in notification.ready) and len(notification.ready) == 3
    )
    first = ready(store)[0].seq
    (lane,) = [each for each in notification.ready if (each.partition, each.priority) == (0, 5)]
    assert lane.queue == "mail" and lane.first_seq <= first


async def test_an_empty_submit_leaves_nothing(store: TaskStore) -> None:
    """A submit of no tasks returns nothing and makes no task ready."""
    assert submit(store, []) == []
    assert ready_ids(store) == []


async def test_a_bulk_submit_takes_its_pieces_in_order(store: TaskStore) -> None:
    """`bulk` submits all pieces in their order, and returns notifications."""
    pieces = [make(3), make(2), make(1, run_at=NOW + SECOND)]
    submitted, notifications = store.database.run(store.bulk(iter(pieces)))
    assert [each.id for each in submitted] == [task.id for piece in pieces for task in piece]
    assert ready_ids(store) == [task.id for piece in pieces[:2] for task in piece]
    assert notifications


async def test_a_taken_unique_key_returns_the_first_tasks_id(store: TaskStore) -> None:
    """A taken unique key inserts nothing, in one submit or in two; other queues do not share
    keys."""
    first = make(1, unique_key=AWKWARD)[0]
    assert submit(store, [first]) == [Submitted(first.id, True)]
    again, free, other_queue = (
        make(1, unique_key=AWKWARD)[0],
        make(1)[0],
        make(1, unique_key=AWKWARD, queue="other")[0],
    )
    twice = make(2, unique_key="same batch")
    assert submit(store, [again, free, other_queue, *twice]) == [
        Submitted(first.id, False),
        Submitted(free.id, True),
        Submitted(other_queue.id, True),
        Submitted(twice[0].id, True),
        Submitted(twice[0].id, False),
    ]
    assert ready_ids(store) == [first.id, free.id, twice[0].id]


async def test_a_unique_key_is_free_when_its_task_is_done(store: TaskStore) -> None:
    """A unique key is taken while its task is in ERROR, and free when the task is done."""
    for next_state in ("ERROR", "DONE"):
        first = make(1, unique_key=next_state)
        submit(store, first)
        (task,) = await claimed(store, first)
        await store.complete("node-1", [done(task, next_state=next_state)])
        (again,) = submit(store, make(1, unique_key=next_state))
        assert again.is_new == (next_state == "DONE")


async def test_a_submit_returns_the_positions_of_the_tasks_in_their_lanes(store: TaskStore) -> None:
    """`submission` returns the `seq` under which `ready` lists each task that is due."""
    tasks, waiting = make(7, priority=3), make(2, run_at=NOW + SECOND)
    keyed = make(1, unique_key="k") + make(1, unique_key="k")
    submitted, _ = store.database.run(store.submission([*tasks, *waiting, *keyed]))
    positions = {id: seq for id, _, seq in submitted if seq is not None}
    lanes = {LaneKey(task.queue, task.partition, task.priority) for task in [*tasks, *keyed]}
    triggers = [
        trigger
        for lane in lanes
        for trigger in await store.database.read(store.ready(lane, 0, 100))
    ]
    assert positions == {trigger.id: trigger.seq for trigger in triggers} and len(positions) == 8
