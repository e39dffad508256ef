"""Rows inserted directly into a store, which is faster than running tasks and allows any row."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from fairlead import App
from fairlead.backends.sql.history import SqlHistory
from fairlead.connect import task_store
from fairlead.core.ids import id_text
from fairlead.model import AttemptRecord
from fairlead.model.history import Reader
from fairlead.pipeline.warehouse.warehouse import Warehouse

START = 1_700_000_000_000_000
COLUMNS = AttemptRecord.__struct_fields__[1:]


def migrated(url: str) -> Any:
    """Return the migrated task store of the URL; the caller closes its database."""
    with closing(App(url)) as app:
        app.migrate()
    return task_store(url)


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """Yield a separate connection, in autocommit mode."""
    with closing(task_store(url).database.connect()) as connection:
        yield connection


def attempt(n: int) -> tuple[Any, ...]:
    """Return the n-th attempt. Its columns have different values where possible, and every third
    attempt has no run."""
    ran = n % 3 != 0
    at = START + n * 1000
    return (
        id_text(n),
        1,
        2,
        f"queue-{n % 2}",
        "work",
        3,
        4,
        f"tenant-{n % 7}",
        1.5,
        f"order-{n}" if ran else None,
        f"unique-{n}",
        5,
        at,
        at + 1,
        at + 2 if ran else None,
        at + 3 if ran else None,
        at + 4 if ran else None,
        at + 5 if ran else None,
        at + 6,
        "done" if ran else "cancelled",
        "DONE" if ran else "CANCELLED",
        None if ran else "Trouble",
        None if ran else "text",
        "node-6" if ran else None,
        "hook",
        7,
        f"tags-{n}",
    )


def add_attempts(connection: Any, numbers: Iterable[int]) -> None:
    """Add the attempts with these numbers, in one statement or in the connection's transaction."""
    add_rows(connection, [attempt(n) for n in numbers])


def add(url: str, *numbers: int) -> None:
    """Add the attempts with these numbers, each in its own transaction."""
    with connected(url) as connection:
        for n in numbers:
            add_attempts(connection, [n])


def reader_of(history: SqlHistory, lake: Warehouse) -> Reader:
    """Return the lake as a reader of the store."""
    readers = history.database.read_now(history.readers())
    return next(each for each in readers if each.name == lake.reader)


def add_rows(connection: Any, rows: Iterable[tuple[Any, ...]]) -> None:
    """Add rows of `COLUMNS` to the attempts, in one statement or in the connection's transaction."""
    marker = "%s" if isinstance(connection, psycopg.Connection) else "?"
    statement = f"INSERT INTO fairlead_attempts ({', '.join(COLUMNS)}) VALUES ({', '.join([marker] * len(COLUMNS))})"
    connection.cursor().executemany(statement, rows)


@contextmanager
def adding(url: str, pause: float, most: int) -> Iterator[list[int]]:
    """Add about `most` attempts in a thread, or fewer if the block ends before; yield the growing list
    of their numbers."""
    added: list[int] = []
    ends = threading.Event()

    def add() -> None:
        with connected(url) as connection:
            while len(added) < most and not ends.wait(pause):
                batch = range(len(added), len(added) + 1 + len(added) % 5)
                add_attempts(connection, batch)
                added.extend(batch)

    thread = threading.Thread(target=add)
    thread.start()
    try:
        yield added
    finally:
        ends.set()
        thread.join()
