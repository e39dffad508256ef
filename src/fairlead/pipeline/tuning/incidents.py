"""Current problems, from the store and the tables, during which no weight is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from fairlead.app import App
from fairlead.clock import MICROS
from fairlead.engine.membership import SILENT_SECONDS
from fairlead.pipeline.tuning.gold import Gold
from fairlead.ports.cluster_state import NodeRecord


class Incidents:
    """Problems of all queues, read once."""

    def __init__(self, app: App, gold: Gold) -> None:
        store = app.sql_store
        self._paused = {
            queue
            for queue, settings in store.database.read_now(store.queue_settings()).items()
            if settings.paused
        }
        self._nodes = store.database.read_now(store.nodes())
        self._silent = _silent(app, self._nodes)
        self._pages = gold.pages()
        self._storms = gold.storms()

    def of(self, queue: str) -> tuple[str, ...]:
        """Return the problems of a queue, as texts."""
        found = [f"queue {queue} is paused"] if queue in self._paused else []
        found += [
            f"node {node} is silent" for node, queues in self._silent.items() if queue in queues
        ]
        found += [f"objective {slo!r} burns its budget" for slo in self._pages]
        found += [f"most runs of {name} fail" for name in self._storms.get(queue, [])]
        return tuple(found)

    def nodes(self, queue: str) -> int:
        """Return the number of nodes that serve the queue."""
        return sum(queue in node.queues for node in self._nodes if node.node not in self._silent)


def _silent(app: App, nodes: Iterable[NodeRecord]) -> Mapping[str, list[str]]:
    """Return the dead nodes whose tasks were not resumed yet, with the queues they served."""
    store = app.sql_store

    async def read() -> list[str]:
        try:
            return await store.silent_nodes(app.clock.now(), round(SILENT_SECONDS * MICROS))
        finally:
            await store.database.close_async()

    names = asyncio.run(read())
    return {node.node: node.queues for node in nodes if node.node in names}
