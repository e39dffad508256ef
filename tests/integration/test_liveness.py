"""A handler that blocks the event loop of its worker harms no other run of the worker."""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairlead import App, State
from fairlead.engine import liveness
from fairlead.engine.node import Node
from fairlead.model import Incident, IncidentKind
from fairlead.testing import running
from tests.waiting import wait_until

SILENT = 1.5
BLOCK = 4.0
"""Seconds for which a handler blocks: longer than the allowed silence and the leases of a node."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes treat a silent node as dead soon."""
    monkeypatch.setattr(liveness, "SILENT_SECONDS", SILENT)
    monkeypatch.setattr(liveness, "HEARTBEAT_SECONDS", 0.3)
    monkeypatch.setattr(liveness, "BLOCKED_SECONDS", 0.5)


@contextmanager
def worker(app: App) -> Iterator[Node]:
    """Run a node on an event loop in its own thread."""
    nodes: queue.Queue[tuple[Node, Callable[[], object]]] = queue.Queue()

    async def serve() -> None:
        is_over, loop = asyncio.Event(), asyncio.get_running_loop()
        async with running(app, lease_seconds=SILENT) as node:
            nodes.put((node, lambda: loop.call_soon_threadsafe(is_over.set)))
            await is_over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    node, end = nodes.get(timeout=30)
    try:
        yield node
    finally:
        end()
        thread.join(30)


def test_a_blocked_loop_loses_no_run_and_no_lease(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fairlead.liveness")
    starts: Counter[str] = Counter()

    def application() -> tuple[App, Any]:
        app = App(sqlite_url)

        @app.task
        async def wait(n: int) -> None:
            starts[f"wait {n}"] += 1
            await asyncio.sleep(BLOCK + 2)

        return app, wait

    first, wait = application()
    second, _ = application()
    first.migrate()

    @first.task
    async def block() -> None:
        starts["block"] += 1
        time.sleep(BLOCK)  # noqa: ASYNC251 - the defect of this handler

    with worker(first):
        handles = [wait.submit(n) for n in range(8)]
        wait_until(lambda: len(starts) == 8)
        with worker(second) as other:
            handles.append(block.submit())
            wait_until(lambda: starts["block"] == 1)
            members = other.parts.ownership.shares.members
            wait_until(lambda: all(handle.state() == State.DONE for handle in handles))
            assert other.parts.ownership.shares.members == members
    assert set(starts.values()) == {1}
    [incident] = asyncio.run(incidents(first))
    assert incident.kind == IncidentKind.BLOCKED_LOOP and incident.name == "block"
    [call] = re.findall(r"Stack: (.*)", incident.details)
    assert re.fullmatch(r"\S*test_liveness\.py:\d+ block", call)
    [record] = [each for each in caplog.records if each.message == "the event loop is blocked"]
    assert handles[-1].id in record.__dict__["blocked_by"]
    assert "the event loop responds again" in caplog.messages
    first.close()
    second.close()


async def incidents(app: App) -> list[Incident]:
    """Return the incidents of the store."""
    store = app.store
    return await store.database.read(store.incidents.undelivered(10))


def test_a_loop_that_responds_is_never_blocked(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler in a thread blocks, which leaves the loop free."""
    app = App(sqlite_url)
    app.migrate()

    @app.task
    def block() -> None:
        time.sleep(1.5)

    with worker(app):
        handle = block.submit()
        wait_until(lambda: handle.state() == State.DONE)
    assert "the event loop is blocked" not in caplog.messages
    app.close()
