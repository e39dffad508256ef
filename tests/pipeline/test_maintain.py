"""`maintain` runs all steps of the night, whatever fails."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK, SystemClock
from fairlead.connect import task_store
from fairlead.errors import ConfigurationError
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.jobs.build import JobContext, build
from fairlead.pipeline.jobs.maintain import Maintained, Sources, maintain
from fairlead.pipeline.models import ATTEMPTS, RUNS
from fairlead.pipeline.runs import last_runs
from fairlead.pipeline.settings import PipelineSettings
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.table import BRANCH, PUBLISHED, branch_name
from tests.pipeline import test_builds
from tests.pipeline.conftest import SparkOn
from tests.pipeline.filling import add_attempts, connected, migrated
from tests.pipeline.frames import attempt
from tests.pipeline.tables_by_hand import put, row, rows_of
from tests.pipeline.warehouses import export, lake_in


class Later(SystemClock):
    """The system clock, 30 days ahead."""

    def now(self) -> int:
        return super().now() + 30 * DAY_US


class Night:
    """A store of some attempts, and a lake with them."""

    def __init__(self, folder: Path, attempts: int) -> None:
        url = f"sqlite:///{folder / 'tasks.db'}"
        migrated(url).database.close()
        with connected(url) as connection:
            add_attempts(connection, list(range(attempts)))
        self.history = SqlHistory(task_store(url).database)
        self.lake = lake_in(folder / "lake")
        if attempts:
            Exporter(self.history, self.lake, SYSTEM_CLOCK, rows=6).round()

    def sources(self) -> Sources:
        return Sources(self.lake, Later(), lambda: self.history)


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    night = Night(tmp_path, 20)
    yield night
    night.history.database.close()


DONE = dict.fromkeys(("compact", "expire", "reconcile", "check"), "done") | {"retain": "skipped"}
"""State of each step of a night in which no rows are old."""


def states(done: Maintained) -> dict[str, str]:
    return {step.name: step.state for step in done.steps}


def test_a_step_that_fails_is_named_and_the_others_run(night: Night) -> None:
    broken = Path(night.lake.table(ATTEMPTS).files()[0].path.removeprefix("file://"))
    data = broken.read_bytes()
    broken.write_bytes(b"no Parquet")
    done = maintain(night.sources())
    assert states(done) == DONE | {"compact": "failed", "reconcile": "failed", "check": "failed"}
    errors = [step.error or "" for step in done.failed]
    assert all(broken.name in error for error in errors)

    broken.write_bytes(data)
    done = maintain(night.sources())
    assert states(done) == DONE
    assert done.steps[2].what == "20 rows, 2 checks hold"
    assert done.steps[4].notes == ["the layers are compared after the next build"]


def test_an_unexpected_error_of_a_step_does_not_stop_the_others(
    night: Night, caplog: pytest.LogCaptureFixture
) -> None:
    def full() -> SqlHistory:
        raise OSError(28, "No space left on device")

    done = maintain(night.sources()._replace(history=full), skip=("check",))
    assert states(done) == DONE | {"reconcile": "failed", "check": "skipped"}
    assert done.failed[0].error == "OSError: [Errno 28] No space left on device"
    assert "step reconcile of the maintenance failed" in caplog.text


def test_rows_of_old_days_are_removed_once_they_agree_with_the_store(night: Night) -> None:
    def fails() -> SqlHistory:
        raise ConfigurationError("no store")

    skipped = maintain(night.sources()._replace(history=fails), keep_days=1, skip=("check",))
    assert states(skipped)["retain"] == "skipped"
    assert night.lake.table(ATTEMPTS).load().num_rows == 20
    done = maintain(night.sources(), keep_days=1, skip=("check",))
    assert states(done)["retain"] == "done", done
    assert night.lake.table(ATTEMPTS).load().num_rows == 0
    again = maintain(night.sources(), keep_days=1, skip=("check",))
    assert states(again)["retain"] == "nothing to do"


def test_records_of_old_days_and_branches_of_dead_builds_are_removed(night: Night) -> None:
    put(night.lake, RUNS, [row(RUNS, run_id="old", job="build")])
    builds = night.lake.table(ATTEMPTS)
    stored = builds.state().stored
    assert stored is not None and (snapshot := stored.current_snapshot()) is not None
    old, new = branch_name(SYSTEM_CLOCK.now() - 40 * DAY_US), branch_name(Later().now())
    with stored.manage_snapshots() as manage:
        manage.create_branch(snapshot.snapshot_id, old).create_tag(snapshot.snapshot_id, new)
    maintain(night.sources(), keep=timedelta(days=30), skip=("reconcile", "check"))
    stored = builds.state().stored
    assert stored is not None and new in stored.metadata.refs and old not in stored.metadata.refs
    assert "old" not in {each["run_id"] for each in rows_of(night.lake, RUNS)}


def test_a_build_that_died_before_main_moved_outlives_the_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_in(tmp_path)
    test_builds.publish(lake, "a")
    builds = Builds(lake)
    before, seen = builds.newest()
    branch = branch_name(SYSTEM_CLOCK.now())
    build = before.after(test_builds.staged(lake, "b", branch.removeprefix(BRANCH)), branch)
    assert builds.publish(build, seen, SYSTEM_CLOCK.now())

    monkeypatch.setattr("fairlead.pipeline.jobs.maintain.TABLES", test_builds.TABLES)
    sources = Sources(lake, Later(), lambda: pytest.fail("no step needs the history"))
    assert not maintain(sources, skip=("reconcile", "check")).failed
    assert test_builds.read_newest(lake) == test_builds.both("a", "b")
    assert test_builds.read_main(lake) == test_builds.both("a", "b")
    assert test_builds.refs(lake) == {"main", PUBLISHED}


def test_all_steps_run_on_a_built_lake(tmp_path: Path, spark_on: SparkOn) -> None:
    night = Night(tmp_path, 0)
    export(night.lake, ATTEMPTS, [attempt() for _ in range(3)], hours=6)
    export(night.lake, ATTEMPTS, [attempt() for _ in range(3)], hours=6)
    build(JobContext(spark_on(night.lake), night.lake, SYSTEM_CLOCK), PipelineSettings())
    done = maintain(night.sources())
    assert set(states(done).values()) == {"done", "skipped"}, done
    assert states(done)["retain"] == "skipped" and not done.steps[4].notes
    assert {"compact", "expire", "reconcile", "check"} <= set(last_runs(night.lake))
    [file] = night.lake.table(ATTEMPTS).files()
    assert "/sorted-" in file.path
    night.history.database.close()
