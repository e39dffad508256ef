"""What every coordinator promises (fairlead.ports.coordinator.Coordinator)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead.connect import task_store
from fairlead.coordination.database import DatabaseCoordinator
from fairlead.ports.coordinator import Lease
from fairlead.ports.statements import Statement, Steps
from fairlead.ports.wake import Wake
from fairlead.stores.migrate import migrate
from fairlead.stores.sql_store import SqlTaskStore

TTL = 60.0
NAMES = [f"partition/payouts/{n}" for n in range(8)]


@pytest.fixture
def store(store_url: str) -> Iterator[SqlTaskStore]:
    store = task_store(store_url)
    migrate(store.database)  # type: ignore[arg-type]
    yield store
    store.database.close()


def leave_alone(store: SqlTaskStore, seconds: float) -> None:
    """What `seconds` without a renewal do to all leases, by whatever clock the coordinator goes."""

    def steps() -> Steps[None]:
        yield Statement(f"UPDATE fairlead_leases SET expires_at = expires_at - {round(seconds * 1_000_000)}")

    store.database.run(steps())


def run(store: SqlTaskStore, test: Callable[[DatabaseCoordinator], Awaitable[None]]) -> None:
    async def with_coordinator() -> None:
        try:
            await test(DatabaseCoordinator(store))
        finally:
            close = getattr(store.database, "close_async", None)
            if close is not None:
                await close()

    asyncio.run(with_coordinator())


def test_a_free_lease_is_won_and_a_held_one_is_not(store: SqlTaskStore) -> None:
    async def test(coordinator: DatabaseCoordinator) -> None:
        assert await coordinator.acquire(["b", "a"], "one", TTL) == {"a": 1, "b": 1}
        assert await coordinator.acquire(["a", "b", "c"], "two", TTL) == {"c": 1}
        assert await coordinator.acquire(["a"], "one", TTL) == {}  # nor by its own holder: that is what renew is for
        assert await coordinator.acquire([], "one", TTL) == {}
        assert [(lease.name, lease.owner) for lease in await coordinator.leases()] == [
            ("a", "one"),
            ("b", "one"),
            ("c", "two"),
        ]

    run(store, test)


def test_an_owner_without_a_name_is_refused(store: SqlTaskStore) -> None:
    async def test(coordinator: DatabaseCoordinator) -> None:
        with pytest.raises(ValueError, match="owner"):
            await coordinator.acquire(["a"], "", TTL)

    run(store, test)


def test_an_expired_lease_is_held_by_nobody_and_can_be_taken(store: SqlTaskStore) -> None:
    async def test(coordinator: DatabaseCoordinator) -> None:
        await coordinator.acquire(["a"], "one", TTL)
        leave_alone(store, TTL - 30)
        assert await coordinator.acquire(["a"], "two", TTL) == {}
        leave_alone(store, 31)
        assert await coordinator.leases() == []
        assert await coordinator.acquire(["a"], "two", TTL) == {"a": 2}
        assert [lease.owner for lease in await coordinator.leases()] == ["two"]

    run(store, test)


def test_a_renewed_lease_lives_on_by_its_new_time(store: SqlTaskStore) -> None:
    async def test(coordinator: DatabaseCoordinator) -> None:
        await coordinator.acquire(["a", "b"], "one", TTL)
        await coordinator.acquire(["c"], "two", TTL)
        leave_alone(store, TTL - 1)
        assert await coordinator.renew("one", TTL) == {"a": 1, "b": 1}
        leave_alone(store, TTL - 1)
        assert [lease.name for lease in await coordinator.leases()] == ["a", "b"]

    run(store, test)


def test_renewing_does_not_revive_an_expired_lease(store: SqlTaskStore) -> None:
    async def test(coordinator: DatabaseCoordinator) -> None:
        await coordinator.acquire(["a"], "one", TTL)
        leave_alone(store, TTL + 1)
        await coordinator.acquire(["b"], "one", TTL)
        assert await coordinator.renew("one", TTL) == {"b": 1}
        assert [lease.name for lease in await coordinator.leases()] == ["b"]

    run(store, test)


def test_renewing_after_another_took_the_lease_takes_nothing_back(store: SqlTaskStore) -> None:
    async def test(coordinator: DatabaseCoordinator) -> None:
        await coordinator.acquire(["a"], "one", TTL)
        leave_alone(store, TTL + 1)
        await coordinator.acquire(["a"], "two", TTL)
        assert await coordinator.renew("one", TTL) == {}
        assert await coordinator.release(["a"], "one") is not None
        assert [lease.owner for lease in await coordinator.leases()] == ["two"]

    run(store, test)


def test_a_released_lease_is_free_at_once_and_the_wake_says_so(store: SqlTaskStore) -> None:
    async def test(coordinator: DatabaseCoordinator) -> None:
        await coordinator.acquire(["a", "b"], "one", TTL)
        assert await coordinator.release(["a", "unknown"], "one") == Wake(control=True)
        assert await coordinator.release([], "one") is None
        assert await coordinator.renew("one", TTL) == {"b": 1}
        assert await coordinator.acquire(["a"], "two", TTL) == {"a": 2}

    run(store, test)


def test_range_ids_grow_with_each_change_of_hands_and_never_repeat(store: SqlTaskStore) -> None:
    async def test(coordinator: DatabaseCoordinator) -> None:
        seen = []
        for n in range(10):
            seen += (await coordinator.acquire(["a"], f"node {n % 3}", TTL)).values()
            if n % 2:
                await coordinator.release(["a"], f"node {n % 3}")
            else:
                leave_alone(store, TTL + 1)
        assert seen == sorted(set(seen))
        assert len(seen) == 10

    run(store, test)


def test_a_lease_shows_its_owner_its_range_id_and_when_it_expires(store: SqlTaskStore) -> None:
    async def test(coordinator: DatabaseCoordinator) -> None:
        await coordinator.acquire(["a"], "one", TTL)
        (before,) = await coordinator.leases()
        assert before == Lease("a", "one", 1, before.expires_at)
        await coordinator.renew("one", TTL + 10)
        (after,) = await coordinator.leases()
        assert 10_000_000 <= after.expires_at - before.expires_at < 20_000_000

    run(store, test)


def test_names_and_owners_are_data_whatever_they_contain(store: SqlTaskStore) -> None:
    name, owner = "partition/'; DROP TABLE fairlead_leases; --\"\\/0", "o'brien \u20ac"

    async def test(coordinator: DatabaseCoordinator) -> None:
        assert await coordinator.acquire([name], owner, TTL) == {name: 1}
        await coordinator.release([name], owner)
        assert await coordinator.acquire([name], "two", TTL) == {name: 2}

    run(store, test)


def test_of_many_threads_that_want_the_same_leases_exactly_one_gets_each(store: SqlTaskStore, store_url: str) -> None:
    start = threading.Barrier(6)

    def take(n: int) -> dict[str, int]:
        mine = task_store(store_url)
        won: dict[str, int] = {}

        async def test(coordinator: DatabaseCoordinator) -> None:
            start.wait()
            # Each asks in another order: whoever took them as asked would dead-lock with the rest.
            for _ in range(3):
                won.update(await coordinator.acquire(NAMES[n:] + NAMES[:n], f"node {n}", TTL))
                won.update(await coordinator.renew(f"node {n}", TTL))

        run(mine, test)
        mine.database.close()
        return won

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(take, range(6)))
    assert sorted(name for won in results for name in won) == NAMES
    assert {range_id for won in results for range_id in won.values()} == {1}


CONTEND = """
import asyncio, json, sys
from fairlead.connect import task_store
from fairlead.coordination.database import DatabaseCoordinator

async def main(url, owner):
    coordinator = DatabaseCoordinator(task_store(url))
    won = []
    for _ in range(40):
        ids = await coordinator.acquire(["b", "a"], owner, 60.0)
        won += [(name, range_id) for name, range_id in ids.items()]
        await coordinator.renew(owner, 60.0)
        await coordinator.release(sorted(ids), owner)
    print(json.dumps(won))

asyncio.run(main(*sys.argv[1:]))
"""


def test_two_processes_that_pass_leases_to_and_fro_never_get_the_same_range_id(
    store: SqlTaskStore, store_url: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CONTEND, store_url, owner], stdout=subprocess.PIPE, text=True, env=environment
        )
        for owner in ("one", "two")
    ]
    won = [tuple(pair) for process in processes for pair in json.loads(process.communicate(timeout=60)[0])]
    assert [process.returncode for process in processes] == [0, 0]
    assert len(won) == len(set(won))
    for name in "ab":
        ids = sorted(range_id for lease, range_id in won if lease == name)
        assert ids == list(range(1, len(ids) + 1))  # each change of hands raised it by one


def test_on_sqlite_leases_go_by_the_given_clock(sqlite_url: str) -> None:
    class Clock:
        instant = 1_000_000_000

        def now(self) -> int:
            return self.instant

        def monotonic(self) -> float:
            raise AssertionError("leases go by wall time: they are shared between processes")

        async def sleep(self, seconds: float) -> None:
            raise AssertionError

    store, clock = task_store(sqlite_url), Clock()
    migrate(store.database)  # type: ignore[arg-type]

    async def test() -> None:
        coordinator = DatabaseCoordinator(store, clock)
        await coordinator.acquire(["a"], "one", 10.0)
        assert [lease.expires_at for lease in await coordinator.leases()] == [1_010_000_000]
        clock.instant += 10_000_000
        assert len(await coordinator.leases()) == 1
        clock.instant += 1
        assert await coordinator.leases() == []

    asyncio.run(test())
    store.database.close()


def test_on_postgresql_leases_go_by_the_server_s_clock_not_the_node_s(postgres_url: str) -> None:
    class WrongClock:
        def now(self) -> int:
            raise AssertionError("the node's clock was asked")

        def monotonic(self) -> float:
            raise AssertionError

        async def sleep(self, seconds: float) -> None:
            raise AssertionError

    store = task_store(postgres_url)
    migrate(store.database)  # type: ignore[arg-type]

    async def test() -> None:
        coordinator = DatabaseCoordinator(store, WrongClock())
        assert await coordinator.acquire(["a"], "one", TTL) == {"a": 1}
        assert await coordinator.renew("one", TTL) == {"a": 1}
        assert len(await coordinator.leases()) == 1
        await store.database.close_async()

    asyncio.run(test())
    store.database.close()
