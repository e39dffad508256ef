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


def declare(
    url: str, queues: list[str], ran: list[str], partitions: int = 4
) -> list[Task[..., Any]]:
    """Return one task for each queue of a new application."""
    app = App(url)

    def note(value: str) -> None:
        ran.append(value)

    for queue in queues:
        app.queue(queue, partitions=partitions)
    return [app.task(note, name=f"task-{queue}", queue=queue) for queue in queues]


@pytest.mark.parametrize(
    "fleet",
    [["a", "b", "abc"], ["ab", "bc", "ca"], ["abc", "a", "a", "a"]],
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


@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "not announced"])
async def test_a_submitter_with_more_partitions_than_the_workers_loses_no_task(
    sqlite_url: str, is_announced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    (task,), (other,) = (declare(sqlite_url, ["a"], ran, number) for number in (2, 8))
    task.app.migrate()
    async with running(task.app) as node:
        if not is_announced:
            monkeypatch.setattr(other.app.channel, "announce", lambda notification: None)
        await other.app.submit_many_async([other.draft(value=f"a{n}") for n in range(TASKS)])
        await settled(task.app, node, timeout=120.0)
    assert sorted(ran) == sorted(f"a{n}" for n in range(TASKS))
    task.app.close()
    other.app.close()
