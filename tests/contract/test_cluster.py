"""Promises of `fairlead.ports.cluster.Cluster`, for each store on its real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.connect import cluster_at
from fairlead.model import IncidentKind, IncidentReport
from fairlead.ports.cluster import Cluster
from fairlead.testing.contract.cluster import *  # noqa: F403
from fairlead.testing.contract.tasks import FACTS
from tests.conftest import url_of


@pytest.fixture(params=["sqlite", "postgres", "cassandra"])
def store(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "cassandra":
        pytest.importorskip("cassandra", reason="needs the extra cassandra")
        url = str(request.getfixturevalue("migrated_cassandra_url"))
    else:
        url = url_of(request.param, request)
    store = cluster_at(url)
    store.migrate()
    store.prepare()
    yield store
    store.database.close()


async def test_a_queue_is_paused_and_resized_by_a_compare_and_set_on_its_version(
    store: Cluster,
) -> None:
    run = store.database.run
    assert not run(store.pause("no queue has this name", True))
    before = (await store.register_queues({"mail": 4}))["mail"]
    assert run(store.pause("mail", True))
    paused = run(store.queue_settings())["mail"]
    assert (paused.partitions, paused.paused) == (4, True) and paused.version > before.version
    assert not run(store.resizing("mail", 2, before.version))
    assert run(store.resizing("mail", 2, paused.version))
    assert run(store.pause("mail", False))
    found = run(store.queue_settings())["mail"]
    assert (found.partitions, found.paused) == (2, False)


async def test_a_node_that_was_dropped_as_dead_registers_again(store: Cluster) -> None:
    await store.register_node("n1", ["mail"], ["send"], 1_000, FACTS)
    await store.drop_node("n1")
    assert not await store.heartbeat("n1", 9_000)
    await store.register_node("n1", ["mail"], ["send"], 10_000, FACTS)
    assert await store.heartbeat("n1", 11_000)
    [record] = store.database.read_now(store.nodes())
    assert (record.queues, record.names) == (["mail"], ["send"])


def test_a_store_keeps_its_id(store: Cluster) -> None:
    before = store.database.read_now(store.store_id())
    store.migrate()
    assert before and store.database.read_now(store.store_id()) == before


async def test_incidents_are_put_back_and_listed_for_people(store: Cluster) -> None:
    incidents, read = store.incidents, store.database.read_now
    kind = IncidentKind.TASK_UNREADABLE
    report = IncidentReport(kind=kind, subject="row 1", details="why", since=1, queue="mail")
    await incidents.report([report], 1_000)
    [found] = await incidents.claim(3_000, 60_000_000, 10)
    assert not await incidents.claim(3_000, 60_000_000, 10)
    await incidents.retry([(found.id, 4_000)])
    [again] = await incidents.claim(5_000, 60_000_000, 10)
    assert (again.id, again.deliveries) == (found.id, 2)
    assert [each.id for each in read(incidents.undelivered(10))] == [found.id]
    await incidents.delivered([found.id], 6_000)
    assert not read(incidents.undelivered(10))
    assert [each.id for each in read(incidents.latest(None, 10))] == [found.id]
    assert [each.id for each in read(incidents.open([kind], 10))] == [found.id]
    assert [each.id for each in read(incidents.open([kind], 10, 1_000))] == [found.id]
    assert not read(incidents.open([kind], 10, 1_001))
    assert not read(incidents.latest(found.id, 10))
    assert not read(incidents.open([IncidentKind.ERROR], 10))
