"""Promises of every `fairlead.ports.presence.Presence`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.postgres.presence import key_of
from fairlead.backends.sqlite.presence import FilePresence
from fairlead.connections import Connections
from fairlead.engine.deaths import watched_by
from fairlead.ports.presence import Presence
from tests.end_to_end.workers import ROOT

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


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON):
        while not await is_so():
            await asyncio.sleep(0.02)


async def until_seen_held(presence: Presence, url: str, node: str) -> None:
    """Wait until `presence` has observed that the node holds its lock."""
    if url.startswith("postgres"):
        seen: set[str] = presence._seen  # type: ignore[attr-defined]

        async def is_seen() -> bool:
            await presence.released([node])
            return node in seen

        await until(is_seen)


async def test_a_killed_process_has_released_its_lock(store_url: str) -> None:
    async with listening(store_url) as one, holder(store_url, "node#1") as process:
        presence = one.presence
        assert presence is not None
        await until_seen_held(presence, store_url, "node#1")
        assert await presence.released(["node#1"]) == set()
        process.kill()

        async def is_released() -> bool:
            return await presence.released(["node#1", "other"]) == {"node#1"}

        await until(is_released)
        assert await is_released()  # the lock stays released


async def test_a_stopped_process_keeps_its_lock(store_url: str) -> None:
    async with listening(store_url) as one, holder(store_url, "node/1 é") as process:
        presence = one.presence
        assert presence is not None
        await until_seen_held(presence, store_url, "node/1 é")
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.3)
        assert await presence.released(["node/1 é"]) == set()
        process.send_signal(signal.SIGCONT)


async def test_a_node_that_never_held_a_lock_is_not_dead(store_url: str) -> None:
    async with listening(store_url) as one:
        assert one.presence is not None
        assert await one.presence.released(["unknown"]) == set()


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
        holder(store_url, "node") as process,
    ):
        watchers = [one.presence, two.presence]
        for each in watchers:
            assert each is not None
            await until_seen_held(each, store_url, "node")
        for _ in range(20):
            found = await asyncio.gather(*(each.released(["node"]) for each in watchers if each))
            assert found == [set(), set()]
        process.kill()

        async def is_released() -> bool:
            found = await asyncio.gather(*(each.released(["node"]) for each in watchers if each))
            return found == [{"node"}, {"node"}]

        await until(is_released)


async def test_a_lost_connection_is_reported_and_its_lock_acquired_again(
    migrated_postgres_url: str,
) -> None:
    lost = asyncio.Event()
    async with listening(migrated_postgres_url) as one, listening(migrated_postgres_url) as two:
        assert one.presence is not None and two.presence is not None
        await one.presence.hold("node", lost.set)
        await until_seen_held(two.presence, migrated_postgres_url, "node")
        database = two.store.database
        found = database.connect()  # type: ignore[attr-defined]
        with found as connection:
            ((table,),) = connection.execute("SELECT 'fairlead_tasks'::regclass::oid").fetchall()
            key = (key_of("node") ^ table) % (1 << 64)
            pids = connection.execute(
                "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s"
                " AND objid = %s",
                (key >> 32, key & 0xFFFFFFFF),
            ).fetchall()
            assert len(pids) == 1
            connection.execute("SELECT pg_terminate_backend(%s)", pids[0])
        async with asyncio.timeout(SOON):
            await lost.wait()

        async def is_held() -> bool:
            return await two.presence.released(["node"]) == set()  # type: ignore[union-attr]

        await until(is_held)


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
