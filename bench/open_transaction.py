"""Measure a worker on PostgreSQL beside a transaction that stays open, such as a backup.

    python bench/open_transaction.py    # 800 tasks/s, 60 s without it and 240 s beside it
    python bench/open_transaction.py --rate 5000 --beside 1800
    python bench/open_transaction.py --ordering 6000      # drain one ordering key instead

Prints one JSON line for each window: tasks, p50 and p99 from submit to start, sizes, and the
statements that touch the most pages, in pages for one call.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psycopg  # noqa: E402

from bench.fleet import Fleet, Load, at_percent, fleet  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

WINDOW = 20.0
"""Seconds of one window."""
TOP = 8
"""Statements shown for each window."""

STATEMENTS = """
SELECT calls, (total_exec_time / calls)::float8, (shared_blks_hit + shared_blks_read) / calls,
       left(query, 400)
  FROM pg_stat_statements
 WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND query ILIKE '%fairlead%'
 ORDER BY shared_blks_hit + shared_blks_read DESC LIMIT {top}
"""
SIZES = """
SELECT pg_total_relation_size('fairlead_tasks'), n_live_tup, n_dead_tup
  FROM pg_stat_user_tables WHERE relname = 'fairlead_tasks'
"""


@contextmanager
def measuring_server() -> Iterator[PostgresServer]:
    """Start a server that counts the pages of each statement."""
    with PostgresServer() as server:
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
        server.restart("fast")
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("CREATE EXTENSION pg_stat_statements")
        yield server


class Windows:
    """Reports of what happened since the last report."""

    def __init__(self, one: Fleet, server: PostgresServer, url: str) -> None:
        self._one, self._reported = one, 0
        self._admin = psycopg.connect(server.url, autocommit=True)
        self._tables = psycopg.connect(url, autocommit=True)
        self._dbname = url.rpartition("/")[2]

    def report(self, name: str, began: float) -> None:
        """Print one window, and begin the next one."""
        runs = self._one.runs()
        new, self._reported = runs[self._reported :], len(runs)
        waits = [start - at for at, start, _ in new]
        seconds = time.monotonic() - began
        size, live, dead = self._tables.execute(SIZES).fetchone() or (0, 0, 0)
        line: dict[str, Any] = {"window": name, "per_second": round(len(new) / seconds)}
        if waits:
            line |= {"p50_ms": at_percent(waits, 50), "p99_ms": at_percent(waits, 99)}
        line |= {"mb": size >> 20, "live": live, "dead": dead, "statements": self._statements()}
        print(json.dumps(line), flush=True)

    def _statements(self) -> list[str]:
        sql = STATEMENTS.replace("current_database()", f"'{self._dbname}'").format(top=TOP)
        rows = self._admin.execute(sql).fetchall()
        self._admin.execute("SELECT pg_stat_statements_reset()")
        return [
            f"{calls} calls, {ms:.2f} ms, {pages} pages: {' '.join(query.split())[:90]}"
            for calls, ms, pages, query in rows
        ]


def windows(into: Windows, name: str, seconds: float) -> None:
    """Report windows for some time."""
    ends = time.monotonic() + seconds
    while (began := time.monotonic()) < ends:
        time.sleep(min(WINDOW, ends - began))
        into.report(name, began)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=800.0, help="tasks submitted per second")
    parser.add_argument("--without", type=float, default=60.0, help="seconds before")
    parser.add_argument("--beside", type=float, default=240.0, help="seconds beside it")
    parser.add_argument("--ordering", type=int, default=0, help="tasks of one ordering key")
    given = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(measuring_server())
        url = server.create_database()
        one = stack.enter_context(fleet(url, concurrency=64))
        into = Windows(one, server, url)
        one.start()
        one.wait_until_serving(1)
        if given.ordering:
            drain_key(one, into, given.ordering, "without")
        else:
            load = Load(one, given.rate)
            stack.callback(load.stop)
            windows(into, "without", given.without)
        snapshot = stack.enter_context(psycopg.connect(url))
        snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT count(*) FROM fairlead_tasks")
        if given.ordering:
            drain_key(one, into, given.ordering, "beside")
        else:
            windows(into, "beside", given.beside)


def drain_key(one: Fleet, into: Windows, tasks: int, name: str) -> None:
    """Report the drain of tasks of one ordering key."""
    began = time.monotonic()
    one.module.quick.options(ordering_key="one").submit_many([{"at": time.time()}] * tasks)
    one.drain()
    into.report(name, began)


if __name__ == "__main__":
    main()
