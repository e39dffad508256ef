"""The stream of alerts writes gold.incidents beside the job `incidents`, and keeps a small state that
survives restarts."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.incidents.heartbeat import Heartbeat, encode
from fairlead.pipeline.incidents.watch import Alert, Rules
from fairlead.pipeline.jobs.build import digest
from fairlead.pipeline.jobs.incidents import FOUND_BY_ALERTS, incident_of, incidents, keep
from fairlead.pipeline.settings import Cost, PipelineSettings, Time
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import WarehouseTable
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import at
from tests.pipeline.silver_rows import waited
from tests.pipeline.tables_by_hand import MemoryTables, micros, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lake_in(folder: Path) -> Warehouse:
    return Warehouse(Location.of(folder / "lake"))


def alert(kind: str, second: int, *, over: int | None = None, tasks: int = 0) -> Alert:
    """Return an alert of queue `q`, raised at `second` and over at `over` (seconds after T0)."""
    start = micros(at(second))
    return Alert(
        kind, "q", "*", start, start if over is None else micros(at(over)), over is not None, tasks
    )


def incidents_in(rows: Iterable[dict[str, Any]]) -> list[tuple[str, bool, str | None]]:
    return sorted((row["kind"], row["is_over"], row["found_by"]) for row in rows)


def test_an_alert_is_an_open_incident_until_it_ends(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    tables = SmallTables(lake)
    keep(tables, [])
    assert rows_of(lake, INCIDENTS) == []
    keep(tables, [alert("stall", 600), alert("flood", 610)])
    assert incidents_in(rows_of(lake, INCIDENTS)) == [
        ("flood", False, FOUND_BY_ALERTS),
        ("stall", False, FOUND_BY_ALERTS),
    ]
    for _ in range(2):  # a repeated batch
        keep(tables, [alert("stall", 600, over=900, tasks=7)])
    assert incidents_in(rows_of(lake, INCIDENTS)) == [
        ("flood", False, FOUND_BY_ALERTS),
        ("stall", True, FOUND_BY_ALERTS),
    ]
    over = next(row for row in rows_of(lake, INCIDENTS) if row["kind"] == "stall")
    assert (over["start_at"], over["end_at"], over["tasks_delayed"]) == (at(600), at(900), 7)


def test_an_alert_that_starts_and_ends_in_one_batch_is_one_incident(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    keep(SmallTables(lake), [alert("stall", 600), alert("stall", 600, over=640)])
    assert incidents_in(rows_of(lake, INCIDENTS)) == [("stall", True, FOUND_BY_ALERTS)]


def test_the_batch_job_replaces_its_own_incidents_only(
    tmp_path: Path,
) -> None:
    stalled = [waited(minute, "a", depth_min=2, depth_end=2) for minute in range(10, 15)]
    tables = MemoryTables({BACKLOG.name: stalled})
    # The tables end with the hour, so only alerts show an incident that began later.
    late = alert("flood", 3700)
    keep(tables, [alert("stall", 630), alert("stuck", 700), late])
    for _ in range(2):
        incidents(lake_in(tmp_path), tables, SYSTEM_CLOCK, Rules())
        assert incidents_in(tables.rows(INCIDENTS)) == [
            ("flood", False, FOUND_BY_ALERTS),
            ("stall", True, None),
            ("stuck", False, FOUND_BY_ALERTS),
        ]
    keep(tables, [msgspec.structs.replace(late, is_over=True, at=late.at + MICROS)])
    assert incidents_in(tables.rows(INCIDENTS)) == [
        ("flood", True, FOUND_BY_ALERTS),
        ("stall", True, None),
        ("stuck", False, FOUND_BY_ALERTS),
    ]


def test_a_write_that_loses_to_a_concurrent_change_of_the_table_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_in(tmp_path)
    replace, refused = WarehouseTable.replace, []

    def replaced(table: WarehouseTable, *args: Any) -> bool:
        if len(refused) < 3:
            refused.append(args)
            keep(SmallTables(lake), [alert("flood", 60 * len(refused))])
        return replace(table, *args)

    monkeypatch.setattr(WarehouseTable, "replace", replaced)
    keep(SmallTables(lake), [alert("stall", 600)])
    assert [kind for kind, _, _ in incidents_in(rows_of(lake, INCIDENTS))] == [
        *["flood"] * 3,
        "stall",
    ]


def test_times_of_alerts_cause_no_rebuild_of_tables() -> None:
    assert digest(PipelineSettings(alerts=Rules(stall_seconds=300))) == digest(PipelineSettings())
    assert digest(PipelineSettings(cost=Cost(workers=2))) != digest(PipelineSettings())
    assert digest(PipelineSettings(time=Time("Asia/Tokyo"))) != digest(PipelineSettings())


class Query:
    """A query whose batches end with each item of `ends` in turn: an error, or None for success."""

    def __init__(self, ends: list[Exception | None]) -> None:
        self._ends = ends
        self.lastProgress: Any = None

    def awaitTermination(self, _: float) -> bool:
        error = self._ends.pop(0)
        if error is not None:
            raise error
        self.lastProgress = {"batchId": 1}
        return False

    def stop(self) -> None: ...


AWAY = RuntimeError("... fairlead.errors.StoreUnavailable: Kafka at 127.0.0.1: away")
WRONG = RuntimeError("... fairlead.errors.ConfigurationError: no such topic")
OF_SPARK = RuntimeError("Python worker failed to connect back")


def test_rare_spark_failures_and_long_kafka_outages_do_not_end_the_alerts() -> None:
    from fairlead.pipeline.jobs.alerts import watch
    from fairlead.pipeline.jobs.follow_loop import MOST_FAILURES

    ends: list[Exception | None] = [AWAY] * 20 + [OF_SPARK] * MOST_FAILURES + [None, WRONG]
    with pytest.raises(ConfigurationError, match="no such topic"):
        watch(lambda: Query(ends), threading.Event(), pause=0.0)
    assert ends == []
    ends = [OF_SPARK] * 20
    with pytest.raises(RuntimeError, match="connect back"):
        watch(lambda: Query(ends), threading.Event(), pause=0.0)
    assert len(ends) == 20 - MOST_FAILURES - 1


def test_a_worker_of_spark_loads_no_library_of_the_lake_for_the_watch() -> None:
    """Spark waits ten seconds for a worker, and on a busy machine these libraries take as long."""
    libraries = {"duckdb", "pandas", "pyarrow", "pyiceberg"}
    script = (
        f"import sys, fairlead.pipeline.alerts.processor; print({libraries} & {{*sys.modules}})"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == "set()\n"


# on Spark -----------------------------------------------------------------------------------------


class Heartbeats:
    """A stream of heartbeats from a folder, and the alerts raised from it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.folder = folder
        (folder / "in").mkdir()
        self._count = 0
        self.at = micros(at(0))
        self.raised: list[Alert] = []
        self.rules = Rules(warm_up_seconds=0)

    def put(self, seconds: int, **what: Any) -> None:
        rows = []
        for _ in range(0, seconds, 2):
            self.at += 2 * MICROS
            heartbeat = Heartbeat("s", "q", "one", self.at, **what)
            message = encode(heartbeat).decode()
            rows.append(
                {"store_id": "s", "queue": "q", "kafka_offset": self.at, "heartbeat": message}
            )
        self._count += 1
        temporary = self.folder / f".{self._count}"
        temporary.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
        temporary.rename(self.folder / "in" / f"{self._count}.json")

    @contextmanager
    def running(self, *callbacks: Callable[[Sequence[Alert]], None]) -> Iterator[Any]:
        from fairlead.pipeline.jobs.alerts import alerts

        frame = self._spark.readStream.schema(
            "store_id string, queue string, kafka_offset bigint, heartbeat string"
        ).json(str(self.folder / "in"))

        def on_alerts(raised: Sequence[Alert]) -> None:
            for callback in (self.raised.extend, *callbacks):
                callback(raised)

        query = alerts(frame, self.folder / "checkpoint", self.rules, on_alerts, every=0.5)
        try:
            yield query
        finally:
            query.stop()

    def until(self, query: Any, count: int) -> None:
        """Wait until `count` alerts were raised."""
        self.until_so(query, lambda: len(self.raised) >= count)

    def until_so(self, query: Any, is_so: Callable[[], bool]) -> None:
        """Poll until `is_so`, because Spark does not notify of its progress."""
        until = time.monotonic() + 120
        while not is_so():
            assert query.exception() is None
            assert time.monotonic() < until, (self.raised, query.lastProgress)
            time.sleep(0.1)


@pytest.fixture
def heartbeats(spark: SparkSession, tmp_path: Path) -> Heartbeats:
    return Heartbeats(spark, tmp_path)


def test_the_state_of_alerts_is_kept_in_rocksdb_and_survives_a_restart(
    heartbeats: Heartbeats,
) -> None:
    heartbeats.put(60, failed=5, done=1, keys={"a": 40}, arrived=40)
    with heartbeats.running() as query:
        heartbeats.until(query, 2)
        # Wait for the commit of the batch; otherwise the next query would repeat its alerts.
        heartbeats.until_so(
            query, lambda: any(each["numInputRows"] for each in query.recentProgress)
        )
        assert sorted(each.kind for each in heartbeats.raised) == ["error burst", "flood"]
    heartbeats.put(400, done=5)
    with heartbeats.running() as query:
        heartbeats.until(query, 4)
        heartbeats.until_so(
            query, lambda: bool(query.lastProgress and query.lastProgress["stateOperators"])
        )
        progress = query.lastProgress
    begun = {incident_of(each) for each in heartbeats.raised if not each.is_over}
    assert {incident_of(each) for each in heartbeats.raised if each.is_over} == begun and len(
        begun
    ) == 2
    assert any("rocksdb" in name for name in progress["stateOperators"][0]["customMetrics"])


def test_a_batch_whose_callback_failed_is_delivered_again(heartbeats: Heartbeats) -> None:
    def fails(_: Sequence[Alert]) -> None:
        raise RuntimeError("the disk is full")

    heartbeats.put(60, failed=5)
    with heartbeats.running(fails) as query:
        with pytest.raises(Exception, match="the disk is full"):
            query.awaitTermination(120)
    first = list(heartbeats.raised)
    with heartbeats.running() as query:
        heartbeats.until(query, 2 * len(first))
    assert heartbeats.raised == first * 2 and len(first) == 1


def test_only_recently_active_keys_have_state(heartbeats: Heartbeats) -> None:
    heartbeats.rules = Rules(forget_seconds=2.0)
    heartbeats.put(20, keys={f"k{n}": 1 for n in range(200)}, arrived=200)
    with heartbeats.running() as query:

        def rows() -> int:
            found = [
                each["numRowsTotal"] for p in query.recentProgress for each in p["stateOperators"]
            ]
            return found[-1] if found else -1

        heartbeats.until_so(query, lambda: rows() >= 200)
        heartbeats.until_so(
            query, lambda: rows() < 200
        )  # keys without tasks are dropped from the state


def test_a_queue_without_events_is_reported(heartbeats: Heartbeats) -> None:
    heartbeats.rules = Rules(queues={"q": {"silence_seconds": 3.0}})
    heartbeats.put(4, done=1)
    with heartbeats.running() as query:
        heartbeats.until(query, 1)
        (silence,) = heartbeats.raised
        assert (silence.kind, silence.start, silence.is_over) == ("silence", heartbeats.at, False)
        heartbeats.put(4, done=1)
        heartbeats.until(query, 2)
        assert (
            heartbeats.raised[1].kind,
            heartbeats.raised[1].start,
            heartbeats.raised[1].is_over,
        ) == (
            "silence",
            silence.start,
            True,
        )
