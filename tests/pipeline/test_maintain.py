"""`maintain` runs all steps of the night, whatever fails, and removes nothing during a build."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK, SystemClock
from fairlead.connect import task_store
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.jobs.build import FolderJob
from fairlead.pipeline.jobs.build import build_folder as build
from fairlead.pipeline.jobs.maintain import Maintained, Sources, maintain
from fairlead.pipeline.lake.alone import alone
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import DAY
from fairlead.pipeline.runs import last_runs
from fairlead.pipeline.settings import PipelineSettings
from tests.pipeline.filling import add_attempts, connected, migrated
from tests.pipeline.frames import attempt
from tests.pipeline.tables_by_hand import put


class Later(SystemClock):
    """The system clock, 30 days ahead."""

    def now(self) -> int:
        return super().now() + 30 * DAY


class Night:
    """A store of some attempts, and a lake with them."""

    def __init__(self, folder: Path, attempts: int) -> None:
        url = f"sqlite:///{folder / 'tasks.db'}"
        migrated(url).database.close()
        with connected(url) as connection:
            add_attempts(connection, list(range(attempts)))
        self.history = SqlHistory(task_store(url).database)
        self.lake = Lake(folder / "lake")
        if attempts:
            Exporter(self.history, self.lake, SYSTEM_CLOCK, rows=6).round()
        self.opened = 0
        self.spark: SparkSession | None = None
        self.catalog: str | None = None

    @contextmanager
    def job(self) -> Iterator[FolderJob]:
        self.opened += 1
        if self.spark is None:
            raise ConfigurationError("Java is missing")
        yield FolderJob(self.spark, self.lake, self.catalog, SYSTEM_CLOCK)

    def sources(self) -> Sources:
        return Sources(self.lake, Later(), lambda: self.history, self.job, self.catalog is not None)


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    night = Night(tmp_path, 20)
    yield night
    night.history.database.close()


def states(done: Maintained) -> dict[str, str]:
    return {step.name: step.state for step in done.steps}


def test_a_step_that_fails_is_named_and_the_others_run(night: Night) -> None:
    table = night.lake.table(ATTEMPTS)
    broken = Path(table.paths(table.manifests.newest())[0])
    data = broken.read_bytes()
    broken.write_bytes(b"no Parquet")
    done = maintain(night.sources())
    assert states(done) == {
        "compact": "failed",
        "expire": "done",
        "reconcile": "failed",
        "check": "failed",
    }
    errors = [step.error or "" for step in done.failed]
    assert broken.name in errors[0] and broken.name in errors[1] and errors[2] == "Java is missing"

    broken.write_bytes(data)
    done = maintain(night.sources())
    assert states(done) | {"check": ""} == {
        "compact": "done",
        "expire": "done",
        "reconcile": "done",
        "check": "",
    }
    assert done.steps[2].what == "20 rows, 2 checks hold"


def test_an_unexpected_error_of_a_step_does_not_stop_the_others(
    night: Night, caplog: pytest.LogCaptureFixture
) -> None:
    def full() -> SqlHistory:
        raise OSError(28, "No space left on device")

    done = maintain(night.sources()._replace(history=full), skip=("check",))
    assert states(done) == {
        "compact": "done",
        "expire": "done",
        "reconcile": "failed",
        "check": "skipped",
    }
    assert done.failed[0].error == "OSError: [Errno 28] No space left on device"
    assert "step reconcile of the maintenance failed" in caplog.text


def test_a_dry_run_changes_nothing(night: Night) -> None:
    before = {path: path.stat().st_mtime_ns for path in night.lake.root.rglob("*.*")}
    done = maintain(night.sources(), dry_run=True)
    assert set(states(done).values()) == {"planned"} and "hours would be" in done.steps[0].what
    after = {path: path.stat().st_mtime_ns for path in night.lake.root.rglob("*.*")}
    before.pop(night.lake.root / "_build.lock", None)
    after.pop(night.lake.root / "_build.lock", None)
    assert after == before and night.opened == 0 and set(last_runs(night.lake)) <= {"ingest"}


def test_the_night_waits_for_a_build_that_runs(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    locking, done = threading.Event(), []
    real = fcntl.flock

    def flock(*args: int) -> None:
        locking.set()
        real(*args)

    steps = ("compact", "reconcile", "check")
    night_run = threading.Thread(
        target=lambda: done.append(maintain(night.sources(), skip=steps))  # type: ignore[arg-type]
    )
    with alone(night.lake):
        monkeypatch.setattr(fcntl, "flock", flock)
        night_run.start()
        assert locking.wait(60)
        assert not done
    night_run.join()
    assert states(done[0])["expire"] == "done"


@pytest.mark.slow
def test_all_steps_share_one_spark_session(
    tmp_path: Path, spark: SparkSession, catalog: str
) -> None:
    night = Night(tmp_path, 0)
    put(night.lake, ATTEMPTS, [attempt() for _ in range(3)])
    night.spark, night.catalog = spark, catalog
    build(FolderJob(spark, night.lake, catalog, SYSTEM_CLOCK), PipelineSettings())
    # Iceberg refuses to remove files younger than a day by the system clock.
    done = maintain(night.sources()._replace(clock=SYSTEM_CLOCK))
    assert set(states(done).values()) == {"done"}, done
    assert night.opened == 1
    assert {"compact", "gc", "reconcile", "check"} <= set(last_runs(night.lake))
    night.history.database.close()
