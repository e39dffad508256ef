"""ZooKeeper's leases are read again only after a change, and are never read wrongly for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import Callback
from kazoo.security import CREATOR_ALL_ACL

from fairlead.backends.zookeeper.coordinator import ZooKeeperCoordinator
from fairlead.backends.zookeeper.session import Session
from fairlead.errors import StoreUnavailable
from tests.proxies import Proxy

TTL = 30.0


@pytest.fixture
def coordinators(zookeeper_url: str) -> Iterator[Callable[[], ZooKeeperCoordinator]]:
    """Yield a function that returns another coordinator, as another process would have it."""
    made: list[ZooKeeperCoordinator] = []

    def coordinator(url: str = zookeeper_url) -> ZooKeeperCoordinator:
        made.append(ZooKeeperCoordinator(url))
        return made[-1]

    yield coordinator
    for each in made:
        each.close()


@pytest.fixture
def held(zookeeper_url: str) -> str:
    """Return the path of the folder of leases."""
    return f"/{zookeeper_url.rpartition('/')[2]}/leases/held"


@pytest.fixture
def client(zookeeper_url: str) -> Iterator[KazooClient]:
    """Yield a client of another program."""
    client = KazooClient(zookeeper_url.removeprefix("zookeeper://").partition("/")[0])
    client.start()
    yield client
    client.stop()
    client.close()


async def test_a_refresh_reads_only_the_leases_that_changed_and_not_the_other_thousand(
    coordinators: Callable[[], ZooKeeperCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Callable[..., Any]] = []
    send = Session.send

    def counting(session: Session, sent: Sequence[Callable[..., Any]], *ignored: Any) -> list[Any]:
        requests.extend(sent)
        return send(session, sent, *ignored)

    async def refresh() -> int:
        """Do what a node does every few seconds; return the number of requests."""
        requests.clear()
        assert await here.renew("one", TTL) == {"mine": 1}
        owners = await here.owners()
        assert owners == {"mine": "one", **dict.fromkeys(theirs, "two")}
        return len(requests)

    here, there = coordinators(), coordinators()
    theirs = [f"partition/payouts/{n}" for n in range(1000)]
    await there.acquire(theirs, "two", TTL)
    await here.acquire(["mine"], "one", TTL)
    monkeypatch.setattr(Session, "send", counting)
    first = await refresh()
    assert [await refresh() for _ in range(3)] == [2, 2, 2]
    await there.release(theirs[:5], "two")
    del theirs[:5]
    released = await refresh()
    await there.acquire(["a", "b", "c"], "two", TTL)
    theirs += ["a", "b", "c"]
    acquired = await refresh()
    assert first < 1010 and released <= 3 and acquired <= 6


async def test_a_change_counts_from_the_next_response_on_even_if_its_event_is_handled_later(
    coordinators: Callable[[], ZooKeeperCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = coordinators(), coordinators()
    await here.acquire(["a"], "one", TTL)
    assert await here.owners() == {"a": "one"}
    session, may_go_on = here._sessions["one"], threading.Event()
    handle_events = session.handle_events

    def handle_held_events() -> None:
        may_go_on.set()
        handle_events()

    # Events wait in the thread that handles them until the coordinator asks for them.
    session.client.handler.dispatch_callback(Callback("watch", may_go_on.wait, ()))
    monkeypatch.setattr(session, "handle_events", handle_held_events)
    await there.acquire(["b"], "two", TTL)
    try:
        assert await here.owners() == {"a": "one", "b": "two"}
    finally:
        may_go_on.set()


async def test_changes_during_a_lost_connection_are_seen_after_it(
    coordinators: Callable[..., ZooKeeperCoordinator], zookeeper_url: str
) -> None:
    with contextlib.closing(Proxy(zookeeper_url)) as proxy:
        here = coordinators(proxy.url)
        there = coordinators()
        await here.acquire(["a"], "one", TTL)
        await there.acquire(["b", "c"], "two", TTL)
        assert await here.owners() == {"a": "one", "b": "two", "c": "two"}
        proxy.drop_connections()
        await there.release(["b", "c"], "two")
        await there.acquire(["c", "d"], "three", TTL)
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(StoreUnavailable):
                    assert await here.owners() == {"a": "one", "c": "three", "d": "three"}
                    break
        assert await here.renew("one", TTL) == {"a": 1}
        here.close()


async def test_a_coordinator_that_has_not_seen_a_change_neither_acquires_nor_releases_wrongly(
    coordinators: Callable[[], ZooKeeperCoordinator],
    client: KazooClient,
    held: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = coordinators(), coordinators()
    await here.acquire(["a", "b"], "one", TTL)
    await here.renew("one", TTL)
    leases = here._sessions["one"].leases
    seen = leases.read()
    monkeypatch.setattr(leases, "read", lambda: seen)
    client.delete(f"{held}/a;1")
    assert await there.acquire(["a", "c"], "two", TTL) == {"a": 2, "c": 1}
    assert await here.acquire(["c"], "one", TTL) == {}
    await here.release(["a", "b"], "one")
    assert await there.owners() == {"a": "two", "c": "two"}


async def test_a_znode_that_cannot_be_read_is_logged_once_with_its_path_and_skipped(
    coordinators: Callable[[], ZooKeeperCoordinator],
    client: KazooClient,
    held: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = coordinators()
    await here.acquire(["a"], "one", TTL)
    damaged = {"b;0": b"\xff\x00", "c;1": b"", "%;2": b'{"owner": 1}', "other": b'"two"'}
    for name, data in damaged.items():
        client.create(f"{held}/{name}", data)
    client.add_auth("digest", "other:program")
    client.create(f"{held}/secret", b"", acl=CREATOR_ALL_ACL)
    with caplog.at_level(logging.ERROR, "fairlead.zookeeper"):
        for _ in range(3):
            assert await here.renew("one", TTL) == {"a": 1}
            assert await here.owners() == {"a": "one"}
    paths = sorted(record.__dict__["path"] for record in caplog.records)
    assert paths == sorted(f"{held}/{name}" for name in [*damaged, "secret"])
    assert await here.acquire(["b"], "one", TTL) == {}
    client.delete(f"{held}/b;0")
    assert await here.acquire(["b"], "one", TTL) == {"b": 1}
    assert await here.owners() == {"a": "one", "b": "one"}


async def test_leases_can_be_acquired_after_somebody_has_deleted_their_folder(
    coordinators: Callable[[], ZooKeeperCoordinator], client: KazooClient, held: str
) -> None:
    here = coordinators()
    await here.acquire(["a"], "one", TTL)
    assert await here.owners() == {"a": "one"}
    client.delete(held, recursive=True)
    assert await here.renew("one", TTL) == {}
    assert await here.acquire(["a"], "one", TTL) == {"a": 2}
    assert await here.renew("one", TTL) == {"a": 2}
