"""Promises of every `fairlead.ports.presence.Presence`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.sqlite.presence import FilePresence
from fairlead.connections import Connections
from fairlead.engine.liveness.deaths import watched_by
from fairlead.ports.presence import Presence
from fairlead.testing.contract.tasks import FACTS
from tests.end_to_end.workers import ROOT
from tests.waiting import until

SOON = 20.0  # seconds; a guard against a hang


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Connections]:
    """Open the adapters of an application that listens."""
    app = App(url)
    app.migrate()
    connections = app.connector.connections
    await connections.notifier.listen(lambda _: None)
    try:
        yield connections
    finally:
        await connections.notifier.close()
        await connections.close_async()
        app.close()


@asynccontextmanager
async def holder(url: str, node: str) -> AsyncIterator[subprocess.Popen[str]]:
    """Run a process that holds the lock of the node."""
    command = [sys.executable, "-m", "tests.contract.presence_holder", url, node]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "holding\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("watches", ["before the death", "after the death"])
async def test_a_killed_process_has_released_its_lock(store_url: str, watches: str) -> None:
    async with AsyncExitStack() as stack:

        async def listens() -> Presence:
            connections = await stack.enter_async_context(listening(store_url))
            assert connections.presence is not None
            return connections.presence

        first = await listens()
        process = await stack.enter_async_context(holder(store_url, "node#1"))
        assert await first.released(["node#1"]) == set()
        process.kill()
        process.wait()
        presence = first if watches == "before the death" else await listens()

        async def is_released() -> bool:
            return await presence.released(["node#1", "other"]) == {"node#1"}

        await until(is_released)
        assert await is_released()  # the lock stays released


async def test_a_stopped_process_keeps_its_lock(store_url: str) -> None:
    async with listening(store_url) as one, holder(store_url, "node/1 é") as process:
        presence = one.presence
        assert presence is not None
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.3)
        assert await presence.released(["node/1 é"]) == set()
        process.send_signal(signal.SIGCONT)


async def test_a_node_without_a_writable_folder_works_without_a_lock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tasks.db-nodes").write_text("a file in the place of the folder")
    presence = FilePresence(tmp_path / "tasks.db")
    await presence.hold("node", lambda: None)
    assert "cannot lock a file" in caplog.text
    assert await presence.released(["node"]) == set()
    await presence.close()


async def test_the_death_of_a_node_that_lived_for_hours_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db-nodes" / "node"

    async def start(node: str) -> FilePresence:
        os.utime(file, (0, 0))  # hours ago
        presence = FilePresence(tmp_path / "tasks.db")
        await presence.hold(node, lambda: None)
        return presence

    async with holder(f"sqlite:///{tmp_path}/tasks.db", "node") as process:
        one = await start("one")
        assert await one.released(["node"]) == set()
        process.kill()
        process.wait()
        two = await start("two")
        assert await two.released(["node"]) == {"node"}
        three = await start("three")
        assert not file.exists()
    for each in (one, two, three):
        await each.close()


async def test_a_node_gets_its_lock_although_another_one_removes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened, removed = tmp_path / "tasks.db-nodes", os.open, []

    def open_later(path: Any, *more: Any) -> int:
        if not removed:
            removed.append(path)
            folder.rmdir()
        return opened(path, *more)

    monkeypatch.setattr(os, "open", open_later)
    presence = FilePresence(tmp_path / "tasks.db")
    await presence.hold("node", lambda: None)
    assert removed and (folder / "node").exists()
    await presence.close()


async def test_two_watchers_of_one_node_see_its_lock_alike(store_url: str) -> None:
    async with (
        listening(store_url) as one,
        listening(store_url) as two,
        holder(store_url, "node"),
    ):
        watchers = [one.presence, two.presence]
        for each in watchers:
            assert each is not None
        for _ in range(20):
            found = await asyncio.gather(*(each.released(["node"]) for each in watchers if each))
            assert found == [set(), set()]


async def test_a_lost_lock_is_reported_and_acquired_again_unless_a_heartbeat_says_it_is_free(
    migrated_postgres_url: str,
) -> None:
    changed: asyncio.Queue[None] = asyncio.Queue()
    async with listening(migrated_postgres_url) as one, listening(migrated_postgres_url) as two:
        presence, watcher = one.presence, two.presence
        assert presence is not None and watcher is not None

        def end_connection() -> None:
            with two.store.database.connect() as connection:  # type: ignore[attr-defined]
                ended = connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks JOIN pg_database d"
                    " ON d.oid = database WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'"
                    " AND datname = current_database()"
                ).fetchall()
            assert ended == [(True,)]

        async with asyncio.timeout(SOON):
            await presence.hold("node", lambda: changed.put_nowait(None))
            await changed.get()
            end_connection()
            await changed.get()  # lost
            await changed.get()  # acquired again
            await one.store.register_node("node", [], [], 1, FACTS)
            assert await watcher.released(["node"]) == set()
            await presence.close()
            end_connection()
            assert await watcher.released(["node"]) == {"node"}
            await one.store.heartbeat("node", 1)
            assert await watcher.released(["node"]) == set()


@pytest.mark.parametrize(
    ("node", "watched"),
    [
        ("a", ["b", "c", "d"]),
        ("c", ["d", "e", "a"]),
        ("e", ["a", "b", "c"]),
        ("x", ["a", "b", "c"]),
    ],
)
def test_each_node_watches_the_next_three(node: str, watched: list[str]) -> None:
    assert watched_by(node, ["e", "a", "d", "c", "b"]) == watched


def test_the_only_other_node_is_watched_once() -> None:
    assert watched_by("a", ["a", "b"]) == ["b"]
    assert watched_by("a", ["a"]) == []
