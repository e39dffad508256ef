"""Helpers for tests of channels: applications that count events, tasks that record their runs, and
waits with a timeout."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fairlead import App
from fairlead.engine.node import Node
from fairlead.engine.settings import Intervals
from fairlead.model import PRIORITIES, LaneKey
from fairlead.testing import running
from tests.waiting import until

SOON = 60.0
"""Longest wait for a condition, in seconds."""

NEVER = 1e9
NO_POLLERS = Intervals(*[NEVER] * 9)


class Counting:
    """Observer that counts the events reported to `counted` and ignores all others."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def counted(self, event: str, count: int = 1) -> None:
        self.counts[event] += count

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def counting(url: str, channel: str) -> App:
    """Return an application that has this channel, a migrated store and a counting observer."""
    application = App(url, channel=channel, observer=Counting())
    application.migrate()
    return application


def counts(app: App) -> Counter[str]:
    """Return the counts of the application's observer."""
    return app.observer.counts  # type: ignore[attr-defined]


def is_up_to_date(app: App) -> bool:
    """Return whether the node of the application has read all rows of its partitions."""
    channel = app.channel
    lanes = [LaneKey(*key, priority) for key in channel._assigned for priority in PRIORITIES]
    return bool(lanes) and not any(channel.is_behind(lane) for lane in lanes)


@asynccontextmanager
async def owning(app: App, partitions: int | None = None, **settings: Any) -> AsyncIterator[Node]:
    """Start a node, and yield it when it owns `partitions` partitions (by default all partitions of
    its queues) and has read their rows."""
    async with running(app, **settings) as node:
        ownership = node.parts.ownership

        def is_owner() -> bool:
            wanted = sum(ownership.partitions.values()) if partitions is None else partitions
            return len(ownership.owned) == wanted and is_up_to_date(app)

        await until(is_owner)
        yield node


def claims(app: App) -> Counter[str]:
    """Return the number of attempts of each task, by task id."""
    with app.store.database.transaction() as connection:
        rows = connection.execute(
            "SELECT task_id, count(*) FROM fairlead_attempts GROUP BY task_id"
        ).fetchall()
    return Counter({str(task_id): count for task_id, count in rows})
