"""A lake of 0.1 moves into Iceberg tables, each row once. tests/data/lake-0.1 was written by the code
of 0.1: attempts of two stores, one of a wrong clock, an erased key with its ledger, events, a report.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.cursors import attempts_cursor
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.jobs.migrate_lake import MOVED, migrate_lake
from fairlead.pipeline.ledger import LEDGER
from fairlead.pipeline.runs import last_runs
from fairlead.pipeline.tombstones import tombstone
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import Position
from tests.pipeline.frames import attempt
from tests.pipeline.tables_by_hand import put, rows_of
from tests.pipeline.warehouses import lake_in, root_of

ROOT = Path(__file__).parents[2]
OLD = ROOT / "tests" / "data" / "lake-0.1"
IDS = Counter(
    [*(f"t{n}{key}{i}" for n in range(3) for key in "bc" for i in range(2)), "wrong clock", "k0"]
)


@pytest.fixture
def lake(tmp_path: Path) -> Warehouse:
    return lake_in(tmp_path / "new")


def ids(lake: Warehouse) -> Counter[str]:
    return Counter(row["task_id"] for row in rows_of(lake, ATTEMPTS))


def check_moved(lake: Warehouse) -> None:
    """Check that everything of the old lake is in the new one, once."""
    assert ids(lake) == IDS
    assert sorted(row["task_id"] for row in rows_of(lake, EVENTS)) == ["e0", "e1", "e2"]
    [erased] = rows_of(lake, LEDGER)
    assert (erased["store_id"], erased["seq"]) == ("k", 2)
    seen = lake.table(ATTEMPTS).state()
    assert seen.erased == [tombstone(lake, "gone")] == lake.table(EVENTS).state().erased
    assert attempts_cursor(seen, "a") == Position(7, 212)
    assert last_runs(lake)["report"]["state"] == "done"
    assert lake.identity == (OLD / "_lake").read_text()


def test_an_old_lake_is_moved_once(lake: Warehouse) -> None:
    counted: Counter[str] = Counter()
    done = migrate_lake(OLD, lake, lambda name, rows: counted.update({name: rows}))
    assert done.rows == {table.name: counted[table.name] for table in MOVED}
    assert (done.rows[ATTEMPTS.name], done.ledger) == (14, 1)
    check_moved(lake)
    counted.clear()
    assert migrate_lake(OLD, lake, lambda name, rows: counted.update({name: rows})) == done
    assert not counted
    check_moved(lake)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commit", range(4))  # the ledger and three tables
def test_a_migration_that_is_killed_and_repeated_moves_each_row_once(
    tmp_path: Path, commit: int, moment: str
) -> None:
    new = tmp_path / "new"
    killed = subprocess.run(  # noqa: S603 - our own interpreter
        [
            sys.executable,
            "-m",
            "tests.pipeline.migrate_until",
            str(OLD),
            str(new),
            str(commit),
            moment,
        ],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -9, killed.stderr
    migrate_lake(OLD, lake_in(new), rows=3)
    check_moved(lake_in(new))


def test_a_lake_with_rows_of_its_own_takes_no_old_one(lake: Warehouse) -> None:
    put(lake, ATTEMPTS, [attempt()])
    with pytest.raises(ConfigurationError, match="has its own identity"):
        migrate_lake(OLD, lake)
    assert sum(ids(lake).values()) == 1


def test_rows_that_came_before_the_move_are_refused(lake: Warehouse) -> None:
    lake.take_identity((OLD / "_lake").read_text())
    put(lake, ATTEMPTS, [attempt()])
    with pytest.raises(ConfigurationError, match="has rows in bronze.attempts already"):
        migrate_lake(OLD, lake)


def test_an_old_lake_that_changes_after_its_move_is_refused(
    lake: Warehouse, tmp_path: Path
) -> None:
    old = shutil.copytree(OLD, tmp_path / "old")
    migrate_lake(old, lake)
    manifest = old / "bronze.events/_manifest/000000000002.json"
    text = manifest.read_text().replace('"number":2', '"number":3')
    manifest.with_name("000000000003.json").write_text(text)
    with pytest.raises(ConfigurationError, match="bronze.events of the old lake has changed"):
        migrate_lake(old, lake)


def test_the_error_about_a_damaged_old_lake_names_the_file(lake: Warehouse, tmp_path: Path) -> None:
    old = shutil.copytree(OLD, tmp_path / "old")
    [file] = (old / "bronze.events").glob("date=*/**/*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(BrokenLake, match=str(file)):
        migrate_lake(old, lake)
    manifest = old / "bronze.attempts/_manifest/000000000006.json"
    manifest.write_text(manifest.read_text().replace('"date=2026', '"../date=2026'))
    with pytest.raises(BrokenLake, match="no path below the table"):
        migrate_lake(old, lake_in(tmp_path / "other"))


def test_a_hashed_lake_stays_hashed(lake: Warehouse, tmp_path: Path) -> None:
    old = shutil.copytree(OLD, tmp_path / "old")
    (old / "_hashed").write_text("proof")
    migrate_lake(old, lake)
    assert lake.hash_proof == "proof"


def test_the_command_moves_a_lake_and_other_commands_lead_to_it(tmp_path: Path) -> None:
    old, new = shutil.copytree(OLD, tmp_path / "old"), tmp_path / "new"
    runner = CliRunner()
    refused = runner.invoke(app, ["pipeline", "status", "--lake", str(old)])
    assert refused.exit_code == 2 and "migrate-lake" in refused.output
    inside = runner.invoke(
        app, ["pipeline", "migrate-lake", str(old), "--lake", str(old / "inside")]
    )
    assert inside.exit_code == 2 and "lies in the old one" in inside.output
    done = runner.invoke(app, ["pipeline", "migrate-lake", str(old), "--lake", str(new)])
    assert done.exit_code == 0 and "build --full" in done.output, done.output
    check_moved(lake_in(new))


def test_what_a_process_of_0_1_leaves_in_a_lake_of_tables_is_no_lake_to_move(
    lake: Warehouse,
) -> None:
    put(lake, ATTEMPTS, [attempt()])
    folder = root_of(lake)
    (folder / "_lake").write_text("0" * 32)  # as 0.1 does when it opens a lake
    with pytest.raises(ConfigurationError, match=r"stop .* 0\.1.*remove _lake") as caught:
        lake_in(folder)
    assert "migrate-lake" not in str(caught.value)
    (folder / "_lake").unlink()
    assert sum(ids(lake_in(folder)).values()) == 1
