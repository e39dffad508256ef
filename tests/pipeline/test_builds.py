"""Readers see one build, whole, whatever dies while it is published. Without Spark."""

from __future__ import annotations

import itertools
import os
import signal
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.schema import Column, Table
from fairlead.pipeline.warehouse.builds import BUILDS, Build, Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import BRANCH, PUBLISHED
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.forks import exit_code
from tests.pipeline.frames import T0

HOURLY = Table(
    "silver.things",
    "things",
    key=("id",),
    instant="at",
    columns=(
        Column("id", "string", "which"),
        Column("at", "timestamp", "when"),
    ),
)
DAILY = HOURLY._replace(name="gold.things", by="date")
TABLES = (DAILY, HOURLY)
NOW = 1_800_000_000_000_000


def stage(warehouse: Warehouse, table: Table, name: str, job: str) -> int:
    """Write a row to a branch, as a job does; return the snapshot."""
    here = warehouse.table(table)
    if here.state().snapshot is None:
        here.update(lambda seen: {})  # PyIceberg needs a snapshot before a branch; Spark does not
    rows = pa.Table.from_pylist([{"id": name, "at": T0 + timedelta(hours=1)}], table.arrow())
    stored = warehouse.catalog.load_table(f"fairlead.{table.name.replace('.', '_')}")
    schema = stored.schema().as_arrow()
    before = stored.current_snapshot()
    assert before is not None
    stored.manage_snapshots().create_branch(before.snapshot_id, f"{BRANCH}{job}").commit()
    cast = pa.Table.from_arrays(
        [rows[field.name].cast(field.type) for field in schema], names=schema.names
    )
    stored.append(cast, branch=f"{BRANCH}{job}")
    return Builds(warehouse).head(table, f"{BRANCH}{job}", before.snapshot_id)[0]


def staged(warehouse: Warehouse, name: str, job: str) -> dict[str, int]:
    return {table.name: stage(warehouse, table, name, job) for table in TABLES}


def publish(warehouse: Warehouse, name: str) -> None:
    """Write and publish both tables."""
    builds = Builds(warehouse)
    before, seen = builds.newest()
    build = before.after(staged(warehouse, name, name), f"{BRANCH}{name}")
    assert builds.publish(build, seen, NOW)
    builds.finish(build)


def read_newest(warehouse: Warehouse) -> dict[str, list[str]]:
    """Return the ids in each table, as readers of the newest build see them."""
    build, _ = Builds(warehouse).newest()
    return {
        table.name: sorted(
            warehouse.table(table)
            .load(snapshot=build.snapshots[table.name])
            .column("id")
            .to_pylist()
        )
        for table in TABLES
        if table.name in build.snapshots
    }


def read_main(warehouse: Warehouse) -> dict[str, list[str]]:
    """Return the ids in each table, as engines that know no builds see them."""
    return {
        table.name: sorted(warehouse.table(table).load().column("id").to_pylist())
        for table in TABLES
    }


def refs(warehouse: Warehouse) -> set[str]:
    stored = [
        warehouse.catalog.load_table(f"fairlead.{layer}_things") for layer in ("silver", "gold")
    ]
    return {name for each in stored for name in each.metadata.refs}


def both(*ids: str) -> dict[str, list[str]]:
    return {table.name: list(ids) for table in TABLES}


def test_before_the_first_build_readers_see_no_table(warehouse: Warehouse) -> None:
    build, state = Builds(warehouse).newest()
    assert build == Build() and state.snapshot is None


def test_a_build_is_invisible_before_it_is_published_and_whole_afterwards(
    warehouse: Warehouse,
) -> None:
    publish(warehouse, "a")
    builds = Builds(warehouse)
    before, seen = builds.newest()
    build = before.after(staged(warehouse, "b", "b"), f"{BRANCH}b")
    assert read_newest(warehouse) == read_main(warehouse) == both("a")
    assert builds.publish(build, seen, NOW)
    assert read_newest(warehouse) == both("a", "b") and read_main(warehouse) == both("a")
    builds.finish(build)
    assert read_main(warehouse) == both("a", "b") and refs(warehouse) == {"main", PUBLISHED}
    rows = warehouse.table(BUILDS).load().to_pylist()
    assert [row["table"] for row in rows if row["build_id"] == build.id] == [
        "gold.things",
        "silver.things",
    ]


def test_a_table_that_no_build_changed_keeps_its_snapshot(warehouse: Warehouse) -> None:
    publish(warehouse, "a")
    builds = Builds(warehouse)
    before, seen = builds.newest()
    build = before.after({HOURLY.name: stage(warehouse, HOURLY, "b", "b")})
    assert builds.publish(build, seen, NOW)
    builds.finish(build)
    wanted = {HOURLY.name: ["a", "b"], DAILY.name: ["a"]}
    assert read_newest(warehouse) == read_main(warehouse) == wanted


def test_work_of_another_engine_upon_the_build_stays(warehouse: Warehouse) -> None:
    publish(warehouse, "a")
    stored = warehouse.catalog.load_table("fairlead.silver_things")
    stored.append(stored.scan().to_arrow())
    builds = Builds(warehouse)
    builds.finish(builds.newest()[0])
    assert read_main(warehouse) == {HOURLY.name: ["a", "a"], DAILY.name: ["a"]}


def test_a_build_that_begins_keeps_the_branches_of_one_that_still_runs(
    warehouse: Warehouse,
) -> None:
    """Spark would begin a branch that is gone anew, without the rows of other partitions."""
    publish(warehouse, "a")
    builds = Builds(warehouse)
    before, _ = builds.newest()
    builds.branch(HOURLY, before.snapshots[HOURLY.name], f"{BRANCH}b")  # nothing is written yet
    builds.finish(before)
    assert f"{BRANCH}b" in refs(warehouse)


def test_a_branch_that_was_removed_and_begun_anew_is_refused(warehouse: Warehouse) -> None:
    publish(warehouse, "a")
    builds = Builds(warehouse)
    base = builds.newest()[0].snapshots[HOURLY.name]
    stored = warehouse.table(HOURLY).state().stored
    assert stored is not None
    rows = stored.scan().to_arrow()
    with pytest.raises(BrokenLake, match="branch of this build"):
        builds.head(HOURLY, f"{BRANCH}b", base)
    with pytest.raises(BrokenLake, match="branch of this build"):
        builds.clear(HOURLY, None, f"{BRANCH}b")
    stored.append(rows, branch=f"{BRANCH}b")
    with pytest.raises(BrokenLake, match="branch of this build"):
        builds.head(HOURLY, f"{BRANCH}b", base)


def test_the_slow_end_of_a_publication_moves_no_tag_back(warehouse: Warehouse) -> None:
    publish(warehouse, "a")
    builds = Builds(warehouse)
    slow, _ = builds.newest()
    publish(warehouse, "b")
    builds.finish(slow)
    newest, _ = builds.newest()
    for table in TABLES:
        stored = warehouse.table(table).state().stored
        assert stored is not None
        assert stored.metadata.refs[PUBLISHED].snapshot_id == newest.snapshots[table.name]


def test_the_error_about_a_lost_snapshot_names_the_table_and_the_cure(
    warehouse: Warehouse,
) -> None:
    publish(warehouse, "a")
    builds = Builds(warehouse)
    build = builds.newest()[0].after({HOURLY.name: 1})
    with pytest.raises(BrokenLake, match="silver.things: the snapshot 1 .* build --full"):
        builds.finish(build)
    kept = builds.without_lost(build)
    assert kept.snapshots == {DAILY.name: build.snapshots[DAILY.name]}
    builds.finish(kept)


def test_the_snapshot_that_a_build_read_outlives_the_ones_after_it(warehouse: Warehouse) -> None:
    here = warehouse.table(HOURLY)
    here.update(lambda seen: {"a": "1"})
    read = here.state().snapshot
    assert read is not None
    builds = Builds(warehouse)
    before, seen = builds.newest()
    build = msgspec.structs.replace(before.after({}), sources={HOURLY.name: read})
    assert builds.publish(build, seen, NOW)
    builds.finish(build)
    here.update(lambda seen: {"a": "2"})
    here.update(lambda seen: {"a": "3"})
    here.expire(4 * NOW)
    assert here.changed(read) == set()


def publish_until(location: Location, commit: int, moment: str) -> None:
    """Publish both tables, and kill the process `before` or `after` the commit with this number."""
    warehouse = Warehouse(location)
    builds = Builds(warehouse)
    before, seen = builds.newest()
    build = before.after(staged(warehouse, "b", "b"), f"{BRANCH}b")
    real, commits = SqlCatalog.commit_table, itertools.count()

    def then_dies(*args: Any, **kwargs: Any) -> Any:
        dies = next(commits) == commit
        if dies and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*args, **kwargs)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    SqlCatalog.commit_table = then_dies  # type: ignore[method-assign]
    builds.publish(build, seen, NOW)
    builds.finish(build)


# Commits of a publication: ops.builds, then each of the two tables.
@pytest.mark.parametrize("commit", [0, 1, 2])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_killed_at_any_commit_leaves_readers_one_build(
    warehouse: Warehouse, commit: int, moment: str
) -> None:
    publish(warehouse, "a")
    killed = exit_code(publish_until, warehouse.location, commit, moment)
    assert killed == -signal.SIGKILL
    published = (commit, moment) != (0, "before")
    after = both("a", "b") if published else both("a")
    assert read_newest(warehouse) == after
    builds = Builds(warehouse)
    builds.finish(builds.newest()[0])
    assert read_newest(warehouse) == read_main(warehouse) == after
    publish(warehouse, "c")
    wanted = sorted([*after[HOURLY.name], "c"])
    assert read_newest(warehouse) == read_main(warehouse) == both(*wanted)
