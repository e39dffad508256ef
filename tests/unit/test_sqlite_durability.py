"""Acknowledged transactions of a SQLite file are on disk, and no other write waits for the disk."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.backends.sqlite import wal_file
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.errors import StoreUnavailable
from fairlead.ports.statements import Statement, Steps

INSERT = Statement("INSERT INTO numbers VALUES (1)")
COUNT = Statement("SELECT count(*) FROM numbers")


def write() -> Steps[None]:
    yield INSERT


def count() -> Steps[int]:
    ((number,),) = yield COUNT
    return int(number)


async def run(database: SqliteDatabase) -> None:
    await asyncio.to_thread(database.run, write())


async def run_async(database: SqliteDatabase) -> None:
    await database.run_async(write())


async def run_not_durably(database: SqliteDatabase) -> None:
    await database.run_async(write(), durable=False)


async def run_quickly(database: SqliteDatabase) -> None:
    await database.run_quickly(write)


async def run_in_transaction(database: SqliteDatabase) -> None:
    async with database.transaction_async() as connection:
        await database.join_async(connection, write())


Write = Callable[[SqliteDatabase], Awaitable[None]]
DURABLE: list[Write] = [run, run_async, run_in_transaction]


def new_database(path: Path, synchronous: str = "FULL") -> SqliteDatabase:
    database = SqliteDatabase(path, synchronous)
    with database.transaction() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS numbers (number INTEGER)")
    return database


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the inodes of the files that were flushed."""
    inodes: list[int] = []

    def sync(descriptor: int) -> None:
        inodes.append(os.fstat(descriptor).st_ino)
        os.fsync(descriptor)

    monkeypatch.setattr(wal_file, "_sync", sync)
    return inodes


@pytest.mark.parametrize("write_one", DURABLE)
@pytest.mark.parametrize("synchronous", ["FULL", "EXTRA", "full"])
async def test_a_write_returns_after_its_log_was_flushed(
    tmp_path: Path, flushes: list[int], write_one: Write, synchronous: str
) -> None:
    database = new_database(tmp_path / "tasks.db", synchronous)
    flushes.clear()
    await write_one(database)
    assert flushes == [(tmp_path / "tasks.db-wal").stat().st_ino]
    database.close()


@pytest.mark.parametrize("write_one", [*DURABLE, run_not_durably, run_quickly])
@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
async def test_no_write_waits_for_the_disk_if_the_url_turns_this_off(
    tmp_path: Path, flushes: list[int], write_one: Write, synchronous: str
) -> None:
    database = new_database(tmp_path / "tasks.db", synchronous)
    await write_one(database)
    assert flushes == []
    database.close()


@pytest.mark.parametrize("write_one", [run_not_durably, run_quickly])
async def test_a_claim_does_not_wait_for_the_disk(
    tmp_path: Path, flushes: list[int], write_one: Write
) -> None:
    database = new_database(tmp_path / "tasks.db")
    flushes.clear()
    await write_one(database)
    assert flushes == []
    database.close()


async def test_through_a_symbolic_link_the_log_beside_the_real_file_is_flushed(
    tmp_path: Path, flushes: list[int]
) -> None:
    (tmp_path / "data").mkdir()
    new_database(tmp_path / "data" / "tasks.db").close()
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "tasks.db")
    database = new_database(tmp_path / "link.db")
    flushes.clear()
    await run(database)
    assert flushes == [(tmp_path / "data" / "tasks.db-wal").stat().st_ino]
    database.close()


@pytest.mark.parametrize("write_one", DURABLE)
async def test_other_transactions_write_while_one_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_one: Write
) -> None:
    one, other = (new_database(tmp_path / "tasks.db") for _ in range(2))
    disk_is_asked, disk_responds = threading.Event(), threading.Event()

    def flush() -> None:
        disk_is_asked.set()
        assert disk_responds.wait(60)

    monkeypatch.setattr(one, "flush", flush)
    writing = asyncio.ensure_future(write_one(one))
    await asyncio.to_thread(disk_is_asked.wait, 60)
    await asyncio.wait_for(run(other), 30)
    assert other.read_now(count()) == 2
    assert not writing.done()
    disk_responds.set()
    await writing
    one.close()
    other.close()


@pytest.mark.parametrize("write_one", DURABLE)
async def test_a_disk_that_refuses_to_flush_is_an_outage_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_one: Write
) -> None:
    database = new_database(tmp_path / "tasks.db")

    def refuse(descriptor: int) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(wal_file, "_sync", refuse)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            await write_one(database)
    await write_one(database)
    database.close()
