"""Workers of an application with a lake export each attempt once, one worker at a time, and the store
is cleaned."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import MICROS
from fairlead.engine.settings import Intervals
from fairlead.errors import ConfigurationError
from fairlead.model.history import START, Reader
from fairlead.operate.doctor import Finding, examine
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.exporter_poller import PolledExporter
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.testing import drain, running, settled
from fairlead.web.lake import Lake
from tests.builders import idle
from tests.pipeline.warehouses import root_of
from tests.waiting import until

SOON = 30.0
OFTEN = Intervals(export=0.05, reconcile=0.2)


@pytest.fixture
def app(store_url: str, tmp_path: Path) -> Iterator[App]:
    application = App(store_url, lake=str(tmp_path / "lake"))
    application.migrate()
    yield application
    application.close()


def exported(lake: Warehouse) -> list[str]:
    table = lake.table(ATTEMPTS)
    return sorted(table.load()["task_id"].to_pylist())


def reader(app: App, lake: Warehouse) -> Reader | None:
    history = SqlHistory(app.store.database)
    return next(
        (each for each in history.database.read_now(history.readers()) if each.name == lake.reader),
        None,
    )


async def finish(url: str, count: int) -> None:
    """Run `count` tasks on a worker without a lake."""
    app = App(url)
    work = idle(app, "work")
    for _ in range(count):
        work.submit()
    await drain(app)
    app.close()


# exports by workers -------------------------------------------------------------------------------------


async def test_a_worker_exports_its_finished_attempts_and_compares_them(
    app: App, lake: Warehouse
) -> None:
    work = idle(app, "work")
    handles = [work.submit(n=n) for n in range(30)]
    async with running(app, intervals=OFTEN) as node:
        await settled(app, node)
        await until(lambda: len(exported(lake)) == 30)
        await until(
            lambda: (
                (found := reader(app, lake)) is not None and found.checked == found.position > START
            )
        )
    assert exported(lake) == sorted(handle.id for handle in handles)


async def test_more_than_one_batch_is_exported_without_waiting_for_the_interval(
    app: App, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finish(app.url, 40)
    monkeypatch.setattr("fairlead.pipeline.exporter_poller.ROWS", 7)
    async with running(app, intervals=Intervals(export=3600.0)):
        await until(lambda: len(exported(lake)) == 40)


async def test_a_long_comparison_continues_piece_by_piece_until_its_end(
    app: App, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finish(app.url, 20)
    monkeypatch.setattr("fairlead.pipeline.exporter_poller.reconcile", partial(reconcile, piece=6))
    exporter = PolledExporter(app.store, lake, app.clock)
    assert [exporter.keep(3600.0) for _ in range(5)] == [True, True, True, False, False]
    found = reader(app, lake)
    assert found is not None
    assert found.checked == found.position > START


async def test_one_of_two_nodes_exports_and_the_other_takes_over(
    app: App, lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = idle(app, "work")
    keep = PolledExporter.keep
    began: list[int] = []

    def watched(self: PolledExporter, check_every: float) -> bool:
        began.append(id(self))
        return keep(self, check_every)

    monkeypatch.setattr(PolledExporter, "keep", watched)
    other = App(app.url, lake=str(root_of(lake)))
    other.task(name="work")(work.function)
    async with AsyncExitStack() as then:
        async with running(app, intervals=OFTEN) as first:
            await until(lambda: first.parts.pollers.elections.is_elected("export"))
            second = await then.enter_async_context(running(other, intervals=OFTEN))
            for _ in range(20):
                work.submit()
            await until(lambda: len(exported(lake)) == 20)
            await asyncio.sleep(0.5)
            assert len(set(began)) == 1
            assert not second.parts.pollers.elections.is_elected("export")
        await until(lambda: len(set(began)) == 2)
        for _ in range(5):
            work.submit()
        await until(lambda: len(exported(lake)) == 25)
    # After the first round of the second node, the first node begins no round.
    assert began == sorted(began, key=[*dict.fromkeys(began)].index)
    other.close()


async def test_a_failed_comparison_stops_no_export_and_is_not_retried_each_round(
    app: App, lake: Warehouse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    work = idle(app, "work")
    tries: list[int] = []

    def fails(*args: Any, **kwargs: Any) -> Any:
        tries.append(1)
        raise CheckFailed("the lake differs")

    monkeypatch.setattr("fairlead.pipeline.exporter_poller.reconcile", fails)
    async with running(app, intervals=Intervals(export=0.02, reconcile=3600.0)) as node:
        for count in (3, 6):
            for _ in range(3):
                work.submit()
            await settled(app, node)
            await until(lambda count=count: len(exported(lake)) == count)
        await until(lambda: tries)
        await asyncio.sleep(0.3)
    assert len(tries) == 1
    assert "the lake differs" in caplog.text


# settings ------------------------------------------------------------------------------------


def test_a_lake_without_the_extra_is_refused_when_the_application_is_made(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name)
    )
    App(sqlite_url).close()
    with pytest.raises(
        ConfigurationError, match=r"pyarrow missing: pip install 'fairlead\[pipeline\]'"
    ):
        App(sqlite_url, lake=str(tmp_path / "lake"))
    monkeypatch.setenv("FAIRLEAD_LAKE", str(tmp_path / "lake"))
    with pytest.raises(ConfigurationError, match="pyarrow missing"):
        App(sqlite_url)
    App(
        sqlite_url, lake=""
    ).close()  # no lake, whatever the environment says, as demo and replay need it


@pytest.mark.parametrize("where", ["environment", "fairlead.toml", "code"])
async def test_the_lake_and_its_catalog_are_set_in_code_in_the_environment_or_in_a_file(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    root = str(tmp_path / "lakes" / where)
    catalog = f"sqlite:///{tmp_path}/catalogs/{where}.db"
    monkeypatch.chdir(tmp_path)
    if where == "environment":
        monkeypatch.setenv("FAIRLEAD_LAKE", root)
        monkeypatch.setenv("FAIRLEAD_CATALOG", catalog)
    elif where == "fairlead.toml":
        Path("fairlead.toml").write_text(f'lake = "{root}"\ncatalog = "{catalog}"')
    app = App(sqlite_url, lake=root, catalog=catalog) if where == "code" else App(sqlite_url)
    assert (app.lake, app.catalog) == (root, catalog)
    work = idle(app, "work")
    work.submit()
    async with running(app, intervals=OFTEN) as node:
        await settled(app, node)
        lake = Warehouse(Location.of(root, catalog))
        await until(lambda: len(exported(lake)) == 1)
    assert not (Path(root) / "catalog.db").exists()
    assert Lake(root, app.catalog).history().extent() is None  # as the console opens it: no build
    app.close()


def test_a_catalog_that_is_no_text_is_refused(sqlite_url: str) -> None:
    for catalog in ("", 5):
        with pytest.raises(ConfigurationError, match="catalog"):
            App(sqlite_url, catalog=catalog)  # type: ignore[arg-type]


def test_an_unusable_lake_is_refused_when_the_worker_starts(
    sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    app = App(sqlite_url, lake=str(tmp_path / "file" / "lake"))

    async def start() -> None:
        app.node()

    with pytest.raises(ConfigurationError, match="give a folder"):
        asyncio.run(start())
    app.close()


def test_the_pipeline_is_imported_only_with_a_lake_and_pyarrow_only_by_a_worker(
    tmp_path: Path,
) -> None:
    script = f"""
import asyncio, sys
from fairlead import App

def loaded(name):
    return any(module == name or module.startswith(name + ".") for module in sys.modules)

async def start(app):
    node = app.node()
    return node.parts.pollers.by_name

plain = App("sqlite:///{tmp_path}/a.db")
assert "export" not in asyncio.run(start(plain))
assert not loaded("fairlead.pipeline") and not loaded("pyarrow")
kept = App("sqlite:///{tmp_path}/a.db", lake="{tmp_path}/lake")
assert not loaded("pyarrow")
assert "export" in asyncio.run(start(kept))
assert not loaded("pyspark")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, cwd=tmp_path)  # noqa: S603 - our own interpreter


# doctor -------------------------------------------------------------------------------------------


async def findings(app: App, name: str) -> list[Finding]:
    return [found for found in await examine(app.operate_context) if name in found.what]


async def test_the_doctor_shows_readers_that_lag_and_prevent_the_cleaning_of_history(
    app: App, lake: Warehouse
) -> None:
    await finish(app.url, 5)
    history = SqlHistory(app.store.database)
    exporter = Exporter(history, lake, app.clock)
    history.database.run(history.advance(lake.reader, "lake", START, app.clock.now()))
    (behind,) = await findings(app, lake.reader)
    assert (behind.severity, behind.what) == (
        "ok",
        f"{lake.reader}: 5 finished attempts are not read yet",
    )

    exporter.round()
    read, unchecked = await findings(app, lake.reader)
    assert read.what.endswith("0 finished attempts are not read yet")
    assert unchecked.severity == "problem"
    assert "never been compared" in unchecked.what
    assert (
        unchecked.cure
        == f"`fairlead pipeline maintain`, or `fairlead pipeline status --forget '{lake.reader}'`"
    )

    reconcile(history, lake, app.clock)
    assert len(await findings(app, lake.reader)) == 1, "there is no problem to show"

    history.database.run(
        history.advance("my stream", "stream", START, app.clock.now() - 90_000 * MICROS)
    )
    late, quiet = await findings(app, "my stream")
    assert late.what == "my stream: 5 finished attempts are not read yet"
    assert quiet.severity == "problem"
    assert quiet.what.startswith("my stream has read nothing for 1.0 days")
    assert "`fairlead pipeline status --forget 'my stream'`" in (quiet.cure or "")
