"""The promises of `fairlead.ports.task_store.Claims`. Fixture: `store`, an empty task store."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.model import (
    ClaimedTask,
    State,
    TriggerPath,
)
from fairlead.ports.task_store import (
    IGNORE_STUCK,
    RESUME_STUCK,
    SKIP_FAILED,
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
    ready_ids,
    registered,
    submit,
    wanted,
)

pytestmark = pytest.mark.asyncio


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
    (lane,) = completed.notification.ready
    assert (lane.queue, lane.partition, lane.priority) == ("mail", 0, 5)
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
    assert await store.held("node-1") == []
    assert await store.held("node-2") == [(tasks[2].id, 2)]


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
    await registered(store, "n")
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


async def test_a_task_that_a_dead_node_claimed_twice_is_lost_once(store: TaskStore) -> None:
    """`resume_lost` and `stuck` return a task once that its node had claimed, retried and claimed
    again."""
    tasks = make(1)
    submit(store, tasks)
    (held,) = await claimed(store, tasks)
    await store.complete("node-1", [done(held, next_state=State.SUBMITTED, outcome="retried")])
    await claimed(store, tasks, version=3, stuck_at=NOW + 1)
    assert await store.held("node-1") == [(held.id, 4)]
    assert [each.id for each in await store.stuck(NOW + 2, 10)] == [held.id]
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
    assert store.database.run(store.unfinished(["mail"])) == (1, 1)


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
        assert store.database.run(store.unfinished(["mail"]))[1] == number + 1
        won = await claimed(store, [following], node="node-2")
        assert len(won) == (policy == SKIP_FAILED)


async def test_a_stuck_task_is_found_and_released_by_its_version(store: TaskStore) -> None:
    """`stuck` returns tasks past `stuck_at` by their policy; `release_stuck` needs the version."""
    tasks = make(4)
    submit(store, tasks)
    for task, policy in zip(tasks, (RESUME_STUCK, 0, IGNORE_STUCK), strict=False):
        await claimed(store, [task], stuck_at=NOW + 10 * SECOND, policy=policy)
    assert await store.stuck(NOW + 10 * SECOND, 10) == []
    found = {each.id: each for each in await store.stuck(NOW + 11 * SECOND, 10)}
    assert found.keys() == {task.id for task in tasks[:2]}
    resumed, given_up = (found[task.id] for task in tasks[:2])
    assert (resumed.to, given_up.to) == (State.SUBMITTED, State.ERROR)
    one, two = resumed, given_up
    for to in (State.SUBMITTED, State.ERROR):
        assert await store.release_stuck(one.id, one.version - 1, to, NOW, "stale") is None
    later = NOW + 12 * SECOND
    notification = await store.release_stuck(one.id, one.version, State.SUBMITTED, later, "stuck")
    assert notification is not None and len(notification.ready) == 1
    assert await store.release_stuck(two.id, two.version, State.ERROR, later, AWKWARD) is not None
    assert one.id in ready_ids(store)
    assert store.database.run(store.unfinished(["mail"])) == (3, 1)
    assert await store.stuck(NOW + 99 * SECOND, 10) == []
