"""The elected worker's watcher reports stalls, floods, bursts of errors and lost nodes to the store,
in real stores."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App, Incident, NoRetry
from fairlead.clock import MICROS
from fairlead.engine.poller import PollerContext
from fairlead.engine.settings import Intervals
from fairlead.model import IncidentKind, IncidentReport
from fairlead.operate.doctor import examine
from fairlead.pipeline.incidents.detector import Observation, Rules
from fairlead.pipeline.pollers import Watch
from fairlead.pipeline.watcher import AGAIN, Watcher
from fairlead.testing import running, settled

pytestmark = pytest.mark.stores

BEGIN = 1_790_000_000 * MICROS


def watch_of(app: App) -> Watch:
    return Watch(
        PollerContext(
            cluster=app.connections.cluster,
            clock=app.clock,
            intervals=Intervals(),
            announce=lambda _: None,
        )
    )


async def open_incidents(app: App) -> list[Incident]:
    found = await asyncio.to_thread(
        app.store.database.read_now, app.store.incidents.latest(None, 100)
    )
    return [each for each in found if each.kind is not IncidentKind.ERROR]


async def test_a_burst_of_errors_is_one_incident_whoever_watches(app: App) -> None:
    @app.task(queue="payouts", retry=NoRetry())
    async def fail() -> None:
        raise ValueError("declined")

    first = watch_of(app)
    await first()
    async with running(app) as node:
        fail.submit_many([{}] * 30)
        await settled(app, node)
    await first()
    successor = watch_of(app)  # sees the last minute
    await successor()
    [incident] = await open_incidents(app)
    assert (incident.kind, incident.subject, incident.queue) == (
        IncidentKind.ERROR_BURST,
        "payouts",
        "payouts",
    )
    assert "since 20" in incident.details and "fairlead tasks" in incident.details
    findings = await examine(app.operate_context)
    assert any("error burst of queue 'payouts'" in each.what for each in findings)


@pytest.mark.parametrize(
    ("kind", "age", "severity"),
    [("stall", 0, "problem"), ("stall", 800, "note"), ("node_loss", 0, "note")],
)
async def test_the_doctor_is_green_when_what_the_watch_reported_is_over(
    app: App, kind: str, age: int, severity: str
) -> None:
    report = IncidentReport(IncidentKind(kind), "work", "it was so", 1, queue="work")
    await app.store.incidents.report([report], app.clock.now() - age * MICROS)
    findings = await examine(app.operate_context)
    assert [each.severity for each in findings if "it was so" in each.what] == [severity]


class Given:
    """A store with the observations that a test gives."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []

    def steps(self) -> None: ...

    async def read(self, steps: None, together: bool) -> list[Observation]:
        found, self.observations = self.observations, []
        return found


async def test_an_open_incident_is_reported_again_now_and_then_and_a_closed_one_is_not() -> None:
    given = Given()
    watcher = Watcher(given, given, Rules())  # type: ignore[arg-type]

    async def after(seconds: int, **fields: object) -> list[tuple[str, str]]:
        at = BEGIN + seconds * MICROS
        fields = {"waits_since": BEGIN, "running": 0} | fields
        given.observations = [Observation(queue="work", at=at, time=at, **fields)]  # type: ignore[arg-type]
        return [(each.kind.value, each.subject) for each in await watcher.detect()]

    reports = [await after(seconds) for seconds in range(1, 1000, 10)]
    assert [each for each in reports if each] == [[("stall", "work")]] * (1 + 980 * MICROS // AGAIN)
    assert await after(1001, done=1) == [] and await after(1301, waits_since=None) == []
