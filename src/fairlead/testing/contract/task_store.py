"""The promises of `fairlead.ports.task_store.TaskStore`. Fixture: `store`, an empty task store."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from fairlead.model import (
    ClaimedTask,
    IncidentKind,
    LaneKey,
    NewTask,
    State,
    Submitted,
    TriggerPath,
)
from fairlead.ports.notification import Lane
from fairlead.ports.task_store import (
    IGNORE_STUCK,
    RESUME_STUCK,
    SKIP_FAILED,
    TaskStore,
)
from fairlead.testing.contract.ordered_store import (  # noqa: F401
    test_a_report_is_delivered_once_and_ends_an_hour_after_the_last,
    test_nodes_fall_silent_and_are_dropped,
    test_queues_keep_the_greatest_number_of_partitions,
    test_the_mark_of_the_settings_differs_after_every_change,
)
from fairlead.testing.contract.tasks import (
    AWKWARD,
    FACTS,
    LATE,
    NOW,
    SECOND,
    claimed,
    done,
    errors,
    make,
    ready,
    ready_ids,
    submit,
    wanted,
)

pytestmark = pytest.mark.asyncio


# submitting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 60])
async def test_a_claim_brings_every_field_that_a_run_needs(store: TaskStore, count: int) -> None:
    """`ready` returns triggers and `claim` returns tasks with every field as submitted."""
    tasks = make(
        count,
        queue=AWKWARD,
        partition=3,
        name=AWKWARD,
        payload=b"\x00\xff" + AWKWARD.encode(),
        payload_format="json+zlib",
        priority=0,
        fairness_key=AWKWARD,
        weight=0.001,
        context='{"a":"b"}',
        run_at=NOW - 5,
    )
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
    assert notification.due in (NOW + 9 * SECOND, None)
    assert ready_ids(store) == [task.id for task in due]
    assert await store.next_due() == NOW + 9 * SECOND
    assert await claimed(store, later) == []


async def test_a_notification_names_each_lane_once(store: TaskStore) -> None:
    """The notification of a submit names each lane once, with a position to read from."""
    tasks = [*make(3), *make(2, partition=1), *make(2, priority=0)]
    notification = store.database.run(store.submission(tasks))[1]
    assert {(lane.partition, lane.priority) for lane in notification.ready} == {
        (0, 5),
        (1, 5),
        (0, 0),
    }
    assert (
        all(isinstance(lane, Lane) for lane in notification.ready) and len(notification.ready) == 3
    )
    first = ready(store)[0].seq
    positions = {_fields(lane)[:3]: lane.first_seq for lane in notification.ready}
    assert positions["mail", 0, 5] <= first


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


# order and claims ---------------------------------------------------------------------------------


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


async def test_of_many_nodes_exactly_one_wins_each_task(store: TaskStore) -> None:
    """Eight nodes claim 300 tasks at once, and exactly one wins each task."""
    tasks = make(300)
    submit(store, tasks)

    async def claim_all(node: int) -> list[ClaimedTask]:
        order = random.Random(node).sample(tasks, len(tasks))
        won: list[ClaimedTask] = []
        for start in range(0, 300, 60):
            won += await claimed(store, order[start : start + 60], node=f"node-{node}")
        return won

    won = [
        task for tasks_won in await asyncio.gather(*map(claim_all, range(8))) for task in tasks_won
    ]
    assert Counter(task.id for task in won) == Counter(task.id for task in tasks)
    assert {task.version for task in won} == {2}


async def test_a_claim_needs_the_version_and_the_state(store: TaskStore) -> None:
    """A claim fails for another version, for a WAITING task and for a claimed task."""
    due, later = make(1), make(1, run_at=NOW + SECOND)
    submit(store, due + later)
    assert await claimed(store, due, version=2) == []
    assert await claimed(store, later) == []
    (task,) = await claimed(store, due)
    assert (task.id, task.tries, task.attempt) == (due[0].id, 1, 1)
    assert await claimed(store, due) == []
    assert await store.held("node-1") == [(due[0].id, 2)]


async def test_tasks_of_one_ordering_key_run_one_at_a_time_in_order(store: TaskStore) -> None:
    """A task with an ordering key is refused until the tasks before it have ended."""
    tasks = make(3, ordering_key="o")
    submit(store, tasks)
    for number, task in enumerate(tasks):
        (won,) = await claimed(store, tasks)
        assert won.id == task.id
        assert await claimed(store, tasks[number:]) == []
        heads = store.database.run(store.ordered([("mail", "o")], 10))
        assert [trigger.id for trigger, _ in heads] == [each.id for each in tasks[number:]]
        assert heads[0][1] is State.PROCESSING
        await store.complete("node-1", [done(won)])
    assert store.database.run(store.ordered([("mail", "o")], 10)) == []


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


# completion ---------------------------------------------------------------------------------------


async def test_a_done_task_is_over_and_its_end_counts_once(store: TaskStore) -> None:
    """`complete` refuses the end of a task that is over or that another node holds."""
    tasks = make(3)
    submit(store, tasks)
    held = await claimed(store, tasks)
    ends = [done(task) for task in held]
    assert (await store.complete("node-1", ends[:2])).refused == []
    assert store.database.run(store.unfinished(["mail"])) == (1, 0)
    assert sorted((await store.complete("node-1", ends[:2])).refused) == sorted(
        task.id for task in held[:2]
    )
    assert (await store.complete("node-2", [ends[2]])).refused == [held[2].id]
    assert (await store.complete("node-1", [ends[2]])).refused == []
    assert store.database.run(store.unfinished(["mail"])) == (0, 0)
    assert await store.held("node-1") == []


async def test_a_slow_node_cannot_complete_a_task_that_another_claimed(store: TaskStore) -> None:
    """`complete` refuses every end of a run whose task another node has claimed since."""
    tasks = make(1)
    submit(store, tasks)
    (slow,) = await claimed(store, tasks)
    await store.resume_lost(["node-1"], NOW + 9, 10)
    (quick,) = await claimed(store, tasks, node="node-2", version=3)
    assert (quick.version, quick.attempt, quick.tries) == (4, 2, 2)
    assert await store.still_held("node-1", [slow.id]) == set()
    assert await store.still_held("node-2", [slow.id]) == {slow.id}
    for finish in (
        done(slow),
        done(slow, next_state="ERROR", outcome="failed"),
        done(slow, next_state="WAITING", run_at=1),
    ):
        assert (await store.complete("node-1", [finish])).refused == [slow.id]
    assert (await store.complete("node-2", [done(quick)])).refused == []


async def test_a_run_may_end_in_a_retry_an_error_or_a_snooze(store: TaskStore) -> None:
    """`complete` moves tasks to WAITING, ERROR or SUBMITTED, and counts tries and attempts."""
    retried, failed, snoozed, reset, again = tasks = make(5)
    submit(store, tasks)
    held = {task.id: task for task in await claimed(store, tasks)}
    failure = {"error_type": "ValueError", "error_text": AWKWARD}

    def waits(task_id: str, seconds: int, outcome: str = "retried", **more: Any) -> Any:
        run_at = NOW + seconds * SECOND
        return done(held[task_id], outcome=outcome, next_state="WAITING", run_at=run_at, **more)

    completed = await store.complete(
        "node-1",
        [
            waits(retried.id, 7, **failure),
            done(held[failed.id], outcome="failed", next_state="ERROR", **failure),
            waits(snoozed.id, 8, "snoozed", spends_try=False),
            waits(reset.id, 9, resets_tries=True),
            done(held[again.id], outcome="retried", next_state="SUBMITTED"),
        ],
    )
    assert completed.refused == []
    assert completed.notification is not None and completed.notification.due == NOW + 7 * SECOND
    assert completed.notification.finished == [failed.id]
    assert [lane[:3] for lane in map(_fields, completed.notification.ready)] == [("mail", 0, 5)]
    (incident,) = await errors(store)
    assert (incident.id, incident.state, incident.error_type, incident.error_text) == (
        failed.id,
        State.ERROR,
        "ValueError",
        AWKWARD,
    )
    assert ready_ids(store) == [again.id]
    assert await store.next_due() == NOW + 7 * SECOND
    assert (await store.wake_due(NOW + 60 * SECOND, 100)).moved == 3
    won = {
        task.id: (task.attempt, task.tries)
        for task in [
            *await claimed(store, [again], version=3),
            *await claimed(store, [retried, snoozed, reset], version=4),
        ]
    }
    assert won == {again.id: (2, 2), retried.id: (2, 2), snoozed.id: (2, 1), reset.id: (2, 1)}
    assert store.database.run(store.unfinished(["mail"])) == (4, 1)


async def test_a_task_that_is_handed_back_keeps_its_position_and_its_tries(
    store: TaskStore,
) -> None:
    """`hand_back` makes a held task ready at its old position, with no attempt spent."""
    tasks = make(3)
    submit(store, tasks)
    held = await claimed(store, tasks[:2])
    notification = await store.hand_back(
        "node-1", [(held[0].id, held[0].version), (held[1].id, held[1].version + 5)]
    )
    assert notification is not None and len(notification.ready) == 1
    assert ready_ids(store) == [held[0].id, tasks[2].id]
    assert await store.hand_back("node-2", [(held[1].id, held[1].version)]) is None
    (task,) = await claimed(store, tasks[:1], version=3)
    assert (task.attempt, task.tries) == (1, 1)


async def test_a_node_can_ask_what_it_holds(store: TaskStore) -> None:
    """`held` returns the tasks in PROCESSING of one node, with their versions."""
    tasks = make(4)
    submit(store, tasks)
    held = await claimed(store, tasks[:2])
    await claimed(store, tasks[2:3], node="node-2")
    assert sorted(await store.held("node-1")) == sorted((task.id, 2) for task in held)
    await store.complete("node-1", [done(task) for task in held])
    await store.drop_claims("node-1", [])
    assert await store.held("node-1") == []
    assert await store.held("node-2") == [(tasks[2].id, 2)]


async def test_claims_of_tasks_that_a_node_holds_are_not_dropped(store: TaskStore) -> None:
    """`drop_claims` keeps what finds the tasks that the node holds, named or not."""
    tasks = make(3)
    submit(store, tasks)
    first = await claimed(store, tasks[:2])
    await claimed(store, tasks[2:])
    await store.complete("node-1", [done(first[0])])
    await store.drop_claims("node-1", [])
    assert sorted(await store.held("node-1")) == sorted((task.id, 2) for task in tasks[1:])
    assert (await store.resume_lost(["node-1"], NOW + 9, 10)).moved == 2


# pollers ------------------------------------------------------------------------------------------


async def test_due_tasks_become_ready_in_the_order_of_their_time(store: TaskStore) -> None:
    """`wake_due` moves at most `limit` due tasks, the earliest first."""
    tasks = [make(1, run_at=NOW + delay * SECOND)[0] for delay in (5, 3, 9, 1, 7)]
    submit(store, tasks)
    assert (await store.wake_due(NOW, 100)).moved == 0
    woken = await store.wake_due(NOW + 7 * SECOND, 3)
    assert (
        woken.moved == 3 and woken.notification is not None and len(woken.notification.ready) == 1
    )
    assert ready_ids(store) == [tasks[3].id, tasks[1].id, tasks[0].id]
    assert (await store.wake_due(NOW + 7 * SECOND, 3)).moved == 1
    assert await store.next_due() == NOW + 9 * SECOND
    await store.register_node("n", [], [], NOW, FACTS)
    (task,) = await store.claim(
        "n", wanted(tasks[3:4], 2, TriggerPath.POLLER), NOW + 8 * SECOND, {}
    )
    assert task.ready_at == NOW + 7 * SECOND


async def test_pollers_that_meet_move_each_due_task_once(store: TaskStore) -> None:
    """Concurrent calls of `wake_due` move each due task once."""
    submit(store, make(200, run_at=NOW + SECOND))
    moved = await asyncio.gather(*(store.wake_due(NOW + 2 * SECOND, 60) for _ in range(6)))
    while (more := await store.wake_due(NOW + 2 * SECOND, 60)).moved:
        moved.append(more)
    assert sum(woken.moved for woken in moved) == 200
    triggers = ready(store)
    assert len({trigger.id for trigger in triggers}) == len(triggers) == 200
    assert {trigger.version for trigger in triggers} == {2}


async def test_tasks_of_a_dead_node_are_resumed(store: TaskStore) -> None:
    """`resume_lost` makes the tasks of dead nodes ready, in batches, and of no other node."""
    tasks = make(5)
    submit(store, tasks)
    await claimed(store, tasks[:3], node="dead")
    await claimed(store, tasks[3:4], node="alive")
    moved = [(await store.resume_lost(["dead", "gone"], NOW + 9, 2)).moved for _ in range(3)]
    assert moved == [2, 1, 0]
    assert await store.held("dead") == []
    assert await store.held("alive") == [(tasks[3].id, 2)]
    (task,) = await claimed(store, tasks[:1], version=3)
    assert (task.attempt, task.tries) == (2, 2)


async def test_a_node_that_was_dropped_claims_nothing_and_leaves_nothing(store: TaskStore) -> None:
    """`claim` refuses a node that is not registered; `resume_lost` finds what it held."""
    tasks = make(2)
    submit(store, tasks)
    await claimed(store, tasks[:1])
    await store.drop_node("node-1")
    assert await store.claim("node-1", wanted(tasks[1:]), NOW, {}) == []
    assert (await store.resume_lost(["node-1"], NOW + 9, 10)).moved == 1
    await store.drop_node("node-1")
    assert len(await claimed(store, tasks[1:])) == 1


async def test_a_task_that_a_dead_node_claimed_twice_is_lost_once(store: TaskStore) -> None:
    """`resume_lost` and `stuck` return a task once that its node had claimed, retried and claimed
    again."""
    tasks = make(1)
    submit(store, tasks)
    (held,) = await claimed(store, tasks)
    await store.complete("node-1", [done(held, next_state=State.SUBMITTED, outcome="retried")])
    await claimed(store, tasks, version=3, stuck_at=NOW + 1)
    assert await store.held("node-1") == [(held.id, 4)]
    assert [each.task.id for each in await store.stuck(NOW + 2, 10)] == [held.id]
    assert (await store.resume_lost(["node-1"], NOW + 9, 10)).moved == 1


async def test_a_task_that_kills_its_nodes_goes_to_error(store: TaskStore) -> None:
    """`resume_lost` moves a task lost `most_lost` times to ERROR and tells its waiters."""
    tasks = make(2)
    submit(store, tasks)
    finished = []
    for version, held in ((1, tasks[:1]), (3, tasks)):
        await claimed(store, held[:1], version=version)
        await claimed(store, held[1:])
        woken = await store.resume_lost(["node-1"], NOW + 9, 10, most_lost=2)
        assert woken.notification is not None and woken.notification.ready
        finished.append(woken.notification.finished)
    assert finished == [[], [tasks[0].id]]
    assert ready_ids(store) == [tasks[1].id]
    assert [record.id for record in await errors(store)] == [tasks[0].id]


@pytest.mark.parametrize("policy", [0, SKIP_FAILED])
async def test_a_task_given_up_holds_its_ordering_key_unless_its_policy_skips(
    store: TaskStore, policy: int
) -> None:
    """A task in ERROR holds the next task of its ordering key, unless claimed with SKIP_FAILED."""
    releases: list[Callable[[str], Awaitable[object]]] = [
        lambda task_id: store.release_stuck(task_id, 2, State.ERROR, NOW + 9, "stuck"),
        lambda _: store.resume_lost(["node-1"], NOW + 9, 10, most_lost=1),
    ]
    for number, release in enumerate(releases):
        head, following = tasks = make(2, ordering_key=f"key {number}")
        submit(store, tasks)
        await claimed(store, [head], policy=policy)
        await release(head.id)
        assert head.id in {record.id for record in await errors(store)}
        won = await claimed(store, [following], node="node-2")
        assert len(won) == (policy == SKIP_FAILED)


async def test_a_stuck_task_is_found_and_released_by_its_version(store: TaskStore) -> None:
    """`stuck` returns tasks past `stuck_at` by their policy; `release_stuck` needs the version."""
    tasks = make(4)
    submit(store, tasks)
    for task, policy in zip(tasks, (RESUME_STUCK, 0, IGNORE_STUCK), strict=False):
        await claimed(store, [task], stuck_at=NOW + 10 * SECOND, policy=policy)
    assert await store.stuck(NOW + 10 * SECOND, 10) == []
    found = {each.task.id: each for each in await store.stuck(NOW + 11 * SECOND, 10)}
    assert found.keys() == {task.id for task in tasks[:2]}
    resumed, given_up = (found[task.id] for task in tasks[:2])
    assert (resumed.to, given_up.to) == (State.SUBMITTED, State.ERROR)
    one, two = resumed.task, given_up.task
    for to in (State.SUBMITTED, State.ERROR):
        assert await store.release_stuck(one.id, one.version - 1, to, NOW, "stale") is None
    later = NOW + 12 * SECOND
    notification = await store.release_stuck(one.id, one.version, State.SUBMITTED, later, "stuck")
    assert notification is not None and len(notification.ready) == 1
    assert await store.release_stuck(two.id, two.version, State.ERROR, later, AWKWARD) is not None
    assert one.id in ready_ids(store)
    (incident,) = await errors(store)
    assert (incident.id, incident.error_text) == (two.id, AWKWARD)
    assert await store.stuck(NOW + 99 * SECOND, 10) == []


# incidents ----------------------------------------------------------------------------------------


def of_key(key: str, **changes: Any) -> list[NewTask]:
    """Return one new task of a fairness key."""
    return make(1, fairness_key=key, **changes)


async def in_error(store: TaskStore, count: int) -> list[str]:
    """Move `count` new tasks to ERROR; return their ids."""
    tasks = make(count)
    submit(store, tasks)
    held = await claimed(store, tasks)
    failure = {"error_type": "ValueError", "error_text": "no"}
    finishes = [done(task, outcome="failed", next_state="ERROR", **failure) for task in held]
    await store.complete("node-1", finishes)
    await store.incidents.sweep(0, NOW, 2 * count)
    return [task.id for task in tasks]


async def test_a_task_in_error_is_an_incident_until_it_is_delivered(store: TaskStore) -> None:
    """`claim` of incidents returns a task in ERROR again after the lease, until `delivered`."""
    (task_id,) = await in_error(store, 1)
    incidents = store.incidents
    (found,) = await incidents.claim(LATE, LATE + SECOND, 10)
    assert (found.kind, found.subject, found.version) == (IncidentKind.ERROR, task_id, 3)
    assert (found.queue, found.name, found.details) == ("mail", "send", "ValueError: no")
    assert (found.deliveries, found.delivered_at) == (1, None)
    assert found.task is not None and found.task.state == State.ERROR
    assert await incidents.claim(LATE + SECOND - 1, LATE + 9 * SECOND, 10) == []
    (again,) = await incidents.claim(LATE + SECOND, LATE + 2 * SECOND, 10)
    assert (again.id, again.deliveries) == (found.id, 2)
    await incidents.delivered([found.id], LATE)
    assert await incidents.claim(LATE + 9 * SECOND, LATE + 10 * SECOND, 10) == []
    assert await incidents.counts() == {("error", "mail", "send"): 1}


async def test_claims_of_incidents_bring_each_once_and_then_those_put_back(
    store: TaskStore,
) -> None:
    """Claims return each incident once, and then those that `retry` has put back."""
    expected = set(await in_error(store, 25))
    found = [i for _ in range(4) for i in await store.incidents.claim(LATE, LATE + SECOND, 10)]
    assert len(found) == 25 and {incident.subject for incident in found} == expected
    first, second, *_ = found
    await store.incidents.delivered([second.id], LATE)
    await store.incidents.retry([(first.id, LATE), (second.id, LATE)])
    put_back = await store.incidents.claim(LATE, LATE + SECOND, 10)
    assert [incident.id for incident in put_back] == [first.id]


# the cluster --------------------------------------------------------------------------------------


async def test_the_oldest_ready_task_of_a_queue_is_known(store: TaskStore) -> None:
    """`oldest_ready` and `unfinished` count the tasks of a queue that are ready."""
    await store.register_queues({"mail": 1})
    tasks = make(2) + make(1, run_at=NOW + SECOND)
    submit(store, tasks)
    assert store.database.run(store.oldest_ready()) == {"mail": NOW}
    assert store.database.run(store.unfinished(["mail"])) == (2, 0)
    assert store.database.run(store.unfinished(["other"])) == (0, 0)
    assert store.database.run(store.has_unfinished(["other", "mail"]))
    assert not store.database.run(store.has_unfinished(["other"]))
    assert store.database.run(store.weights("mail")) == {}
    assert store.database.run(store.limits("mail")) == {}


def _fields(lane: Lane) -> tuple[str, int, int, int]:
    return lane.queue, lane.partition, lane.priority, lane.first_seq
