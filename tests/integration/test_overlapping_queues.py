"""Nodes that serve different queues of one application: every task of a served queue runs."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from fairlead import App
from fairlead.declare.task import Task
from fairlead.testing import running, settled

pytestmark = pytest.mark.virtual_time

TASKS = 40
"""Tasks of each queue."""


def declare(url: str, queues: list[str], ran: list[str]) -> list[Task[..., Any]]:
    """Return one task for each queue of a new application."""
    app = App(url)

    def note(value: str) -> None:
        ran.append(value)

    for queue in queues:
        app.queue(queue, partitions=4)
    return [app.task(note, name=f"task-{queue}", queue=queue) for queue in queues]


@pytest.mark.parametrize(
    "fleet",
    [["a", "ab"], ["a", "b", "abc"], ["ab", "bc", "ca"], ["abc", "a", "a", "a"]],
    ids="-".join,
)
async def test_nodes_with_overlapping_queues_run_every_task(
    sqlite_url: str, fleet: list[str]
) -> None:
    ran: list[str] = []
    queues = sorted(set("".join(fleet)))
    declared = [declare(sqlite_url, queues, ran) for _ in fleet]
    apps = [tasks[0].app for tasks in declared]
    apps[0].migrate()
    async with AsyncExitStack() as nodes:
        for app, served in zip(apps, fleet, strict=True):
            node = await nodes.enter_async_context(running(app, queues=list(served)))
        await apps[0].submit_many_async(
            [task.draft(value=f"{task.name[-1]}{n}") for task in declared[0] for n in range(TASKS)]
        )
        await settled(apps[0], node)
    assert sorted(ran) == sorted(f"{queue}{n}" for queue in queues for n in range(TASKS))
    for app in apps:
        app.close()
