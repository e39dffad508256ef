"""Connections and the writer thread of a SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from pathlib import Path

import pytest

from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.ports.statements import Statement, Steps

SOON = 20.0  # seconds; a guard against a hang


@pytest.fixture
def database(tmp_path: Path) -> SqliteDatabase:
    return SqliteDatabase(tmp_path / "tasks.db")


class Idle(deque[sqlite3.Connection]):
    """Idle connections, which any thread may take at any moment."""

    def append(self, connection: sqlite3.Connection) -> None:
        assert not connection.in_transaction
        super().append(connection)


async def test_a_connection_in_a_transaction_is_not_lent_to_another_thread(
    database: SqliteDatabase,
) -> None:
    database._idle = Idle()
    for _ in range(2):
        async with database.transaction_async() as own:
            with database.connection() as other:
                assert other is not own
    assert len(database._idle) == 2
    database.close()


async def test_a_failed_begin_keeps_neither_the_lock_nor_the_connection(
    database: SqliteDatabase,
) -> None:
    database.busy_timeout = 0.0
    other = database.connect()
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Exception, match="locked"):
        async with database.transaction_async():
            raise AssertionError("never reached")
    assert not database._idle
    other.close()
    async with database.transaction_async():
        pass
    database.close()


def test_a_write_that_arrives_during_a_close_does_not_hold_it(database: SqliteDatabase) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def slow() -> Steps[str]:
        yield Statement("SELECT 1")
        has_begun.set()
        may_end.wait(SOON)
        return "slow"

    def quick() -> Steps[str]:
        yield Statement("SELECT 1")
        return "quick"

    first = database._writer.enqueue(slow(), durable=False)
    assert has_begun.wait(SOON)
    closing = threading.Thread(target=database._writer.close, daemon=True)
    closing.start()
    while database._writer._thread is not None:
        pass
    second = database._writer.enqueue(quick(), durable=False)
    may_end.set()
    assert (first.result(SOON), second.result(SOON)) == ("slow", "quick")
    closing.join(SOON)
    assert not closing.is_alive()
    database.close()
