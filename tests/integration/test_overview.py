"""The overview of a fair queue: why a task waits, and the keys in the backlogs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from fairlead import App
from fairlead.backends.sql.backlog import SqlBacklogStore
from fairlead.errors import UnknownQueue
from fairlead.operate.doctor import explanation
from fairlead.operate.overview import queue_view
from fairlead.testing import drain, running, settled

pytestmark = [pytest.mark.ordered, pytest.mark.virtual_time]

SOON = 20.0


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    """Yield an application that keeps levels in the database of its tasks."""
    with closing(App(store_url, backlog="database")) as app:
        app.migrate()
        yield app


async def test_an_overview_shows_a_stored_tasks_level_the_tasks_ahead(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqlBacklogStore, "persist_seconds", 0.1)
    monkeypatch.setenv("FAIRLEAD_BACKLOG", "database")
    app.close()  # so that its adapters are made again
    app.queue("q", partitions=1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task(queue="q")
    async def wait() -> None:
        begun.set()
        await go_on.wait()

    wait.options(fairness_key="a").submit_many([{}] * 300)
    last = wait.options(fairness_key="b").submit_many([{}] * 100)[-1]
    async with running(app, look_ahead=12, concurrency=1) as node:
        async with asyncio.timeout(SOON):
            await begun.wait()
            while not (await queue_view(app.operate_context, "q")).partitions[0].lanes[0].buffered:  # noqa: ASYNC110
                await asyncio.sleep(
                    0.02
                )  # until all tasks are stored and the record of the lane is saved
        (finding,) = (await explanation(app.operate_context, last.id)).reasons
        matched = re.fullmatch(
            r"SUBMITTED in partition 0 of q, owner (\S+), level \((\d+), \d+\), (\d+) tasks ahead of it from 2 keys",
            finding.what,
        )
        assert matched is not None, finding.what
        owner, pass_, ahead = matched.groups()
        assert owner == node.settings.name
        assert int(pass_) == 99_000_002  # from 2 on, the level of the hundredth task of its key
        assert (
            195 <= int(ahead) <= 200
        )  # 99 of its own key and 100 of the other, without those already dispatched
        found = await queue_view(app.operate_context, "q")
        (partition,) = found.partitions
        (lane,) = partition.lanes
        assert (partition.owner, partition.range_id) == (node.settings.name, 1)
        assert lane.ack_level < lane.read_level < lane.max_level
        assert 0 < lane.buffered <= 63  # the look-ahead and its tolerance
        assert lane.stored > 300
        tenants = found.tenants.tenants
        assert [(each.tenant, each.queues[0].weight) for each in tenants] == [
            ("a", 1.0),
            ("b", 1.0),
        ]
        go_on.set()
        await settled(app, node)


async def test_an_unknown_queue_has_no_view(app: App) -> None:
    with pytest.raises(UnknownQueue, match="nothing"):
        await queue_view(app.operate_context, "nothing")


async def test_a_backlog_in_cassandra_serves_tasks_of_sqlite(
    sqlite_url: str, migrated_cassandra_url: str
) -> None:
    app = App(sqlite_url, backlog=migrated_cassandra_url)
    app.migrate()
    app.queue("q", partitions=1)
    ran: list[str] = []

    @app.task(queue="q")
    async def note(key: str) -> None:
        ran.append(key)

    for key, count in (("a", 300), ("b", 20)):
        note.options(fairness_key=key).submit_many([{"key": key}] * count)
    await drain(app, look_ahead=12, concurrency=1)
    assert sorted(ran) == ["a"] * 300 + ["b"] * 20
    for n, position in enumerate(
        (position for position, key in enumerate(ran, 1) if key == "b"), 1
    ):
        assert position <= 2 * n
