"""The plan of a build of a lake in Iceberg: the partitions of bronze that changed between the
snapshots of the last build and those of the present."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.pipeline.build_plan import EDITION, BuildPlan, Built, plan_of
from fairlead.pipeline.lake.manifest import Manifest, TablePart
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Build, last_export
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse_tables import SOURCES, WarehouseTables


def plan(tables: WarehouseTables, settings: str, full: bool) -> BuildPlan:
    """Return the plan of the next build. A snapshot that is gone, and partitions that are, need a
    full build. Raise BrokenLake, StoreUnavailable."""
    before = tables.before
    attempts, events = (manifest(tables, table) for table in SOURCES)
    news = []
    for table, now in zip(SOURCES, (attempts, events), strict=True):
        changed = tables.changed(table)
        full = full or changed is None or not changed <= now.parts.keys()
        news.append(changed or set())
    last = Built(edition=before.edition, settings=before.settings, until=before.until)
    return plan_of(attempts, events, last, settings, full, *news)


def facts(tables: WarehouseTables, plan: BuildPlan, settings: str) -> Build:
    """Return what the next plan needs to know about a build that followed this plan."""
    sources = {
        table.name: snapshot
        for table in SOURCES
        if (snapshot := tables.snapshot(table)) is not None
    }
    return Build(sources=sources, edition=EDITION, settings=settings, until=plan.until)


def manifest(tables: WarehouseTables, table: Table) -> Manifest:
    """Return the partitions of a bronze table as this job sees it."""
    stored = tables.source(table).stored
    written_at = 0 if stored is None else last_export(stored)
    return Manifest(written_at=written_at, parts=parts_of(tables.files(table)))


def parts_of(files: Iterable[TableFile]) -> dict[str, TablePart]:
    """Return the partitions that these files form, with the span of each instant."""
    found: dict[str, list[TableFile]] = {}
    for file in files:
        found.setdefault(file.part, []).append(file)
    return {
        name: TablePart(
            [file.path for file in each],
            sum(file.rows for file in each),
            sum(file.bytes for file in each),
            changed_at=0,
            span=_span(each),
        )
        for name, each in found.items()
    }


def _span(files: list[TableFile]) -> dict[str, tuple[int, int]]:
    names = {name for file in files for name in file.span}
    spans = {name: [file.span[name] for file in files if name in file.span] for name in names}
    return {
        name: (min(low for low, _ in each), max(high for _, high in each))
        for name, each in spans.items()
    }
