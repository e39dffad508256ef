"""Fair and fifo queues whose declared number of partitions changes, also while applications declare
different numbers: every waiting task runs once, and each ordering key keeps its order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from fairlead import App
from fairlead.core.sharding.partitions import partition_of
from fairlead.testing import running, settled
from tests.tiers import matrix

SOON = 60.0
KEYS = [f"k{n}" for n in range(12)]
assert any(partition_of(key, 0, 2) != partition_of(key, 0, 7) for key in KEYS)


class Place(NamedTuple):
    """A fresh store, perhaps with a channel on another server."""

    url: str
    channel: str | None
    order: str
    """Order of the queue."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    servers = ["sqlite", "postgres", "sqlite kafka", "postgres kafka"]
    places = [f"{order}: {where}" for where in servers for order in ("fair", "fifo")]
    metafunc.parametrize("place", matrix(*places), indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    order, _, servers = request.param.partition(": ")
    store, *channel = servers.split()
    fixture = "migrated_postgres_url" if store == "postgres" else f"{store}_url"
    urls = [
        str(request.getfixturevalue(name)) for name in (fixture, *(f"{c}_url" for c in channel))
    ]
    return Place(urls[0], urls[1] if channel else None, order)


class Ran:
    """Runs of tasks in all applications, in the order of their starts."""

    def __init__(self) -> None:
        self.free: list[int] = []
        self.keyed: list[tuple[str, int]] = []
        self.now = Counter[str]()

    def check(self, count: int) -> None:
        """Check that the first tasks of each ordering key ran in order, and each task once."""
        assert sorted(self.free) == sorted([*range(count)] * len(KEYS))
        for key in KEYS:
            assert [n for k, n in self.keyed if k == key] == list(range(count)), key


class Shop:
    """An application that declares the queue with a number of partitions."""

    def __init__(self, place: Place, partitions: int, ran: Ran) -> None:
        self.app = App(place.url, channel=place.channel) if place.channel else App(place.url)
        self.app.queue("q", partitions=partitions, order=place.order)

        @self.app.task(queue="q")
        async def keyed(key: str, n: int) -> None:
            ran.now[key] += 1
            assert ran.now[key] == 1
            ran.keyed.append((key, n))
            await asyncio.sleep(0)
            ran.now[key] -= 1

        @self.app.task(queue="q")
        async def free(n: int) -> None:
            ran.free.append(n)

        self.app.migrate()
        self._keyed, self._free = keyed, free

    def submit(self, numbers: Iterable[int]) -> None:
        for n in numbers:
            for key in KEYS:
                self._free.options(fairness_key=key).submit(n=n)
                self._keyed.options(ordering_key=key).submit(key=key, n=n)


@pytest.mark.parametrize(("before", "after"), [(2, 7), (7, 2)])
async def test_tasks_that_wait_when_the_number_changes_all_run_in_the_order_of_their_keys(
    place: Place, before: int, after: int
) -> None:
    ran = Ran()
    old = Shop(place, before, ran)
    old.submit(range(3))
    async with running(old.app) as node:  # registers the old number
        await settled(old.app, node, SOON)
    old.submit(range(3, 6))
    new = Shop(place, after, ran)
    new.submit(range(6, 9))
    async with running(new.app) as node:
        await settled(new.app, node, SOON)
    ran.check(9)
    old.app.close()
    new.app.close()


async def test_two_applications_with_different_numbers_run_every_task_once_in_order(
    place: Place,
) -> None:
    ran = Ran()
    few, many = Shop(place, 2, ran), Shop(place, 7, ran)
    async with running(few.app) as one:
        few.submit(range(2))
        many.submit(range(2, 4))  # into partitions that the worker does not know
        await settled(few.app, one, SOON)
        async with running(many.app) as other:
            many.submit(range(4, 6))
            few.submit(range(6, 8))
            await settled(many.app, other, SOON)
            await settled(few.app, one, SOON)
        many.submit(range(8, 10))
        await settled(few.app, one, SOON)
    ran.check(10)
    few.app.close()
    many.app.close()


async def test_a_worker_with_a_lower_number_finds_tasks_of_a_submitter_that_has_ended(
    place: Place,
) -> None:
    ran = Ran()
    many = Shop(place, 7, ran)
    many.submit(range(4))  # no worker has registered these partitions
    many.app.close()
    few = Shop(place, 2, ran)
    async with running(few.app) as node:
        await settled(few.app, node, SOON)
    ran.check(4)
    few.app.close()
