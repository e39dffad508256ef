"""Runs that end early: timeouts, cancellation, and the shutdown of their node."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import fairlead
from fairlead import (
    App,
    NoRetry,
    State,
)
from fairlead.testing import running, settled
from tests.attempts import SOON, outcomes, reaches

pytestmark = pytest.mark.virtual_time


@pytest.mark.system_time
@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_a_task_that_exceeds_its_timeout_goes_to_error_and_does_not_run_again(
    app: App, kind: str, tmp_path, monkeypatch
) -> None:
    done = threading.Event()
    settings = {}
    if kind == "async":

        @app.task(timeout=0.1, retry=NoRetry())
        async def slow() -> None:
            await asyncio.sleep(100)

    elif kind == "thread":

        @app.task(timeout=0.1, retry=NoRetry())
        def slow() -> None:
            done.wait(SOON)

    else:
        (tmp_path / "cpu_app.py").write_text(
            "import time\nimport fairlead\napp = fairlead.App()\n"
            "@app.task(executor='process')\ndef slow() -> None:\n    time.sleep(100)\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        settings["application"] = "cpu_app:app"

        @app.task(executor="process", timeout=1.5, retry=NoRetry())
        def slow() -> None: ...

    handle = slow.submit()
    async with running(app, **settings):
        await reaches(app, handle, State.ERROR)
        assert outcomes(app, handle) == ["timed_out"]
        assert "timeout" in (handle.record().error_text or "")
        done.set()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_running_task_can_be_cancelled(app: App, kind: str) -> None:
    started = threading.Event()
    noticed = threading.Event()
    if kind == "async":

        @app.task
        async def work() -> None:
            started.set()
            try:
                await asyncio.sleep(SOON)
            finally:
                noticed.set()

    else:

        @app.task
        def work() -> None:
            started.set()
            task = fairlead.current_task()
            assert task is not None
            until = time.monotonic() + SOON
            while not task.cancelled and time.monotonic() < until:
                noticed.wait(0.01)
            if task.cancelled:
                noticed.set()

    handle = work.submit()
    async with running(app) as node:
        assert await asyncio.to_thread(started.wait, SOON)
        app.management.cancel(handle.id)
        assert handle.state() == State.CANCELLED
        assert await asyncio.to_thread(noticed.wait, SOON)
        await settled(app, node)
    assert outcomes(app, handle) == ["cancelled"]


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_a_node_from_stopping(
    app: App,
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    stubborn.submit()
    async with running(app, drain=0.05) as node:
        await asyncio.wait_for(started.wait(), SOON)
    assert node.unstoppable == 1
    release.set()
