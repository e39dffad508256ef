"""The promises of `fairlead.ports.task_store.LaneReads`. Fixture: `store`, an empty task store."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.model import (
    LaneKey,
    NewTask,
)
from fairlead.ports.task_store import (
    TaskStore,
)
from fairlead.testing.contract.tasks import (
    AWKWARD,
    NOW,
    SECOND,
    claimed,
    done,
    make,
    ready,
    submit,
)

pytestmark = pytest.mark.asyncio


async def test_each_lane_with_submitted_tasks_is_listed_once(store: TaskStore) -> None:
    """`lanes` lists each lane with SUBMITTED tasks once, of every queue."""
    assert store.database.run(store.lanes()) == []
    submit(store, [*make(3), *make(2, partition=1), *make(2, priority=0)])
    submit(store, [*make(2, queue="bulk"), *make(1, queue=AWKWARD, partition=7)])
    submit(store, make(2, queue="later", run_at=NOW + SECOND))
    expected = [
        LaneKey("mail", 0, 5),
        LaneKey("mail", 1, 5),
        LaneKey("mail", 0, 0),
        LaneKey("bulk", 0, 5),
        LaneKey(AWKWARD, 7, 5),
    ]
    assert sorted(store.database.run(store.lanes())) == sorted(expected)


async def test_a_lane_whose_tasks_have_ended_is_not_listed(store: TaskStore) -> None:
    """`lanes` omits a lane once all of its tasks have ended."""
    ended, remaining = make(2), make(2, partition=1)
    submit(store, [*ended, *remaining])
    tasks = await claimed(store, ended)
    await store.complete("node-1", [done(task) for task in tasks])
    assert store.database.run(store.lanes()) == [LaneKey("mail", 1, 5)]


async def test_a_lane_is_read_in_order_and_no_trigger_comes_twice(store: TaskStore) -> None:
    """Pages of `ready` bring each trigger of the lane once, in order of submit."""
    tasks = make(120)
    submit(store, tasks[:60])
    submit(store, tasks[60:])
    submit(store, make(5, partition=1))
    submit(store, make(5, priority=4))
    read: list[str] = []
    above = 0
    while page := ready(store, above=above, limit=50):
        assert [trigger.seq for trigger in page] == sorted(trigger.seq for trigger in page)
        above = page[-1].seq
        read += [trigger.id for trigger in page]
    assert read == [task.id for task in tasks]


async def test_the_tasks_of_fairness_keys_are_read_each_from_its_position(
    store: TaskStore,
) -> None:
    """`ready_of` brings the next tasks of each key above its position, and none of other keys,
    lanes or states."""
    tasks = [task for _ in range(4) for key in (AWKWARD, "b", "c") for task in of_key(key)]
    submit(store, tasks)
    submit(store, [*of_key("b", partition=1), *of_key("b", priority=4)])
    submit(store, of_key("b", run_at=NOW + SECOND))
    seqs = {trigger.id: trigger.seq for trigger in ready(store)}
    by_key = {key: [t for t in tasks if t.fairness_key == key] for key in (AWKWARD, "b")}
    await claimed(store, [by_key["b"][2]])
    wanted = [(AWKWARD, 0), ("b", seqs[by_key["b"][0].id]), ("none", 0)]
    found = store.database.run(store.ready_of(LaneKey("mail", 0, 5), wanted, 2))
    expected = [*by_key[AWKWARD][:2], by_key["b"][1], by_key["b"][3]]
    assert {trigger.id for trigger in found} == {task.id for task in expected}
    assert [trigger.seq for trigger in found] == sorted(seqs[task.id] for task in expected)
    assert {trigger.id: trigger for trigger in found}.items() <= {
        trigger.id: trigger for trigger in ready(store)
    }.items()


async def test_the_tasks_without_a_fairness_key_are_read_page_by_page(store: TaskStore) -> None:
    """`ready_without` brings each of them once, in order of submit, and none of other lanes or
    states."""
    tasks = [task for n in range(60) for task in of_key("" if n % 3 else "a")]
    submit(store, tasks)
    submit(store, [*of_key("", partition=1), *of_key("", priority=4)])
    submit(store, of_key("", run_at=NOW + SECOND))
    await claimed(store, [tasks[4]])
    seqs = {trigger.id: trigger for trigger in ready(store)}
    found = []
    above: int | None = 0
    while above is not None:
        lane = LaneKey("mail", 0, 5)
        page, above = store.database.run(store.ready_without(lane, above, 7))
        assert len(page) <= 7
        found += page
    expected = [t.id for t in tasks if not t.fairness_key and t is not tasks[4]]
    assert [trigger.id for trigger in found] == expected
    assert found == [seqs[id] for id in expected]


async def test_the_fairness_keys_of_a_lane_are_listed_with_their_last_positions(
    store: TaskStore,
) -> None:
    """Pages of `ready_keys` list each key of one lane once, after the empty key."""
    keys = ["", AWKWARD, *(f"k{n}" for n in range(7))]
    submit(store, [task for _ in range(3) for key in keys for task in of_key(key)])
    submit(store, [*of_key("other", partition=1), *of_key("later", run_at=NOW + SECOND)])
    last = {trigger.fairness_key: trigger.seq for trigger in ready(store)}
    found: list[tuple[str, int]] = []
    lane, above = LaneKey("mail", 0, 5), ""
    while page := store.database.run(store.ready_keys(lane, above, 3)):
        found += page
        above = page[-1][0]
    assert sorted(found) == sorted((key, seq) for key, seq in last.items() if key)


async def test_a_read_of_ordering_keys_returns_the_first_tasks_of_each_key(
    store: TaskStore,
) -> None:
    """`ordered` returns at most `limit` tasks of each key it is asked for, in their order."""
    tasks = {key: make(30, ordering_key=key) for key in "abc"}
    for each in tasks.values():
        submit(store, each)
    found = store.database.run(store.ordered([("mail", "c"), ("mail", "a"), ("mail", "x")], 2))
    assert len(found) == 4
    for key in "ac":
        of_key = [trigger.id for trigger, _ in found if trigger.ordering_key == key]
        assert of_key == [task.id for task in tasks[key][:2]]


async def test_a_task_is_changed_once_it_has_another_version_or_has_ended(
    store: TaskStore,
) -> None:
    """`changed` returns the tasks that no longer have the given version, and no other."""
    tasks = make(3, ordering_key="o")
    submit(store, tasks)
    known = [(task.id, 1) for task in tasks]
    assert store.database.run(store.changed(known)) == []
    (won,) = await claimed(store, tasks[:1])
    assert store.database.run(store.changed(known)) == [won.id]
    assert store.database.run(store.changed([(won.id, won.version)])) == []
    await store.complete("node-1", [done(won)])
    assert store.database.run(store.changed([(won.id, won.version), *known[1:]])) == [won.id]


def of_key(key: str, **changes: Any) -> list[NewTask]:
    """Return one new task of a fairness key."""
    return make(1, fairness_key=key, **changes)
