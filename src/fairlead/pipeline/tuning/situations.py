"""Reasons why `tune` publishes nothing in a queue, from the store and the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime

from fairlead.app import App
from fairlead.clock import MICROS, to_datetime
from fairlead.engine.liveness import SILENT_SECONDS
from fairlead.operate.store.policies import EVERY_QUEUE, PolicyStore, SwitchMode
from fairlead.pipeline.runs import last_runs
from fairlead.pipeline.tuning.control import horizon
from fairlead.pipeline.tuning.gold import Gold
from fairlead.pipeline.tuning.guard_rails import Guards
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.windows import HOUR

_JOBS_THAT_CHECK = ("build", "check", "reconcile")


class Situations:
    """Situations of all queues, read once.

    newest_minute: the end of the newest minute in the tables, None if there is none.
    """

    def __init__(self, app: App, lake: Warehouse, gold: Gold, guards: Guards) -> None:
        store, now = app.sql_store, app.clock.now()
        read = store.database.read_now
        self._queues = read(store.queue_settings())
        self._nodes = read(store.nodes())
        self._silent = asyncio.run(_silent(app, now))
        self._switches = {switch.queue: switch for switch in read(PolicyStore(store).switches())}
        self._incidents = gold.incidents()
        self.newest_minute = gold.newest(horizon(guards))
        self._input = [*_about_input(self.newest_minute, now, guards), *_failed(lake)]

    def holds(self, queue: str) -> list[str]:
        """Return the reasons why nothing may be published in the queue now, whatever was published
        before."""
        known = queue in self._queues
        unknown = "the queue is not in the store, because no worker has served it yet"
        return [
            *self._switched(queue),
            *(() if known else (unknown,)),
            *self._input,
            *(f"incident: {incident}" for incident in self._incidents_of(queue)),
        ]

    def nodes(self, queue: str) -> int:
        """Return the number of live nodes that serve the queue."""
        return sum(queue in node.queues for node in self._nodes if node.node not in self._silent)

    def _incidents_of(self, queue: str) -> Iterator[str]:
        if queue in self._queues and self._queues[queue].paused:
            yield f"queue {queue} is paused"
        for node in self._nodes:
            if node.node in self._silent and queue in node.queues:
                yield f"node {node.node} is silent"
        for where, name in self._incidents:
            if where is None:
                yield f"objective {name!r} burns its budget"
            elif where == queue:
                yield f"most runs of {name} fail"

    def _switched(self, queue: str) -> Iterator[str]:
        switch = self._switches.get(EVERY_QUEUE) or self._switches.get(queue)
        if switch is not None:
            what = "switched off" if switch.mode == SwitchMode.OFF else "frozen"
            where = f" --queue {switch.queue}" if switch.queue else ""
            undo = f"undo with `fairlead pipeline tune on{where}`"
            yield f"{what} by {switch.author}: {switch.why}; {undo}"


def _about_input(newest: datetime | None, now: int, guards: Guards) -> Iterator[str]:
    """Yield why the tables are too old."""
    if newest is None:
        yield "no input: run `fairlead pipeline ingest` and `build`"
    elif (age := (to_datetime(now) - newest).total_seconds()) > guards.stale_after:
        yield (
            f"stale input: the newest attempt in the tables is {age / HOUR:.1f} h old, at most"
            f" {guards.stale_after / HOUR:.1f} h is allowed; run `fairlead pipeline ingest` and"
            " `build`"
        )


async def _silent(app: App, now: int) -> list[str]:
    """Return the dead nodes whose tasks were not resumed yet."""
    store = app.sql_store
    try:
        return await store.silent_nodes(now, round(SILENT_SECONDS * MICROS))
    finally:
        await store.database.close_async()


def _failed(lake: Warehouse) -> Iterator[str]:
    """Yield the failures of the last runs of jobs that check the tables."""
    for job, run in last_runs(lake).items():
        if job in _JOBS_THAT_CHECK and run["state"] == "failed":
            yield f"the last {job} failed: {run['error']}; run `fairlead pipeline {job}` again"
