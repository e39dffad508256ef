"""Promises of `fairlead.ports.cluster.Cluster`, for each store on its real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import cluster_at
from fairlead.model import IncidentKind, IncidentReport
from fairlead.ports.cluster import Cluster, NodeFacts
from fairlead.testing.contract.tasks import AWKWARD, FACTS, NOW, SECOND
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


async def test_a_report_is_delivered_once_and_ends_an_hour_after_the_last(
    store: Cluster,
) -> None:
    """Equal reports are one incident, which ends one hour after the last of them."""
    report = IncidentReport(
        kind=IncidentKind.TASK_UNREADABLE,
        subject="mail/0/5",
        details=AWKWARD,
        since=NOW,
        queue="mail",
    )
    incidents = store.incidents
    await incidents.report([report, report], NOW)
    (found,) = await incidents.claim(NOW, NOW + SECOND, 10)
    assert (found.subject, found.details, found.since) == ("mail/0/5", AWKWARD, NOW)
    assert found.task is None
    await incidents.delivered([found.id], NOW)
    hour = 3600 * SECOND
    await incidents.report([report], NOW + hour)
    assert await incidents.claim(NOW + hour, NOW + hour, 10) == []
    assert await incidents.sweep(0, NOW + 2 * hour - 1, 10) == 0
    assert await incidents.counts() == {("task_unreadable", "mail", ""): 1}
    await incidents.sweep(0, NOW + 2 * hour + 1, 10)
    assert await incidents.counts() == {}
    await incidents.report([report], NOW + 3 * hour)
    (new,) = await incidents.claim(NOW + 3 * hour, NOW + 4 * hour, 10)
    assert new.id > found.id


async def test_queues_keep_the_greatest_number_of_partitions(store: Cluster) -> None:
    """`register_queues` raises a number of partitions and never lowers it."""
    for partitions, kept in ((4, 4), (2, 4), (6, 6)):
        known = await store.register_queues({"mail": partitions, AWKWARD: 1})
        assert (known["mail"].partitions, known["mail"].paused) == (kept, False)
        assert known[AWKWARD].partitions == 1
    assert set(store.database.run(store.queue_settings())) == {"mail", AWKWARD}


async def test_the_mark_of_the_settings_differs_after_every_change(store: Cluster) -> None:
    """`settings_mark` is equal while nothing changes, and never again equal to an earlier one."""

    def mark() -> object:
        return store.database.run(store.settings_mark())

    marks = [mark()]
    for partitions in ({"mail": 1}, {"mail": 2}, {"mail": 2, AWKWARD: 1}, {AWKWARD: 5}):
        await store.register_queues(partitions)
        assert mark() not in marks, partitions
        marks.append(mark())
    await store.register_queues({"mail": 1, AWKWARD: 5})
    assert mark() == marks[-1]


async def test_nodes_fall_silent_and_are_dropped(store: Cluster) -> None:
    """`heartbeat` returns False for an unknown node; `drop_node` removes a registered one. A node
    has the facts that it has registered last."""
    now = SYSTEM_CLOCK.now()
    assert not await store.heartbeat("one", now)
    await store.register_node("one", ["mail", AWKWARD], [AWKWARD], now, FACTS)
    (node,) = store.database.run(store.nodes())
    assert node.facts == FACTS
    facts = NodeFacts(500, "0.1.0", AWKWARD)
    await store.register_node("one", ["mail"], [AWKWARD, "pay"], now, facts)
    assert await store.heartbeat("one", now + SECOND)
    (node,) = store.database.run(store.nodes())
    assert (node.node, node.queues, node.names) == ("one", ["mail"], [AWKWARD, "pay"])
    assert node.facts == facts
    assert node.started_at <= node.heartbeat_at
    assert await store.silent_nodes(now + SECOND, 10 * SECOND) == []
    await store.drop_node("one")
    assert store.database.run(store.nodes()) == []
