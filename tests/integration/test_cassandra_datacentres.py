"""Reads of the schedule on Cassandra while one of two real datacentres is away, or has just come
back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("cassandra", reason="the driver is missing: pip install 'fairlead[cassandra]'")

from fairlead.backends.cassandra.schedule import CassandraScheduleStore  # noqa: E402
from fairlead.backends.sql.migrate import migrate  # noqa: E402
from fairlead.connect import task_store  # noqa: E402
from fairlead.errors import StoreUnavailable  # noqa: E402
from fairlead.model import ScheduleRecord  # noqa: E402
from services.cassandra import TwoDatacentres  # noqa: E402
from tests.conftest import own_server  # noqa: E402
from tests.contract.test_schedule_store import NOW, PARTITION, ended, everything, task  # noqa: E402
from tests.waiting import until


@pytest.fixture
def datacentres() -> Iterator[TwoDatacentres]:
    yield from own_server(TwoDatacentres)


async def until_works(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call while the store is unavailable, and return its result."""
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(StoreUnavailable):
                return await call()
            await asyncio.sleep(0.2)


@pytest.mark.nightly("an outage")
async def test_a_datacentre_that_was_away_gives_no_page_without_the_one_that_has_its_writes(
    sqlite_url: str, datacentres: TwoDatacentres
) -> None:
    tasks = task_store(sqlite_url)
    migrate(tasks.database)
    store = CassandraScheduleStore(datacentres.url_of("returned"), tasks)
    await store.migrate()
    range_id = (await store.take_over(PARTITION)).range_id
    await store.persist(PARTITION, range_id, [task(NOW + n) for n in range(10)], ScheduleRecord())
    rows = await everything(store)
    datacentres.dc1.crash()
    await until_works(lambda: store.finish(PARTITION, range_id, [ended(row) for row in rows[:5]]))
    assert await until_works(lambda: everything(store)) == rows[5:]
    await asyncio.to_thread(datacentres.dc1.start)
    await until(lambda: all(host.is_up for host in store.session._cluster.metadata.all_hosts()))

    os.kill(datacentres.dc2.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable):  # the ends of five runs are in dc2 alone
            await store.take_over(PARTITION)
            await everything(store)
    finally:
        os.kill(datacentres.dc2.pid, signal.SIGCONT)
    owned = await until_works(lambda: store.take_over(PARTITION))
    # The log may bring entries again that were taken in before the return.
    again = [task(NOW + n) for n in range(10)]
    completed = await until_works(
        lambda: store.persist(PARTITION, owned.range_id, again, ScheduleRecord())
    )
    assert completed == {row.key for row in rows[:5]}
    left = await until_works(lambda: everything(store))
    assert [row.key for row in left] == [row.key for row in rows[5:]]
    await store.close()
    tasks.database.close()  # type: ignore[attr-defined]
