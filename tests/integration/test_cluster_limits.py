"""Cluster-wide limits on real nodes are never exceeded and used in full; runs on expired permits
are stopped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fairlead import App, ClusterLimit, State, Task
from fairlead.core.limits import sharded_permits
from fairlead.core.limits.permits import PermitLedger, decode
from fairlead.model import Outcome
from fairlead.operate import doctor
from fairlead.testing import running, settled
from services.zookeeper import ZooKeeperServer
from tests.tiers import matrix

Declare = Callable[[App], dict[str, Task]]
Make = Callable[[Declare], tuple[App, dict[str, Task]]]


@pytest.fixture(params=matrix("sqlite", "postgres", "zookeeper"))
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Yield a function that makes applications on one store, with each coordinator in turn."""
    kind = request.param
    url = request.getfixturevalue("sqlite_url" if kind == "zookeeper" else f"{kind}_url")
    coordinator = request.getfixturevalue("zookeeper_url") if kind == "zookeeper" else None
    made: list[App] = []

    def make(declare: Declare) -> tuple[App, dict[str, Task]]:
        app = App(url, coordinator=coordinator)
        app.migrate()
        made.append(app)
        return app, declare(app)

    yield make
    for app in made:
        app.close()


async def test_a_limit_by_key_holds_on_two_nodes_while_its_ledger_is_split(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def declare(app: App) -> dict[str, Task]:
        app.queue("payouts", concurrency=ClusterLimit(2, per="fairness_key"))

        @app.task(queue="payouts", name="pay")
        async def pay(key: str) -> None:
            now[key] += 1
            most[key] = max(most[key], now[key])
            await asyncio.sleep(0.5)
            now[key] -= 1

        return {"pay": pay}

    monkeypatch.setattr(sharded_permits, "SPLIT_BYTES", 150)
    (one, tasks), (two, _) = make(declare), make(declare)
    keys = [f"tenant {n}" for n in range(12)]
    for key in keys:
        tasks["pay"].options(fairness_key=key).submit_many([{"key": key}] * 5)
    async with running(one) as node, running(two):
        await settled(one, node)
    assert set(most) == set(keys) and max(most.values()) == 2
    root, _ = await one.operate_context.coordinator.read_ledger("payouts", "")
    assert decode(root) == PermitLedger(is_closed=True)


async def test_a_node_that_stops_leaves_its_permits_to_the_others_at_once(make: Make) -> None:
    done: list[int] = []

    def declare(app: App) -> dict[str, Task]:
        app.queue("payouts", concurrency=ClusterLimit(1))

        @app.task(queue="payouts", name="pay")
        async def pay(n: int) -> None:
            done.append(n)

        return {"pay": pay}

    for n in range(2):
        app, tasks = make(declare)
        tasks["pay"].submit(n=n)
        async with running(app, permit_seconds=1000.0) as node:
            await settled(app, node)
    assert done == [0, 1]


async def test_runs_on_expired_permits_are_stopped_and_run_again(sqlite_url: str) -> None:
    with ZooKeeperServer() as server:
        app = App(sqlite_url, coordinator=server.url)
        app.queue("payouts", concurrency=ClusterLimit(3))
        app.queue("other")
        runs: list[str] = []
        ended = asyncio.Event()

        @app.task(queue="payouts")
        async def pay() -> None:
            runs.append("starts")
            if len(runs) == 1:
                started.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    runs.append("is stopped")
                    stopped.set()
                    raise
            ended.set()

        @app.task(queue="other")
        async def free() -> None:
            runs.append("continues")

        started, stopped = asyncio.Event(), asyncio.Event()
        handle = pay.submit()
        async with asyncio.timeout(300), running(app, permit_seconds=3.0) as node:
            await started.wait()
            assert any(
                found.what == "cluster-wide limit payouts: permits held by workers: 1"
                for found in await doctor.examine(app.operate_context)
            )
            server.crash()
            await stopped.wait()
            problems = [
                found
                for found in await doctor.examine(app.operate_context)
                if "ZooKeeper" in found.what
            ]
            assert [found.severity for found in problems] == ["problem"]
            other = free.submit()  # a task without permits needs no coordinator
            while other.state() != State.DONE:
                await asyncio.sleep(0.02)
            server.start()
            await ended.wait()
            await settled(app, node)
        assert runs == ["starts", "is stopped", "continues", "starts"]
        first, second = app.management.attempts(handle.id)
        assert (first.outcome, second.outcome) == (Outcome.CANCELLED, Outcome.DONE)
        assert "permits" in (first.error_text or "")
        app.close()
