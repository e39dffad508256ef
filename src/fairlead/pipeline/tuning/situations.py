"""Situations of the queues when `tune` runs, from the store and the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fairlead.app import App
from fairlead.clock import MICROS, to_datetime
from fairlead.engine.liveness import SILENT_SECONDS
from fairlead.operate.store.policies import EVERY_QUEUE, PolicyStore, SwitchMode
from fairlead.pipeline.runs import last_runs
from fairlead.pipeline.tuning.gold import Gold
from fairlead.pipeline.tuning.guard_rails import Situation
from fairlead.pipeline.warehouse.warehouse import Warehouse

_JOBS_THAT_CHECK = ("build", "check", "reconcile")


class Situations:
    """Situations of all queues, read once.

    newest_minute: the end of the newest minute in the tables, None if there is none.
    """

    def __init__(self, app: App, lake: Warehouse, gold: Gold, horizon: float) -> None:
        """horizon: age in seconds of the oldest minute that counts."""
        store, now = app.sql_store, app.clock.now()
        read = store.database.read_now
        self._queues = read(store.queue_settings())
        self._nodes = read(store.nodes())
        self._silent = asyncio.run(_silent(app, now))
        self._switches = {switch.queue: switch for switch in read(PolicyStore(store).switches())}
        self._incidents = gold.incidents()
        self._failed = _failed(lake)
        self.newest_minute = gold.newest(horizon)
        self._input_age = (
            None
            if self.newest_minute is None
            else (to_datetime(now) - self.newest_minute).total_seconds()
        )

    def of(
        self, queue: str, in_canary: int | None, rolled_back: tuple[int, float] | None
    ) -> Situation:
        """Return the situation of a queue; see Situation for the parameters."""
        return Situation(
            input_age=self._input_age,
            is_known=queue in self._queues,
            failed=self._failed,
            incidents=tuple(self._incidents_of(queue)),
            switch=self._switch(queue),
            in_canary=in_canary,
            rolled_back=rolled_back,
        )

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

    def _switch(self, queue: str) -> str | None:
        switch = self._switches.get(EVERY_QUEUE) or self._switches.get(queue)
        if switch is None:
            return None
        what = "switched off" if switch.mode == SwitchMode.OFF else "frozen"
        where = f" --queue {switch.queue}" if switch.queue else ""
        undo = f"undo with `fairlead pipeline tune on{where}`"
        return f"{what} by {switch.author}: {switch.why}; {undo}"


async def _silent(app: App, now: int) -> list[str]:
    """Return the dead nodes whose tasks were not resumed yet."""
    store = app.sql_store
    try:
        return await store.silent_nodes(now, round(SILENT_SECONDS * MICROS))
    finally:
        await store.database.close_async()


def _failed(lake: Warehouse) -> str | None:
    """Return the failure of the last run of a job that checks the tables; None if all passed."""
    runs = last_runs(lake)
    for job in _JOBS_THAT_CHECK:
        if job in runs and runs[job]["state"] == "failed":
            return (
                f"the last {job} failed: {runs[job]['error']}; run `fairlead pipeline {job}` again"
            )
    return None
