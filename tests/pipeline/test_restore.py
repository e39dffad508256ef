"""A lake that lost its catalog or files, or was moved or copied, says so, removes nothing, and can be
restored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.jobs.checks import check
from fairlead.pipeline.jobs.maintain import Sources, maintain
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.filling import add_attempts, connected, migrated
from tests.pipeline.test_maintain import Later
from tests.pipeline.warehouses import lake_in


class Kit:
    """A store with attempts, and the lake of the commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'tasks.db'}"
        migrated(self.url).database.close()
        self.finish(0, 20)

    def finish(self, first: int, last: int) -> None:
        """Add the attempts of these numbers to the store."""
        with connected(self.url) as connection:
            add_attempts(connection, list(range(first, last)))

    def clean(self) -> None:
        """Remove the attempts of the store, as its cleaning does after a month."""
        with connected(self.url) as connection:
            connection.execute("DELETE FROM fairlead_attempts")
            connection.commit()

    def run(self, *arguments: str, code: int = 0, lake: str = "lake") -> str:
        """Run a command on a lake in the folder, and return its output."""
        environment = {"FAIRLEAD_URL": self.url, "FAIRLEAD_LAKE": str(self.folder / lake)}
        ran = CliRunner().invoke(app, ["pipeline", *arguments], env=environment)
        assert ran.exit_code == code, ran.output
        assert "Traceback" not in ran.output
        if code:
            (line,) = ran.stderr.splitlines()
            return line
        return ran.stdout

    @property
    def lake(self) -> Warehouse:
        return lake_in(self.folder / "lake")

    def ids(self, lake: str = "lake") -> list[str]:
        found = lake_in(self.folder / lake).table(ATTEMPTS).load(columns=["task_id"])
        return sorted(found["task_id"].to_pylist())


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    kit = Kit(tmp_path)
    for first in range(20, 60, 10):
        kit.run("ingest")
        kit.finish(first, first + 10)
    kit.run("ingest")
    assert len(kit.ids()) == 60
    return kit


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.parquet")}


def sweep(lake: Warehouse) -> None:
    """Remove unlisted files of all tables, a month later."""
    no_store: Callable[[], Any] = lambda: pytest.fail("no step needs the store")  # noqa: E731
    done = maintain(Sources(lake, Later(), no_store), skip=("compact", "reconcile", "check"))
    assert not done.failed, done


def test_a_lost_catalog_is_an_error_and_restore_brings_all_tables_back(kit: Kit) -> None:
    before, rows, identity = files(kit.folder), kit.ids(), kit.lake.identity
    (kit.folder / "lake" / "catalog.db").unlink()
    kit.clean()
    for command in (
        ("ingest",),
        ("check",),
        ("maintain",),
        ("status",),
        ("erase", "acme", "--yes"),
    ):
        assert "fairlead pipeline restore" in kit.run(*command, code=1)
    assert files(kit.folder) == before
    assert "bronze.attempts" in kit.run("restore")
    assert kit.lake.identity == identity, "tombstones of erased keys depend on it"
    sweep(kit.lake)
    assert kit.ids() == rows
    kit.finish(60, 70)
    assert "10 attempts" in kit.run("ingest")
    assert "nothing to restore" in kit.run("restore")


def test_no_table_is_made_in_a_folder_that_has_metadata(kit: Kit) -> None:
    kit.lake.catalog.drop_table("fairlead.bronze_attempts")
    kit.finish(60, 70)
    assert "bronze.attempts" in kit.run("ingest", code=1)
    kit.run("restore")
    assert "10 attempts" in kit.run("ingest")
    assert len(kit.ids()) == 70


def test_files_of_a_history_that_the_catalog_has_lost_are_never_removed(kit: Kit) -> None:
    """The catalog was restored from an older copy, and new rows came before anybody noticed."""
    old = kit.folder / "copy.db"
    shutil.copy(kit.folder / "lake" / "catalog.db", old)
    for first in (60, 70, 80):
        kit.finish(first, first + 10)
        kit.run("ingest")
    before = files(kit.folder)
    shutil.copy(old, kit.folder / "lake" / "catalog.db")
    kit.finish(90, 95)
    kit.run("ingest")
    with pytest.raises(BrokenLake, match=r"metadata\.json: the catalog .* pipeline restore"):
        kit.lake.table(ATTEMPTS).sweep(SYSTEM_CLOCK.now() + DAY_US)
    assert before < files(kit.folder)


def test_a_catalog_from_an_older_copy_gets_the_newest_commits(kit: Kit) -> None:
    old = kit.folder / "copy.db"
    shutil.copy(kit.folder / "lake" / "catalog.db", old)
    for first in range(60, 74):  # metadata of the older catalog is removed meanwhile
        kit.finish(first, first + 1)
        kit.run("ingest")
    shutil.copy(old, kit.folder / "lake" / "catalog.db")
    assert "restore" in kit.run("check", code=1)
    kit.run("restore")
    assert len(kit.ids()) == 74
    assert "0 attempts" in kit.run("ingest")
    sweep(kit.lake)
    assert check(kit.lake, SYSTEM_CLOCK).state == "done"


def test_a_truncated_metadata_file_is_one_line_and_the_commit_before_comes_back(kit: Kit) -> None:
    stored = kit.lake.table(ATTEMPTS).state().stored
    assert stored is not None
    newest = Path(stored.metadata_location.removeprefix("file://"))
    newest.write_bytes(newest.read_bytes()[:100])
    for command in (("ingest",), ("check",), ("sql", "SELECT 1 FROM bronze.attempts")):
        assert "bronze.attempts: its metadata is damaged" in kit.run(*command, code=1)
    kit.run("restore")
    assert "10 attempts" in kit.run("ingest")
    assert kit.ids() == sorted(set(kit.ids())) and len(kit.ids()) == 60


def test_a_moved_lake_is_restored_with_all_snapshots(kit: Kit) -> None:
    rows, identity = kit.ids(), kit.lake.identity
    snapshots = [each.snapshot_id for each in kit.lake.table(ATTEMPTS).state().stored.snapshots()]  # type: ignore[union-attr]
    (kit.folder / "lake").rename(kit.folder / "moved")
    assert "fairlead pipeline restore" in kit.run("check", code=1, lake="moved")
    kit.run("restore", lake="moved")
    moved = lake_in(kit.folder / "moved")
    assert kit.ids("moved") == rows and moved.identity == identity
    for snapshot in snapshots:
        moved.table(ATTEMPTS).load(snapshot=snapshot)
    sweep(moved)
    assert kit.ids("moved") == rows
    kit.finish(60, 70)
    assert "10 attempts" in kit.run("ingest", lake="moved")
    kit.run("maintain", lake="moved")


@pytest.mark.parametrize("with_catalog", [True, False])
def test_a_copy_becomes_a_lake_of_its_own(kit: Kit, with_catalog: bool) -> None:
    shutil.copytree(kit.folder / "lake", kit.folder / "copy")
    if not with_catalog:
        (kit.folder / "copy" / "catalog.db").unlink()
    before = sorted((kit.folder / "lake").rglob("*"))
    kit.run("restore", lake="copy")
    assert sorted((kit.folder / "lake").rglob("*")) == before
    copy = lake_in(kit.folder / "copy")
    assert copy.identity == kit.lake.identity and copy.reader != kit.lake.reader
    kit.finish(60, 70)
    for lake in ("copy", "lake"):
        assert "10 attempts" in kit.run("ingest", lake=lake)
        kit.run("maintain", lake=lake)
    shutil.rmtree(kit.folder / "lake")
    assert len(kit.ids("copy")) == 70


def delete(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 16
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [delete, truncate, flip])
def test_a_damaged_file_is_one_line_with_the_cure_and_its_rows_can_be_given_up(
    kit: Kit, damage: Callable[[Path], None]
) -> None:
    file = Path(kit.lake.table(ATTEMPTS).files()[0].path.removeprefix("file://"))
    lost = kit.lake.table(ATTEMPTS).files()[0].rows
    damage(file)
    line = kit.run("check", code=1)
    assert file.name in line and "fairlead pipeline restore --drop-damaged" in line
    if damage is not flip:
        line = kit.run("sql", "SELECT * FROM bronze.attempts", code=1)
        assert file.name in line and "fairlead pipeline check" in line
        assert "Permission" not in line
    line = kit.run("maintain", "--skip", "reconcile", "--skip", "compact", code=1)
    assert file.name in line
    dropped = kit.run("restore", "--drop-damaged")
    assert f"bronze.attempts: {lost} rows" in dropped
    kit.run("check")
    assert len(kit.ids()) == 60 - lost
