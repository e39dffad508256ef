"""Pollers that the pipeline brings to workers: leftovers of bulk submits go, history moves into the
lake."""

from __future__ import annotations

import asyncio

from fairlead.engine.poller_registry import PollerContext
from fairlead.engine.pollers import Poller
from fairlead.errors import NotSupported


class BulkSweep:
    """Removes what bulk submits that died have left. See
    `fairlead.engine.poller_registry.PollerFactory`."""

    def check(self, lake: str) -> None:
        """Accept any lake: leftovers are in the store."""

    def make(self, context: PollerContext) -> Poller | None:
        try:
            store = context.store.as_sql()
        except NotSupported:
            return None  # there is no bulk submit

        async def sweep() -> float | None:
            from fairlead.pipeline.bulk import janitor

            await store.database.run_async(janitor.sweep(store, context.clock.now()))
            return None

        return Poller("bulk", context.intervals.bulk, sweep)


class LakeExport:
    """Keeps the lake in step with the history of the store. See
    `fairlead.engine.poller_registry.PollerFactory`."""

    def check(self, lake: str) -> None:
        from fairlead.pipeline.exporter_poller import require

        require()

    def make(self, context: PollerContext) -> Poller | None:
        if context.lake is None:
            return None
        from fairlead.pipeline.exporter_poller import Keeper

        keeper = Keeper(context.store.as_sql().history(), context.lake, context.clock)

        async def export() -> float | None:
            is_more = await asyncio.to_thread(keeper.keep, context.intervals.reconcile)
            return 0.0 if is_more else None

        return Poller("export", context.intervals.export, export)
