"""After an erasure no file of a lake in Iceberg has the key, listed or not. Without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.fairness import FAIRNESS
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.erase.wanted import ERASED, Wanted
from fairlead.pipeline.erase.warehouse import erase_from
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import BRANCH, PUBLISHED, Builds
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import T0, attempt, event
from tests.pipeline.tables_by_hand import row
from tests.pipeline.test_erase import files_with
from tests.pipeline.warehouses import export

KEY = "acme-corp"
WANTED = Wanted(frozenset({KEY}))


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(Location.of(tmp_path / "lake"))


def publish(warehouse: Warehouse, tables: dict[Table, list[dict[str, Any]]]) -> None:
    """Append rows to built tables, and publish them as a build."""
    snapshots = {}
    for table, rows in tables.items():
        here = warehouse.table(table)
        seen = here.state()
        written = here.write(pa.Table.from_pylist(rows, table.arrow()), "build", seen)
        assert here.append(written, {}, seen)
        snapshot = here.state().snapshot
        assert snapshot is not None
        snapshots[table.name] = snapshot
    builds = Builds(warehouse)
    before, seen = builds.newest()
    build = before.after(snapshots)
    assert builds.publish(build, seen, SYSTEM_CLOCK.now())
    builds.finish(build)


def texts_of(warehouse: Warehouse) -> list[bytes]:
    """Return the bounds of columns in the manifests, which are compressed."""
    found = []
    for name in warehouse.catalog.list_tables("fairlead"):
        stored = warehouse.catalog.load_table(name)
        for snapshot in stored.metadata.snapshots:
            for manifest in snapshot.manifests(stored.io):
                for entry in manifest.fetch_manifest_entry(stored.io, discard_deleted=False):
                    file = entry.data_file
                    found += [*(file.lower_bounds or {}).values()]
                    found += [*(file.upper_bounds or {}).values()]
    return found


def filled(warehouse: Warehouse) -> None:
    """Write rows of the key, of others, and mentions of it, over several commits."""
    failed = {"outcome": "failed", "error_type": "NoCover", "error_fp": 7}
    failure = attempt(**failed)
    for n, rows in enumerate(
        [
            [attempt(fairness_key=key, finished_at=9 + n) for n, key in enumerate([KEY, "b"])],
            [attempt(fairness_key=KEY, finished_at=30, error_text="card 4711", **failed)],
            [attempt(fairness_key="b", finished_at=60, error_text=f"after {KEY}", **failed)],
            [attempt(fairness_key=KEY, finished_at=7200)],
        ]
    ):
        export(warehouse, ATTEMPTS, rows, str(n))
    export(warehouse, EVENTS, [event(fairness_key=key, at=100) for key in (KEY, "b")], "1")
    publish(
        warehouse,
        {
            TASKS: [row(TASKS, fairness_key=key, task_id=key) for key in (KEY, "b", "acme-corp2")],
            FAIRNESS: [row(FAIRNESS, noisy_key=KEY, max_lag_key="b")],
            FAILURES: [
                row(
                    FAILURES,
                    hour=T0,
                    error_fp=7,
                    queue=failure["queue"],
                    name=failure["name"],
                    error_text="card 4711",
                )
            ],
            QUARANTINE: [row(QUARANTINE, raw=f'{{"fairness_key": "{KEY}"}}')],
        },
    )


def test_no_file_has_an_erased_key(warehouse: Warehouse) -> None:
    filled(warehouse)
    folder = warehouse.location.folder
    assert folder is not None
    stored = warehouse.catalog.load_table("fairlead.silver_tasks")
    rows = stored.scan().to_arrow()
    before = stored.current_snapshot()
    assert before is not None
    stored.manage_snapshots().create_branch(before.snapshot_id, f"{BRANCH}dead").commit()
    stored.append(rows, branch=f"{BRANCH}dead")  # left by a build that died
    assert len(files_with(folder, KEY)) >= 8

    done = erase_from(warehouse, WANTED, SYSTEM_CLOCK.now)

    assert {name: each.rows for name, each in done.items() if each.rows} == {
        ATTEMPTS.name: 3,
        EVENTS.name: 1,
        QUARANTINE.name: 1,
        TASKS.name: 1,
    }
    assert files_with(folder, KEY) == []
    assert not [bound for bound in texts_of(warehouse) if KEY[:4].encode() in bound]
    build, _ = Builds(warehouse).newest()
    seen = {
        table: warehouse.table(table).load(snapshot=build.snapshots[table.name]).to_pylist()
        for table in (TASKS, FAIRNESS, FAILURES)
    }
    assert sorted(r["fairness_key"] for r in seen[TASKS]) == ["acme-corp2", "b"]
    assert [r["noisy_key"] for r in seen[FAIRNESS]] == [ERASED]
    assert [r["error_text"] for r in seen[FAILURES]] == [None]
    kept = warehouse.table(ATTEMPTS).load().to_pylist()
    assert {r["fairness_key"] for r in kept} == {"b"}
    assert sorted(str(r["error_text"]) for r in kept) == ["None", f"after {ERASED}"]
    assert warehouse.table(ATTEMPTS).state().cursors == {"store": "3"}
    refs = warehouse.catalog.load_table("fairlead.silver_tasks").metadata.refs
    assert set(refs) == {"main", PUBLISHED}


def test_a_second_erasure_finds_nothing_and_keeps_the_build(warehouse: Warehouse) -> None:
    filled(warehouse)
    erase_from(warehouse, WANTED, SYSTEM_CLOCK.now)
    assert erase_from(warehouse, WANTED, SYSTEM_CLOCK.now) == {}
    builds = Builds(warehouse)
    build, _ = builds.newest()
    builds.finish(build)
    tasks = warehouse.table(TASKS).load(snapshot=build.snapshots[TASKS.name])
    assert sorted(tasks["fairness_key"].to_pylist()) == ["acme-corp2", "b"]


def test_a_build_that_has_read_the_key_cannot_publish_after_the_erasure(
    warehouse: Warehouse,
) -> None:
    filled(warehouse)
    builds = Builds(warehouse)
    before, seen = builds.newest()
    erase_from(warehouse, WANTED, SYSTEM_CLOCK.now)
    assert not builds.publish(before.after({}), seen, SYSTEM_CLOCK.now())


def test_a_lake_without_tables_or_builds_has_nothing_to_erase(warehouse: Warehouse) -> None:
    assert erase_from(warehouse, WANTED, SYSTEM_CLOCK.now) == {}
    export(warehouse, ATTEMPTS, [attempt(fairness_key=KEY), attempt(fairness_key="b")], "1")
    assert erase_from(warehouse, WANTED, SYSTEM_CLOCK.now)[ATTEMPTS.name].rows == 1
    folder = warehouse.location.folder
    assert folder is not None and files_with(folder, KEY) == []
