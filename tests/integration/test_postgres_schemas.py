"""Several installations in one PostgreSQL database, a schema each: none sees another one's tasks,
notifications or nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from fairlead import App
from fairlead.backends.postgres.notifier import PostgresNotifier
from fairlead.backends.postgres.presence import SessionPresence
from fairlead.ports.notification import Notification
from fairlead.testing import drain
from fairlead.testing.contract.tasks import FACTS

SOON = 20.0  # seconds; a guard against a hang


class Installation:
    """An application with tables in a schema of its own."""

    def __init__(self, url: str, schema: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        self.app = App(f"{url}?options=-csearch_path%3D{schema}")
        self.app.migrate()
        self.ran: list[int] = []

        @self.app.task
        def note(n: int) -> None:
            self.ran.append(n)

        self.note = note
        self.database = self.app.store.database


@pytest.fixture
def installations(postgres_url: str) -> Iterator[tuple[Installation, Installation]]:
    one, two = Installation(postgres_url, "one"), Installation(postgres_url, "two")
    yield one, two
    one.app.close()
    two.app.close()


Two = tuple[Installation, Installation]


def test_each_schema_runs_its_own_tasks(installations: Two) -> None:
    one, two = installations
    one.note.submit(n=1)
    two.note.submit_many([{"n": n} for n in range(60)])
    asyncio.run(drain(one.app))
    assert (one.ran, two.ran) == ([1], [])
    asyncio.run(drain(two.app))
    assert (one.ran, sorted(two.ran)) == ([1], list(range(60)))


@pytest.mark.parametrize("count", [1, 60])
def test_a_submit_notifies_only_the_workers_of_its_schema(installations: Two, count: int) -> None:
    one, two = installations

    async def test() -> None:
        received: asyncio.Queue[Notification] = asyncio.Queue()
        notifier = PostgresNotifier(two.database)  # type: ignore[arg-type]
        await notifier.listen(received.put_nowait)
        one.note.submit_many([{"n": n} for n in range(count)])
        two.note.options(priority=9).submit_many([{"n": n} for n in range(count)])
        async with asyncio.timeout(SOON):
            first = await received.get()
        assert [lane.priority for lane in first.ready] == [9]
        await notifier.close()

    asyncio.run(test())


def test_nodes_of_one_name_in_two_schemas_hold_a_lock_each(
    installations: Two, postgres_url: str
) -> None:
    async def test() -> None:
        presences = []
        for each in installations:
            notifier = PostgresNotifier(each.database)  # type: ignore[arg-type]
            await notifier.listen(lambda _: None)
            presences.append((SessionPresence(each.database, notifier), notifier))
            is_held = asyncio.Event()
            await presences[-1][0].hold("node", is_held.set)
            async with asyncio.timeout(SOON):
                await is_held.wait()
            await each.app.store.register_node("node", [], [], 1, FACTS)
        await presences[0][1].close()
        async with asyncio.timeout(SOON):
            while await presences[0][0].released(["node"]) != {"node"}:
                await asyncio.sleep(0.02)
        assert await presences[1][0].released(["node"]) == set()
        await presences[1][1].close()

    asyncio.run(test())


def test_notifications_do_not_depend_on_the_order_of_the_search_path(postgres_url: str) -> None:
    """A role may have a schema of its own before the one with the tables."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA fairlead")
    one = Installation(postgres_url, "tasks")
    other = App(f"{postgres_url}?options=-csearch_path%3Dfairlead,tasks")

    @other.task(name=one.note.name)
    def note(n: int) -> None: ...

    async def test() -> None:
        received: asyncio.Queue[Notification] = asyncio.Queue()
        await other.notifier.listen(received.put_nowait)
        one.note.submit(n=1)
        async with asyncio.timeout(SOON):
            assert (await received.get()).ready
        await other.notifier.close()

    asyncio.run(test())
    one.app.close()
    other.close()
