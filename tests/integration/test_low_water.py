"""Searches that begin at a low-water mark find every row, whenever its transaction began and committed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from fairlead.backends.postgres import task_store
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.low_water import Snapshot
from fairlead.backends.postgres.polling import Polling
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.model import State, Submitted
from fairlead.ports.task_store import ClaimTerms
from fairlead.testing.contract.tasks import FACTS, NOW, SECOND, done, make, wanted
from tests import tiers

STEPS = 150


@pytest.fixture
def store(migrated_postgres_url: str) -> Iterator[PostgresTaskStore]:
    """Return a store whose searches always read a snapshot, so that its marks rise at once."""
    database = PostgresDatabase(migrated_postgres_url)
    yield PostgresTaskStore(database)
    database.close()


class Waiting:
    """Random changes of waiting tasks by several transactions, and the tasks that wait by now."""

    def __init__(self, store: PostgresTaskStore, seed: int, slow: list[Any]) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.due: dict[str, int] = {}
        """Due times of the committed tasks that wait, by id."""
        self.ready: dict[str, int] = {}
        """Versions of those that have become due."""
        self._slow = slow
        self._open: dict[int, dict[str, int]] = {}
        """Due times of the tasks that an open transaction has submitted, by its connection."""

    def submit(self) -> None:
        """Submit tasks by an INSERT or a COPY, which commits now or later."""
        at = NOW + self.random.randrange(1, 100) * SECOND
        tasks = make(self.random.choice([1, 3, 60]), run_at=at)
        due = {task.id: at for task in tasks}
        number = self.random.randrange(3 * len(self._slow))
        if number < len(self._slow):
            self.store.database.join(self._slow[number], self.store.submission(tasks))
            self._open.setdefault(number, {}).update(due)
        else:
            self.store.database.run(self.store.submission(tasks))
            self.due |= due

    def end(self) -> None:
        """Commit or roll back one of the open transactions."""
        if self._open:
            number = self.random.choice([*self._open])
            due = self._open.pop(number)
            if self.random.random() < 0.7:
                self._slow[number].commit()
                self.due |= due
            else:
                self._slow[number].rollback()

    def wake(self) -> None:
        """Wake the tasks that are due by now, at most a few."""
        now, limit = NOW + self.random.randrange(1, 110) * SECOND, self.random.choice([1, 5, 200])
        expected = sorted(at for at in self.due.values() if at <= now)[:limit]
        assert asyncio.run(self.store.wake_due(now, limit)).moved == len(expected)
        with self.store.database.connection() as connection:
            rows = connection.execute("SELECT id::text, version, state FROM fairlead_tasks")
            found = {id: (version, state) for id, version, state in rows}
        woken = [id for id in self.due if found[id][1] == State.SUBMITTED]
        assert sorted(self.due.pop(id) for id in woken) == expected
        self.ready |= {id: found[id][0] for id in woken}

    def run(self) -> None:
        """Run a task that was due; it ends, or waits for another try."""
        if self.ready:
            id, version = self.random.choice([*self.ready.items()])
            del self.ready[id]
            triggers = wanted([Submitted(id, True)], version)
            (held,) = self.store.database.run(self.store._claim("node", triggers, NOW, {}))
            at = NOW + self.random.randrange(1, 100) * SECOND
            is_again = self.random.random() < 0.5
            again = {"outcome": "failed", "next_state": State.WAITING, "run_at": at}
            finish = done(held, **(again if is_again else {}))
            self.store.database.run(self.store.completion("node", [finish]))
            if is_again:
                self.due[id] = at

    def move(self) -> None:
        """Move a waiting task to another time."""
        if self.due:
            id = self.random.choice([*self.due])
            at = NOW + self.random.randrange(1, 100) * SECOND
            record = self.store.database.run(self.store.task(id))
            assert record is not None
            steps = self.store.move([(id, record.version)], State.WAITING, at, NOW, False)
            assert self.store.database.run(steps) is not None
            self.due[id] = at

    def search(self) -> None:
        """Search for the earliest task that waits, which moves the mark."""
        assert asyncio.run(self.store.next_due()) == min(self.due.values(), default=None)

    def snapshot(self) -> None:
        """Read a snapshot, as a heartbeat does."""
        self.store.database.run(self.store._snapshots.read())


@pytest.mark.parametrize("seed", tiers.seeds(2))
def test_due_tasks_are_found_in_their_order_whenever_they_come_and_commit(
    store: PostgresTaskStore, seed: int
) -> None:
    store.database.run(store._register_node("node", "[]", "[]", NOW, FACTS))
    with ExitStack() as connections:
        slow = [connections.enter_context(psycopg.connect(store.database.url)) for _ in range(2)]
        waiting = Waiting(store, seed, slow)
        changes: list[Callable[[], None]] = [
            waiting.submit,
            waiting.end,
            waiting.wake,
            waiting.run,
            waiting.move,
            waiting.search,
            waiting.snapshot,
        ]
        marks = set()
        polling = Polling(store.database, store.marks)
        for _ in range(STEPS):
            waiting.random.choice(changes)()
            marks.add(store.marks.due)
        assert len(marks) > STEPS // 20
        asyncio.run(polling.poll())
        assert polling._due == min(waiting.due.values(), default=None)
        waiting.search()


def test_a_mark_of_another_server_leaves_out_no_due_task(store: PostgresTaskStore) -> None:
    store.database.run(store.submission(make(1, run_at=NOW + SECOND)))
    for position in (2**40, 2**41):
        store.marks.add(Snapshot(position, 7, frozenset()))
    store.marks.raise_due(None, store.marks.settled)
    assert asyncio.run(store.wake_due(NOW + SECOND, 10)).moved == 1
    store.database.run(store.submission(make(1, run_at=NOW + SECOND)))
    assert asyncio.run(store.next_due()) == NOW + SECOND


def test_stuck_tasks_of_a_long_lane_are_found_page_by_page(
    store: PostgresTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_store, "_STUCK_ROWS", 10)
    tasks, others = make(35), make(5, priority=7)
    store.database.run(store._register_node("node", "[]", "[]", NOW, FACTS))
    store.database.run(store.submission([*tasks, *others]))
    stuck = [tasks[3], tasks[4], tasks[20], tasks[34], others[2]]
    for number, task in enumerate(stuck):
        terms = {task.name: ClaimTerms(NOW + SECOND - number)}
        assert len(store.database.run(store._claim("node", wanted([task]), NOW, terms))) == 1

    def found(limit: int = 10) -> list[str]:
        return [each.id for each in asyncio.run(store.stuck(NOW + 2 * SECOND, limit))]

    first, second, third, fourth, other = [task.id for task in stuck]
    assert found() == [other, second, first]  # the one that is stuck for longest first
    # Five rows of each lane, and what the short lane leaves.
    pages = [found() for _ in range(5)]
    assert pages == [[], [other], [third], [other, fourth], []]
    assert found(2) == [other, second]
