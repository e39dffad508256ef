"""Pollers of the pipeline for workers: clean up after bulk submits, watch the queues for incidents,
and export history into the lake. See `fairlead.engine.poller`.

Every worker loads this module while it starts, so it imports the pipeline only where it is used.
"""

from __future__ import annotations

import asyncio

from fairlead.engine.poller import Poller, PollerContext


async def sweep_bulk(context: PollerContext) -> None:
    """Delete what bulk submits that died left in the store."""
    from fairlead.pipeline.bulk.stage import sweep

    store = context.sql_store
    await store.database.run_async(sweep(store, context.clock.now()))


class Watch:
    """Detector of incidents of the queues, on one elected worker."""

    def __init__(self, context: PollerContext) -> None:
        from fairlead.pipeline.watcher import watcher_of

        self._context = context
        self._watcher = watcher_of(context.sql_store, context.clock)

    async def __call__(self) -> None:
        """Look at all queues, and report the incidents that are open to the store."""
        reports = await self._watcher.detect()
        await self._context.cluster.incidents.report(reports, self._context.clock.now())


class LakeExport:
    """Exporter of the history of the store into a lake."""

    def check(self) -> None:
        from fairlead.pipeline.extra import need

        need("duckdb", "pyarrow", "pyiceberg", "sqlalchemy")  # without importing them

    def poller(self, lake: str, catalog: str | None, context: PollerContext) -> Poller:
        from fairlead.pipeline.exporter_poller import PolledExporter
        from fairlead.pipeline.warehouse.location import Location
        from fairlead.pipeline.warehouse.warehouse import Warehouse

        warehouse = Warehouse(Location.of(lake, catalog))
        exporter = PolledExporter(context.cluster, warehouse, context.clock)

        async def export() -> float | None:
            is_more = await asyncio.to_thread(exporter.keep, context.intervals.reconcile)
            return 0.0 if is_more else None

        return Poller("export", context.intervals.export, export)
