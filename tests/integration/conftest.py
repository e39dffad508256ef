"""Fixtures of the engine's tests.

`make test` runs them on SQLite. `make test-nightly` runs them on each store, and again with triggers
through Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from fairlead import App
from fairlead.submit import submission
from tests.conftest import url_of
from tests.integration.ordered_kit import Kit, open_app, open_pair
from tests.tiers import matrix
from tests.virtual_loop import VirtualLoop, VirtualTime, virtual_system_clock


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise tests by store and channel. Tests marked `stores` use no channel, and those marked
    `sqlite` one store."""
    if "store_url" in metafunc.fixturenames:
        marks = {mark.name for mark in metafunc.definition.iter_markers()}
        kinds = ["sqlite", "postgres", "sqlite and kafka"]
        kinds = kinds[: 1 if "sqlite" in marks else 2 if "stores" in marks else 3]
        is_smoke = "smoke" in marks
        metafunc.parametrize("store_url", kinds if is_smoke else matrix(*kinds), indirect=True)


_TIME = pytest.StashKey[VirtualTime]()
_loop: list[VirtualTime] = []
"""Time of the next test, if its loop is virtual."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loop of a test, made when its parameters are known."""
    return {"loop": lambda: VirtualLoop(_loop[-1]) if _loop else asyncio.new_event_loop()}


_SERVERS = ("postgres", "kafka", "redis", "cassandra", "zookeeper")


def is_virtual(item: pytest.Item) -> bool:
    """Return whether a test runs on virtual time: it is marked `virtual_time` but not `system_time`,
    and neither the test nor its parameters name a server."""
    if not item.get_closest_marker("virtual_time") or item.get_closest_marker("system_time"):
        return False
    callspec = getattr(item, "callspec", None)
    used = [*getattr(item, "fixturenames", ()), *(callspec.params.values() if callspec else ())]
    return not any(server in str(what) for what in used for server in _SERVERS)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Make the time of a virtual loop, before its fixtures are set up."""
    _loop[:] = [item.stash.setdefault(_TIME, VirtualTime())] if is_virtual(item) else []


@pytest.fixture(autouse=True)
def virtual_time(request: pytest.FixtureRequest) -> Iterator[VirtualTime | None]:
    """Return the time of a test on the virtual loop, which all its applications use; None for any
    other test."""
    clock = request.node.stash.get(_TIME, None)
    if clock is None:
        yield None
        return
    with virtual_system_clock(clock):
        yield clock


@pytest.fixture(autouse=True)
def as_submitted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store the tasks of a submit in the order of its drafts in tests of orders, which would
    otherwise see the order of the submit rather than that of the lane."""
    if request.node.get_closest_marker("ordered"):
        monkeypatch.setattr(submission, "stored_order", lambda tasks: None)


@pytest.fixture
def store_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a fresh store of each kind in turn, and set its channel."""
    store, _, channel = request.param.partition(" and ")
    if channel:
        pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
        monkeypatch.setenv("FAIRLEAD_CHANNEL", request.getfixturevalue("kafka_url"))
    return url_of(store, request)


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    """Yield Redis' own client of an empty database."""
    redis = pytest.importorskip("redis", reason="needs the extra redis")
    with redis.Redis.from_url(redis_url) as found:
        yield found


@pytest.fixture
def sync_queue(redis_url: str) -> Iterator[Any]:
    """Yield a sharded queue of 16 streams, 2 a shard."""
    from fairlead.sharded import SyncShardedQueue

    with SyncShardedQueue(redis_url, "q", streams=16, streams_per_shard=2) as found:
        yield found


@pytest.fixture(params=["asynchronous", "synchronous"])
async def queue(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Any]:
    """Yield a sharded queue, then its synchronous twin."""
    from fairlead.sharded import ShardedQueue
    from tests.sharded_queues import Awaited

    if request.param == "synchronous":
        yield Awaited(request.getfixturevalue("sync_queue"))
    else:
        async with ShardedQueue(redis_url, "q", streams=16, streams_per_shard=2) as found:
            yield found


@pytest.fixture
def celery(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield an application with Celery's names."""
    from fairlead.contrib.celery import Celery
    from fairlead.contrib.celery import app as app_module

    monkeypatch.setattr(app_module, "_shared", [])
    with closing(App(sqlite_url)) as fairlead:
        fairlead.migrate()
    with closing(Celery("shop", url=sqlite_url, task_queues=["celery", "mail"])) as app:
        yield app


@pytest.fixture
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the task store of each pair of a log and a schedule in turn."""
    return open_pair(request.param, request, monkeypatch)


@pytest.fixture
def kit(url: str) -> Iterator[Kit]:
    """Yield an application with an ordered queue on each pair."""
    kit = open_app(url)
    yield kit
    kit.app.close()
