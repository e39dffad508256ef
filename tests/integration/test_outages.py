"""An outage of the store that is longer than a node may be silent makes no living node look
dead."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from fairlead import App, State
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.engine.liveness import SILENT_SECONDS
from fairlead.errors import StoreUnavailable
from fairlead.testing import drain, running, settled
from tests.conftest import small_disk

pytestmark = pytest.mark.virtual_time


async def test_a_file_on_a_small_disk_takes_and_runs_tasks_while_there_is_room(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path, 20):
        app, ran = App(f"sqlite:///{tmp_path / 'tasks.db'}"), list[int]()
        app.migrate()

        @app.task
        async def work(n: int) -> None:
            ran.append(n)

        for n in range(1200):
            work.submit(n=n)
        assert (tmp_path / "tasks.db-wal").stat().st_size < 3 << 20
        filler = tmp_path / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"-" * 4096)
        taken = 1200
        with pytest.raises(StoreUnavailable, match="full"):
            while True:
                work.submit(n=taken)
                taken += 1
        filler.unlink()
        await drain(app)
        assert sorted(ran) == list(range(taken))
        app.close()


@pytest.mark.parametrize("seconds", [SILENT_SECONDS + n / 2 for n in (4, 7, 10, 13)])
async def test_a_task_runs_once_although_the_store_was_away_for_long(
    sqlite_url: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("the store is down")

    runs: list[int] = []

    async def work(n: int) -> None:
        runs.append(n)
        await asyncio.sleep(seconds + 60)

    first = App(sqlite_url)
    first.migrate()
    others = [App(sqlite_url) for _ in range(2)]
    for app in others:
        app.task(work)
    task = first.task(work)
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running(first, concurrency=3))
        for app in others:
            await asyncio.sleep(0.8)  # so that heartbeats and polls differ by node
            await stack.enter_async_context(running(app))
        handles = [task.submit(n=n) for n in range(12)]
        await asyncio.sleep(20)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteDatabase, "run_async", fail)
            patch.setattr(SqliteDatabase, "read", fail)
            await asyncio.sleep(seconds)
        await settled(first, node, 600)
    assert {handle.state() for handle in handles} == {State.DONE}
    assert sorted(runs) == list(range(12))
    for app in (first, *others):
        app.close()
