"""Bulk submit from a DataFrame compared with the fastest bare insert of the same rows into the same
table with the same indexes.

python bench/pipeline_submit.py [--tasks 1000000] [--runs 3] [--only postgres,sqlite] [--json]

The rows are in Parquet; Spark (local[2]) is started and warm before the clock runs. The bare way is
COPY of the ready binary rows (PostgreSQL) or one executemany of ready tuples (SQLite) in one
transaction, into an empty copy of fairlead_tasks; a second yardstick is COPY into a table without
any index. The ways alternate; the medians count. Also measured: the same submission a second time,
which must change nothing. Exit code 1 unless the goals are met.
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

GOAL_RATIO = 0.3
GOAL_AGAIN = 0.05
PIECE = 1 << 20
WAYS = ("bulk submit", "again", "bare", "bare, no index")


def seconds(work: Callable[[], Any]) -> float:
    """Return the seconds that the work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def user_rows(spark: Any, folder: pathlib.Path, tasks: int) -> Any:
    """Return orders of 1,000 tenants, in a Parquet file of a few partitions."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    path = str(folder / f"orders-{tasks}.parquet")
    spark.range(0, tasks, 1, 8).select(
        F.col("id").alias("order"),
        (F.col("id") * 7919 % 100_000 / 100).alias("amount"),
        F.concat(F.lit("delivered to the door of house number "), F.col("id") % 977).alias("note"),
        F.concat(F.lit("tenant-"), F.col("id") % 1000).alias("fairness_key"),
    ).write.parquet(path)
    return spark.read.parquet(path)


def submit(df: Any, url: str, tasks: int) -> None:
    """Submit all rows; all must be there afterwards, also at a repeated submit."""
    from fairlead.pipeline.submit import bulk_submit

    totals = bulk_submit(df, url=url, queue="orders", task="pay", submission_id="bench")
    assert (totals.inserted, totals.duplicate) == (tasks, 0), totals


def migrated(url: str) -> str:
    """Create the tables, and return the URL."""
    from fairlead import App

    app = App(url)
    app.migrate()
    app.close()
    return url


class Postgres:
    """A PostgreSQL server for this run, with a fresh database for every measurement."""

    name = "PostgreSQL"

    def __init__(self, cleanup: contextlib.ExitStack) -> None:
        from services.postgres import PostgresServer

        self._server = cleanup.enter_context(PostgresServer())

    def url(self) -> str:
        return migrated(self._server.create_database())

    def bare(self, filled: str) -> Iterator[tuple[str, float]]:
        """COPY the rows of the filled database into an empty one, and there into a table without
        indexes."""
        import psycopg

        with (
            psycopg.connect(filled) as source,
            source.cursor().copy("COPY fairlead_tasks TO STDOUT (FORMAT binary)") as copy,
        ):
            data = b"".join(copy)
        with psycopg.connect(self.url()) as target:
            target.execute("CREATE TABLE plain (LIKE fairlead_tasks)")
            target.commit()
            for way, table in (("bare", "fairlead_tasks"), ("bare, no index", "plain")):
                yield way, seconds(lambda table=table: self._copy(target, table, data))  # type: ignore[misc]

    @staticmethod
    def _copy(target: Any, table: str, data: bytes) -> None:
        with target.cursor().copy(f"COPY {table} FROM STDIN (FORMAT binary)") as copy:
            for start in range(0, len(data), PIECE):
                copy.write(data[start : start + PIECE])
        target.commit()


class Sqlite:
    """A fresh SQLite file for every measurement."""

    name = "SQLite"

    def __init__(self, cleanup: contextlib.ExitStack) -> None:
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="pipeline-submit-"))
        cleanup.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._files = 0

    def url(self) -> str:
        self._files += 1
        return migrated(f"sqlite:///{self._folder / str(self._files)}.db")

    def bare(self, filled: str) -> Iterator[tuple[str, float]]:
        """Insert the rows of the filled file into an empty one by executemany, in one transaction,
        flushed to disk like ours."""
        with contextlib.closing(sqlite3.connect(filled.removeprefix("sqlite:///"))) as source:
            rows = source.execute("SELECT * FROM fairlead_tasks").fetchall()
        path = self.url().removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as target:
            target.execute("PRAGMA synchronous = FULL")
            yield "bare", seconds(lambda: self._insert(target, rows))
        for file in pathlib.Path(path).parent.glob(f"{pathlib.Path(path).name}*"):
            file.unlink()

    @staticmethod
    def _insert(target: sqlite3.Connection, rows: list[Any]) -> None:
        target.execute("BEGIN IMMEDIATE")
        target.executemany(
            f"INSERT INTO fairlead_tasks VALUES ({', '.join('?' * len(rows[0]))})", rows
        )
        target.execute("COMMIT")


STORES = {"postgres": Postgres, "sqlite": Sqlite}


def measure(store: Any, df: Any, tasks: int) -> dict[str, float]:
    """Measure one round, and return the seconds of each way."""
    url = store.url()
    found = {
        "bulk submit": seconds(lambda: submit(df, url, tasks)),
        "again": seconds(lambda: submit(df, url, tasks)),
    }
    return found | dict(store.bare(url))


def report(name: str, rounds: list[dict[str, float]], tasks: int) -> dict[str, Any]:
    """Return medians, spread, and the distance from the goals."""
    medians = {way: statistics.median(r[way] for r in rounds) for way in WAYS if way in rounds[0]}
    spread = {way: (min(r[way] for r in rounds), max(r[way] for r in rounds)) for way in medians}
    return {
        "store": name,
        "tasks": tasks,
        "seconds": medians,
        "spread": spread,
        "rows_per_s": {way: tasks / took for way, took in medians.items() if way != "again"},
        "ratio": medians["bare"] / medians["bulk submit"],
        "again": medians["again"] / medians["bulk submit"],
    }


def table(found: list[dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    lines = [
        "| store | way | seconds (least to most) | rows/s | bulk submit is |",
        "|---|---|--:|--:|--:|",
    ]
    for one in found:
        for way, took in one["seconds"].items():
            least, most = one["spread"][way]
            rate = f"{one['rows_per_s'][way]:,.0f}" if way in one["rows_per_s"] else ""
            share = one["seconds"][way] / one["seconds"]["bulk submit"]
            beside = (
                ""
                if way == "bulk submit"
                else f"{share:.3f} of its rate"
                if way != "again"
                else f"{share:.1%} of the first"
            )
            lines.append(
                f"| {one['store']} | {way} | {took:.2f} ({least:.2f} to {most:.2f}) | {rate} |"
                f" {beside} |"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default=",".join(STORES))
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    if unknown := set(wanted.only.split(",")) - STORES.keys():
        parser.error(f"--only {', '.join(sorted(unknown))}: known are {', '.join(STORES)}")
    from fairlead.pipeline.session import session

    with contextlib.ExitStack() as cleanup:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="pipeline-rows-"))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        spark = session("local[2]", "bulk submit, measured")
        cleanup.callback(spark.stop)
        df = user_rows(spark, folder, wanted.tasks)
        warm = user_rows(spark, folder, 10_000)
        found = []
        for name in wanted.only.split(","):
            store = STORES[name](cleanup)
            submit(warm, store.url(), 10_000)
            rounds = []
            for number in range(wanted.runs):
                print(
                    f"{store.name}: round {number + 1} of {wanted.runs}",
                    file=sys.stderr,
                    flush=True,
                )
                rounds.append(measure(store, df, wanted.tasks))
            found.append(report(store.name, rounds, wanted.tasks))
    print(json.dumps(found, indent=2) if wanted.json else table(found))
    return (
        0 if all(one["ratio"] >= GOAL_RATIO and one["again"] < GOAL_AGAIN for one in found) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
