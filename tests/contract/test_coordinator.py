"""Promises of every `fairlead.ports.coordinator.Coordinator`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random

import pytest
from kazoo.client import KazooClient, KazooState

from fairlead.backends.sql.coordinator import MOST_TTL, DatabaseCoordinator
from fairlead.backends.sql.migrate import migrate
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.backends.zookeeper.coordinator import ZooKeeperCoordinator
from fairlead.backends.zookeeper.session import Session
from fairlead.connect import task_store
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Statement, Steps
from fairlead.testing.clock import TravelClock
from tests.databases import beside_an_open_transaction
from tests.proxies import Proxy
from tests.tiers import examples

TTL = 30.0
NAMES = [f"partition/payouts/{n}" for n in range(8)]


class Cluster(ABC):
    """A server on which coordinators of one kind share leases, and on which a test can let time pass."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def coordinator(self) -> Coordinator:
        """Return another coordinator, as another process would have it."""

    @abstractmethod
    def leave_alone(self, *owners: str) -> None:
        """Expire the leases of these owners, as TTL seconds without a renewal do."""

    @abstractmethod
    def close(self) -> None:
        """Close all coordinators."""


class Databases(Cluster):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.store = task_store(url)
        migrate(self.store.database)
        self._others: list[SqlTaskStore] = []

    def coordinator(self) -> DatabaseCoordinator:
        self._others.append(task_store(self.url))
        return DatabaseCoordinator(self._others[-1])

    def leave_alone(self, *owners: str) -> None:
        for owner in owners:
            self.pass_time(TTL + 1, f"owner = '{owner}'")

    def pass_time(self, seconds: float, holders: str = "true") -> None:
        """Let `seconds` pass for the leases of these holders, whatever clock the coordinator uses."""

        def steps() -> Steps[None]:
            yield Statement(
                f"UPDATE fairlead_holders SET expires_at = expires_at - {round(seconds * 1_000_000)} WHERE {holders}"
            )

        self.store.database.run(steps())

    def close(self) -> None:
        for store in (*self._others, self.store):
            store.database.close()


class ZooKeeper(Cluster):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.made: list[ZooKeeperCoordinator] = []

    def coordinator(self) -> ZooKeeperCoordinator:
        self.made.append(ZooKeeperCoordinator(self.url))
        return self.made[-1]

    def leave_alone(self, *owners: str) -> None:
        for coordinator in self.made:
            for owner in owners:
                if owner in coordinator._sessions:
                    end_session(coordinator._sessions[owner])

    def close(self) -> None:
        for coordinator in self.made:
            coordinator.close()


def end_session(session: Session) -> None:
    """End a session as ZooKeeper does, and wait until its owner has noticed.

    ZooKeeper lets every client with the id and password of a session end it.
    """
    lost = threading.Event()

    def listen(state: str) -> bool:
        if state == KazooState.LOST:
            lost.set()
        return state == KazooState.LOST

    session.client.add_listener(listen)
    twin = KazooClient(
        session.client.hosts[0][0] + f":{session.client.hosts[0][1]}",
        client_id=session.client.client_id,
    )
    twin.start()
    twin.stop()
    twin.close()
    assert lost.wait(30)


@pytest.fixture(params=["sqlite", "postgres", "zookeeper"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    url = request.getfixturevalue(f"{request.param}_url")
    cluster = ZooKeeper(url) if request.param == "zookeeper" else Databases(url)
    yield cluster
    cluster.close()


@pytest.fixture
async def coordinator(cluster: Cluster) -> AsyncIterator[Coordinator]:
    coordinator = cluster.coordinator()
    yield coordinator
    await close(coordinator)


on_databases = pytest.mark.parametrize("cluster", ["sqlite", "postgres"], indirect=True)


def run(cluster: Cluster, test: Callable[[Coordinator], Awaitable[None]]) -> None:
    async def with_coordinator() -> None:
        coordinator = cluster.coordinator()
        try:
            await test(coordinator)
        finally:
            await close(coordinator)

    asyncio.run(with_coordinator())


async def close(coordinator: Coordinator) -> None:
    """Close the coordinator's connections of the running event loop."""
    if isinstance(coordinator, DatabaseCoordinator) and hasattr(
        coordinator._database, "close_async"
    ):
        await coordinator._database.close_async()


async def test_a_free_lease_is_won_and_a_held_one_is_not(coordinator: Coordinator) -> None:
    assert await coordinator.acquire(["b", "a"], "one", TTL) == {"a": 1, "b": 1}
    assert await coordinator.acquire(["a", "b", "c"], "two", TTL) == {"c": 1}
    assert (
        await coordinator.acquire(["a"], "one", TTL) == {}
    )  # not even its owner, who renews instead
    assert await coordinator.acquire([], "one", TTL) == {}
    assert await coordinator.owners() == {"a": "one", "b": "one", "c": "two"}


async def test_an_owner_without_a_name_is_refused(coordinator: Coordinator) -> None:
    with pytest.raises(ValueError, match="owner"):
        await coordinator.acquire(["a"], "", TTL)


async def test_an_expired_lease_has_no_owner_and_can_be_taken(
    cluster: Cluster, coordinator: Coordinator
) -> None:
    await coordinator.acquire(["a"], "one", TTL)
    assert await coordinator.acquire(["a"], "two", TTL) == {}
    cluster.leave_alone("one")
    assert await coordinator.owners() == {}
    assert await coordinator.acquire(["a"], "two", TTL) == {"a": 2}
    assert await coordinator.owners() == {"a": "two"}


async def test_a_lease_that_is_not_renewed_expires(
    cluster: Cluster, coordinator: Coordinator
) -> None:
    short = 1.5

    other = cluster.coordinator()
    assert await coordinator.acquire(["a"], "one", short) == {"a": 1}
    assert await other.acquire(["a"], "two", short) == {}
    async with asyncio.timeout(30):
        while not (won := await other.acquire(["a"], "two", TTL)):
            await asyncio.sleep(0.1)
    assert won == {"a": 2}
    assert await coordinator.renew("one", short) == {}
    await close(other)


async def test_renewing_does_not_revive_an_expired_lease(
    cluster: Cluster, coordinator: Coordinator
) -> None:
    await coordinator.acquire(["a"], "one", TTL)
    cluster.leave_alone("one")
    await coordinator.acquire(["b"], "one", TTL)
    assert await coordinator.renew("one", TTL) == {"b": 1}
    assert await coordinator.owners() == {"b": "one"}


async def test_renewing_a_lease_that_another_owner_took_does_not_take_it_back(
    cluster: Cluster, coordinator: Coordinator
) -> None:
    await coordinator.acquire(["a"], "one", TTL)
    cluster.leave_alone("one")
    await coordinator.acquire(["a"], "two", TTL)
    assert await coordinator.renew("one", TTL) == {}
    assert await coordinator.release(["a"], "one") is not None
    assert await coordinator.owners() == {"a": "two"}


async def test_a_released_lease_is_free_at_once_and_others_are_notified(
    coordinator: Coordinator,
) -> None:
    await coordinator.acquire(["a", "b"], "one", TTL)
    assert await coordinator.release(["a", "unknown"], "one") == Notification(control=True)
    assert await coordinator.release([], "one") is None
    assert await coordinator.renew("one", TTL) == {"b": 1}
    assert await coordinator.acquire(["a"], "two", TTL) == {"a": 2}


async def test_range_ids_ascend_with_each_new_owner_and_never_repeat(
    cluster: Cluster, coordinator: Coordinator
) -> None:
    seen = []
    for n in range(10):
        seen += (await coordinator.acquire(["a"], f"node {n % 3}", TTL)).values()
        if n % 2:
            await coordinator.release(["a"], f"node {n % 3}")
        else:
            cluster.leave_alone(f"node {n % 3}")
    assert seen == sorted(set(seen))
    assert len(seen) == 10


async def test_what_a_coordinator_remembers_equals_what_another_one_reads(
    cluster: Cluster, coordinator: Coordinator
) -> None:
    """Acquisitions, releases and expiries in random order leave no coordinator with an old owner
    or range id."""
    random = Random(7)

    there = cluster.coordinator()
    coordinators = {"one": coordinator, "two": coordinator, "three": there}
    for _ in range(examples(200)):
        owner = random.choice(list(coordinators))
        names = random.sample(["a", "b", "c", "d"], random.randint(1, 3))
        match random.randrange(4):
            case 0 | 1:
                await coordinators[owner].acquire(names, owner, TTL)
            case 2:
                await coordinators[owner].release(names, owner)
            case _:
                await asyncio.to_thread(cluster.leave_alone, owner)
        fresh = cluster.coordinator()
        owners = await fresh.owners()
        assert await coordinator.owners() == await there.owners() == owners
        for each, holder in coordinators.items():
            held = await holder.renew(each, TTL)
            assert held.keys() == {name for name in owners if owners[name] == each}
        await close(fresh)
    await close(there)


@on_databases
async def test_after_an_outage_a_coordinator_reads_again_what_the_server_may_have_lost(
    cluster: Databases, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_the_last_change() -> Steps[None]:
        yield Statement("UPDATE fairlead_leases SET owner = 'two', changed = 1")

    async def unavailable(steps: Steps[None]) -> None:
        raise StoreUnavailable("the server restarts")

    await coordinator.acquire(["b"], "two", TTL)
    await coordinator.acquire(["a"], "one", TTL)
    assert await coordinator.owners() == {"a": "one", "b": "two"}
    cluster.store.database.run(lose_the_last_change())
    with monkeypatch.context() as patch:
        patch.setattr(coordinator._database, "read", unavailable)
        with pytest.raises(StoreUnavailable):
            await coordinator.owners()
    assert await coordinator.owners() == {"a": "two", "b": "two"}


@on_databases
async def test_a_clock_that_is_set_back_extends_no_lease_by_more_than_minutes(
    cluster: Databases,
    coordinator: Coordinator,
) -> None:
    await coordinator.acquire(["a"], "one", TTL)
    cluster.pass_time(-100)
    assert await coordinator.owners() == {"a": "one"}
    assert await coordinator.acquire(["a"], "two", TTL) == {}
    cluster.pass_time(-3600)
    assert await coordinator.owners() == {}
    assert await coordinator.acquire(["a"], "two", TTL) == {"a": 2}
    assert await coordinator.renew("one", TTL) == {}
    with pytest.raises(ValueError, match="300"):
        await coordinator.acquire(["b"], "two", MOST_TTL + 1)


@on_databases
async def test_a_renewal_shortens_a_lease_that_is_too_long_because_the_clock_was_set_back(
    cluster: Databases,
    coordinator: Coordinator,
) -> None:
    await coordinator.acquire(["a"], "one", TTL)
    cluster.pass_time(-3600)
    assert await coordinator.renew("one", TTL) == {"a": 1}
    assert await coordinator.owners() == {"a": "one"}
    cluster.pass_time(TTL + 1)
    assert await coordinator.owners() == {}


@pytest.mark.parametrize("first", ["renewal", "acquisition"])
def test_of_a_renewal_and_an_acquisition_at_the_same_time_one_gets_the_lease(
    postgres_url: str, first: str
) -> None:
    """The renewal read the clock before the lease expired, and the acquisition after that."""
    cluster = Databases(postgres_url)
    store, coordinator = cluster.store, cluster.coordinator()
    ends_at = store.database.run(coordinator.lease_clock()) + round(TTL * 1_000_000)

    def renewal() -> Steps[bool]:
        return bool((yield store.statement("renew_leases", "one", ends_at, 0)))

    def acquisition() -> Steps[bool]:
        return bool((yield from coordinator._acquire(["a"], "two", TTL)))

    store.database.run(coordinator._acquire(["a"], "one", TTL))
    cluster.leave_alone("one")
    steps = [renewal(), acquisition()] if first == "renewal" else [acquisition(), renewal()]
    assert beside_an_open_transaction(store.database, *steps) == (True, False)
    cluster.close()


async def test_names_and_owners_may_contain_any_characters(coordinator: Coordinator) -> None:
    name, owner = "partition/'; DROP TABLE fairlead_leases; --\"\\/0", "o'brien \u20ac"

    assert await coordinator.acquire([name], owner, TTL) == {name: 1}
    await coordinator.release([name], owner)
    assert await coordinator.acquire([name], "two", TTL) == {name: 2}


def test_each_lease_goes_to_exactly_one_of_many_threads(cluster: Cluster) -> None:
    start = threading.Barrier(6)

    def take(n: int) -> dict[str, int]:
        won: dict[str, int] = {}

        async def test(coordinator: Coordinator) -> None:
            start.wait()
            # Each thread names the leases in another order, which deadlocks unless the adapter sorts them.
            for _ in range(3):
                won.update(await coordinator.acquire(NAMES[n:] + NAMES[:n], f"node {n}", TTL))
                won.update(await coordinator.renew(f"node {n}", TTL))

        run(cluster, test)
        return won

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(take, range(6)))
    assert sorted(name for won in results for name in won) == NAMES
    assert {range_id for won in results for range_id in won.values()} == {1}


async def test_a_ledger_is_written_only_on_top_of_its_last_version(
    cluster: Cluster, coordinator: Coordinator
) -> None:
    other = cluster.coordinator()
    assert await coordinator.read_ledger("payouts", "") == (b"", 0)
    assert await coordinator.write_ledger("payouts", "", b"{}", 0)
    assert not await other.write_ledger("payouts", "", b"[]", 0)
    assert await other.read_ledger("payouts", "") == (b"{}", 1)
    assert await other.write_ledger("payouts", "", b"[2]", 1)
    assert not await coordinator.write_ledger("payouts", "", b"[3]", 1)
    assert await coordinator.read_ledger("payouts", "") == (b"[2]", 2)
    assert await coordinator.read_ledger("another/limit", "") == (b"", 0)
    assert not await coordinator.write_ledger("another/limit", "", b"[]", 7)
    await close(other)


async def test_each_shard_of_a_ledger_has_its_own_content_and_version(
    coordinator: Coordinator,
) -> None:
    assert await coordinator.write_ledger("payouts", "", b"[]", 0)
    assert await coordinator.read_ledger("payouts", "0") == (b"", 0)
    assert await coordinator.write_ledger("payouts", "0", b"[0]", 0)
    assert await coordinator.write_ledger("payouts", "07", b"[7]", 0)
    assert await coordinator.write_ledger("payouts", "07", b"[8]", 1)
    assert await coordinator.read_ledger("payouts", "") == (b"[]", 1)
    assert await coordinator.read_ledger("payouts", "0") == (b"[0]", 1)
    assert await coordinator.read_ledger("payouts", "07") == (b"[8]", 2)
    assert await coordinator.read_ledger("payouts/0", "7") == (b"", 0)


async def test_concurrent_writers_of_a_ledger_overwrite_no_change(
    cluster: Cluster, coordinator: Coordinator
) -> None:
    def add(n: int) -> None:
        async def test(coordinator: Coordinator) -> None:
            for _ in range(10):
                while True:
                    ledger, version = await coordinator.read_ledger("payouts", "")
                    if await coordinator.write_ledger(
                        "payouts",
                        "",
                        json.dumps([*json.loads(ledger or b"[]"), n]).encode(),
                        version,
                    ):
                        break

        run(cluster, test)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))

    ledger, version = await coordinator.read_ledger("payouts", "")
    assert (sorted(json.loads(ledger)), version) == (
        [n for n in range(4) for _ in range(10)],
        40,
    )


@on_databases
def test_leases_expire_by_the_clock_of_the_node_on_sqlite_and_of_the_server_on_postgresql(
    cluster: Databases,
) -> None:
    async def test() -> None:
        clock = TravelClock()
        coordinator = DatabaseCoordinator(cluster.store, clock)
        assert await coordinator.acquire(["a"], "one", TTL) == {"a": 1}
        clock.travel(timedelta(seconds=TTL + 1))
        is_sqlite = cluster.url.startswith("sqlite")
        assert await coordinator.owners() == ({} if is_sqlite else {"a": "one"})
        await close(coordinator)

    asyncio.run(test())


def test_on_zookeeper_a_session_outlives_a_connection_that_gets_no_response(
    zookeeper_url: str,
) -> None:
    ttl = 20.0

    with contextlib.closing(Proxy(zookeeper_url)) as proxy:
        cluster = ZooKeeper(proxy.url)

        async def test(coordinator: Coordinator) -> None:
            assert await coordinator.acquire(["a"], "one", ttl) == {"a": 1}
            proxy.swallows_next = True
            proxy.drop_connections()
            async with asyncio.timeout(ttl / 2):
                while True:
                    with contextlib.suppress(StoreUnavailable):
                        held = await coordinator.renew("one", ttl)
                        break
            assert held == {"a": 1}
            assert proxy.has_swallowed.is_set()

        run(cluster, test)
        cluster.close()


def test_on_zookeeper_an_error_about_a_missing_server_has_its_address_and_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.backends.zookeeper.session._RESPONSE_SECONDS", 0.5)

    async def test(coordinator: Coordinator) -> None:
        with pytest.raises(
            StoreUnavailable, match="ZooKeeper at 127.0.0.1:1 does not respond"
        ) as caught:
            await coordinator.acquire(["a"], "one", TTL)
        assert "secret" not in str(caught.value)

    run(ZooKeeper("zookeeper://me:secret@127.0.0.1:1"), test)


def test_on_zookeeper_leases_cannot_be_read_with_another_password(zookeeper_url: str) -> None:
    host, _, folder = zookeeper_url.removeprefix("zookeeper://").partition("/")
    ours, theirs = (
        ZooKeeper(f"zookeeper://me:right@{host}/{folder}"),
        ZooKeeper(f"zookeeper://me:wrong@{host}/{folder}"),
    )

    async def take(coordinator: Coordinator) -> None:
        assert await coordinator.acquire(["a"], "one", TTL) == {"a": 1}

    async def be_refused(coordinator: Coordinator) -> None:
        with pytest.raises(ConfigurationError, match="check user and password") as caught:
            await coordinator.owners()
        assert "wrong" not in str(caught.value)

    run(ours, take)
    run(theirs, be_refused)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("url", ["zookeeper://", "zookeeper:///folder", "zookeeper://me@host"])
def test_on_zookeeper_a_url_without_a_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"use zookeeper://\[user:password@\]host"):
        ZooKeeperCoordinator(url)


def test_on_zookeeper_an_unknown_parameter_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="unknown parameter a; use sslcert, sslkey, sslm"):
        ZooKeeperCoordinator("zookeeper://host/?a=1")
