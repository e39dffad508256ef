"""Incidents reach `on_incident` at least once, and exactly once if no node crashes."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead import App, Incident, NoRetry, Processing, State
from fairlead.clock import MICROS
from fairlead.engine.incidents import IncidentDelivery
from fairlead.engine.settings import Intervals
from fairlead.model import INCIDENT_ENDS, IncidentReport
from fairlead.operate.doctor import examine
from fairlead.pipeline import watcher
from fairlead.testing import running, settled
from fairlead.testing.contract.tasks import in_error
from tests.builders import idle
from tests.waiting import until

pytestmark = [pytest.mark.sqlite, pytest.mark.virtual_time]

FAST = Intervals(incidents=1.0)


@pytest.fixture(autouse=True)
def incidents_of_tasks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the watcher, to which so many failures are an incident of the queue."""

    async def detect(self: object) -> list[IncidentReport]:
        return []

    monkeypatch.setattr(watcher.Watcher, "detect", detect)


def failing(app: App, count: int) -> list[str]:
    """Submit `count` tasks that go to ERROR; return their ids."""

    @app.task(retry=NoRetry())
    async def bad(n: int) -> None:
        raise ValueError(f"no {n}")

    return [handle.id for handle in bad.submit_many([{"n": n} for n in range(count)])]


def delivery(app: App, timeout: float = 30.0) -> IncidentDelivery:
    """Return the incident delivery of a node of this application."""
    app.incident_timeout = timeout
    return IncidentDelivery(app.node().parts.context)


@asynccontextmanager
async def erring(app: App, count: int) -> AsyncIterator[list[str]]:
    """Move `count` tasks to ERROR without a node; yield their ids."""
    yield await in_error(app.store, count)
    await app.store.database.close_async()


async def test_each_of_1200_tasks_in_error_is_reported_once(app: App) -> None:
    seen: Counter[str] = Counter()

    def receive(incident: Incident) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen[incident.subject] += 1

    app.on_incident = receive
    ids = failing(app, 1200)
    async with running(app, intervals=FAST) as node:
        await settled(app, node)
        await until(lambda: len(seen) == 1200)
    assert seen == Counter(ids)
    read, incidents = app.store.database.read_now, app.store.incidents
    assert read(incidents.undelivered(10)) == []
    # Delivered ones are listed while they are open, in pages from the latest on.
    latest = read(incidents.latest(None, 1000))
    latest += read(incidents.latest(latest[-1].id, 10_000))
    assert {incident.subject for incident in latest} == set(ids)
    assert [incident.id for incident in latest] == sorted({i.id for i in latest}, reverse=True)
    assert all(incident.delivered_at is not None for incident in latest)


async def test_a_callback_that_raises_for_one_task_is_called_again_and_holds_up_no_other(
    app: App,
) -> None:
    calls: Counter[str] = Counter()
    ids = failing(app, 30)
    odd = ids[7]

    def receive(incident: Incident) -> None:
        calls[incident.subject] += 1
        assert incident.task is not None and incident.task.state == State.ERROR
        if incident.subject == odd and calls[odd] < 3:
            raise BaseException("not now")

    app.on_incident = receive
    began = app.clock.monotonic()
    async with running(app, intervals=FAST) as node:
        await settled(app, node)
        await until(lambda: len(calls) == 30)
        assert calls[odd] < 3
        await until(lambda: calls[odd] == 3)
        await asyncio.sleep(100)
    assert calls == Counter({**dict.fromkeys(ids, 1), odd: 3})
    assert app.clock.monotonic() - began >= 10 + 20  # seconds of back-off


async def test_a_node_that_stops_lets_running_calls_end_and_begins_no_other(app: App) -> None:
    calls: Counter[str] = Counter()
    begun = asyncio.Event()

    async def receive(incident: Incident) -> None:
        begun.set()
        await asyncio.sleep(2)
        calls[incident.subject] += 1

    app.on_incident = receive
    ids = failing(app, 30)
    async with running(app, intervals=FAST) as node:
        await settled(app, node)
        await begun.wait()
    assert 0 < len(calls) < 30
    async with running(app, intervals=FAST):
        await until(lambda: len(calls) == 30)
    assert calls == Counter(ids)


@pytest.mark.parametrize("how", ["hangs", "cancels itself", "ignores its cancellation"])
async def test_an_async_callback_that_does_not_end_in_time_is_called_again(
    app: App, how: str
) -> None:
    calls: Counter[str] = Counter()

    async def receive(incident: Incident) -> None:
        calls[incident.subject] += 1
        if incident.subject != odd or calls[odd] > 1:
            return
        if how == "cancels itself":
            raise asyncio.CancelledError
        while True:
            try:
                await asyncio.sleep(1000)
                return
            except asyncio.CancelledError:
                if how == "hangs":
                    raise

    app.on_incident = receive
    async with erring(app, 10) as ids:
        odd = ids[0]
        delivering = delivery(app)
        pause = await delivering.round()
        assert calls == Counter(ids) and pause is not None
        await asyncio.sleep(3000)
        await delivering.round()
        repeats = 1 if how == "ignores its cancellation" else 2
        assert calls == Counter({**dict.fromkeys(ids, 1), odd: repeats})
        assert app.store.database.read_now(app.store.incidents.undelivered(10)) == []


@pytest.mark.system_time
async def test_a_callback_that_hangs_in_its_thread_holds_up_neither_others_nor_the_loop(
    app: App,
) -> None:
    gate = threading.Event()
    calls: Counter[str] = Counter()

    def receive(incident: Incident) -> None:
        calls[incident.subject] += 1
        if incident.subject == odd:
            gate.wait()

    app.on_incident = receive
    async with erring(app, 30) as ids:
        odd = ids[3]
        delivering = delivery(app, timeout=0.05)
        await delivering.round()
        assert calls == Counter(ids)
        (left,) = app.store.database.read_now(app.store.incidents.undelivered(10))
        assert left.subject == odd
        # The call returns late, and its incident counts as delivered.
        gate.set()
        await until(lambda: all(call.done() for call in delivering._hanging.values()))
        await delivering.round()
        assert calls == Counter(ids)
        assert app.store.database.read_now(app.store.incidents.undelivered(10)) == []


@pytest.mark.system_time
async def test_calls_that_all_hang_take_a_bounded_number_of_threads(app: App) -> None:
    gate = threading.Event()
    calls: list[int] = []

    def receive(incident: Incident) -> None:
        calls.append(incident.id)
        gate.wait()

    app.on_incident = receive
    async with erring(app, 40):
        delivering = delivery(app, timeout=0.01)
        await delivering.round()
        await delivering.round()
        assert len(calls) <= 12
        gate.set()


async def test_the_doctor_names_incidents_that_are_not_delivered(app: App) -> None:
    def receive(incident: Incident) -> None:
        raise ConnectionError("no pager")

    app.on_incident = receive
    async with erring(app, 5) as ids:
        await delivery(app).round()
        findings = [finding.what for finding in await examine(app.operate_context)]
        (what,) = [what for what in findings if "incidents are not delivered" in what]
        assert what.startswith("5 incidents") and what.endswith("and 2 more")
        assert f"error of {ids[0]} after 1 calls" in what


async def test_without_a_callback_incidents_are_logged(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    async with erring(app, 3) as ids:
        app.on_incident = None
        for _ in range(2):
            await delivery(app).round()
    logged = [record.subject for record in caplog.records if record.msg == "incident"]
    assert sorted(logged) == sorted(ids)


# stuck runs ---------------------------------------------------------------------------------------


async def test_a_run_longer_than_its_greatest_time_is_reported_once_and_continues(
    app: App,
) -> None:
    incidents = list[Incident]()
    gate = asyncio.Event()

    @app.task(name="default")
    async def default() -> None:
        await gate.wait()

    @app.task(name="own", processing=Processing(max_stuck=60, when_stuck="ignore"))
    async def own() -> None:
        await gate.wait()

    @app.task(name="short")
    async def short() -> None:
        await asyncio.sleep(400)

    async def open_ones() -> int:
        since = app.clock.now() - round(INCIDENT_ENDS * MICROS)
        return sum((await app.store.incidents.counts(since)).values())

    app.on_incident = incidents.append
    handles = [task.submit() for task in (default, own, short)]
    async with running(app, stuck_seconds=600) as node:
        await asyncio.sleep(120)
        assert [(i.kind, i.name) for i in incidents] == [("stuck", "own")]
        assert incidents[0].task is not None and incidents[0].task.state == State.PROCESSING
        await asyncio.sleep(800)
        assert [(i.kind, i.name) for i in incidents] == [("stuck", "own"), ("stuck", "default")]
        assert await open_ones() == 2
        gate.set()
        await settled(app, node)
        await asyncio.sleep(120)
        assert await open_ones() == 0
    assert [handle.state() for handle in handles] == [State.DONE] * 3
    assert [len(app.management.attempts(handle.id)) for handle in handles] == [1] * 3


async def test_a_stuck_run_that_is_resumed_is_reported_although_its_task_continues(
    app: App,
) -> None:
    incidents = list[Incident]()
    runs: list[int] = []

    @app.task(processing=Processing(max_stuck=30, when_stuck="resume"))
    async def hang() -> None:
        runs.append(1)
        if len(runs) == 1:
            await asyncio.sleep(1e6)

    app.on_incident = incidents.append
    handle = hang.submit()
    async with running(app, intervals=Intervals(incidents=1.0, stuck=10.0)) as node:
        await settled(app, node, 600)
    async with running(app, intervals=FAST):
        await until(lambda: len(incidents) == 1)
    assert (incidents[0].kind, incidents[0].subject) == ("stuck", handle.id)
    assert handle.state() == State.DONE and len(runs) == 2


async def test_a_queue_with_tasks_that_no_worker_serves_is_an_incident(app: App) -> None:
    """A task that nobody runs is reported a minute after it is ready, and once."""
    app.queue("orphans")
    seen: list[Incident] = []
    app.on_incident = seen.append
    served = idle(app, "served")
    orphan = idle(app, "orphan", queue="orphans")
    async with running(app, queues=["default"]) as node:
        await served.submit_async()
        await asyncio.sleep(300)
        assert seen == []
        await orphan.submit_async()
        await asyncio.sleep(50)
        assert seen == []
        await asyncio.sleep(1000)
    assert [(each.kind, each.subject, each.queue) for each in seen] == [
        ("unserved_queue", "orphans", "orphans")
    ]
    assert "--queues orphans" in seen[0].details
    assert node.queues == ["default"]
