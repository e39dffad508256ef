"""An incident ends with its condition, and one cause is one line of what needs a person."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App
from fairlead.clock import MICROS
from fairlead.model import INCIDENT_ENDS, IncidentKind, IncidentReport, State
from fairlead.operate.doctor import examine
from fairlead.operate.facts import read_facts
from fairlead.operate.incidents import latest_incidents
from fairlead.operate.summary import Attention, summary
from fairlead.pipeline.incidents.detector import Observation, Rules
from fairlead.pipeline.watcher import Watcher
from fairlead.testing.contract.tasks import in_error

pytestmark = pytest.mark.stores


async def attention(app: App) -> list[Attention]:
    return (await asyncio.to_thread(summary, app.operate_context)).attention


def report(kind: str, subject: str, since: int = 1) -> IncidentReport:
    return IncidentReport(IncidentKind(kind), subject, f"{kind} here", since, queue="work")


@pytest.mark.parametrize("kind", sorted(set(IncidentKind) - {IncidentKind.ERROR}))
async def test_a_condition_that_is_reported_no_more_is_over_within_two_minutes(
    app: App, kind: str
) -> None:
    now = app.clock.now()
    over, open_ = now - round(120 * MICROS), now - round(INCIDENT_ENDS / 2 * MICROS)
    await app.store.incidents.report([report(kind, "gone", since=over)], over)
    await app.store.incidents.report([report(kind, "here", since=open_)], open_)
    found = await asyncio.to_thread(latest_incidents, app.operate_context, None, 10)
    assert [each.subject for each in found] == ["here"]
    facts = await asyncio.to_thread(read_facts, app.operate_context)
    assert [each.subject for each in facts.incidents] == ["here"]
    counts = await app.store.incidents.counts(now - round(INCIDENT_ENDS * MICROS))
    assert counts == {(kind, "work", ""): 1}
    problems = [
        each.what for each in await examine(app.operate_context) if each.severity == "problem"
    ]
    assert not any("gone" in what for what in problems)


async def test_a_condition_that_returns_begins_anew_and_is_delivered_once(app: App) -> None:
    incidents, now = app.store.incidents, app.clock.now()
    await incidents.report([report("stall", "work", since=1)], now)
    [first] = await incidents.claim(now, now + 1, 10)
    await incidents.delivered([first.id], now)
    await incidents.report([report("stall", "work", since=2)], now + 60 * MICROS)
    later = now + 600 * MICROS
    await incidents.report([report("stall", "work", since=later)], later)
    assert await incidents.claim(later, later + 1, 10) == []
    [found] = await asyncio.to_thread(app.store.database.read_now, incidents.latest(None, 10))
    assert found.since == later


async def test_one_cause_is_one_line(app: App) -> None:
    app.queue("work", partitions=1)

    @app.task(queue="work")
    async def ship() -> None: ...

    ship.submit()
    now = app.clock.now()
    await app.store.incidents.report(
        [
            report("unserved_queue", "work"),
            *(
                IncidentReport(IncidentKind.STUCK, f"task-{n}", "long", n, "work", "ship", n)
                for n in range(1, 4)
            ),
        ],
        now,
    )
    found = await attention(app)
    assert [(each.kind, each.number and each.number.number, each.since) for each in found] == [
        ("incident", 3, 1),
        ("unserved", None, found[1].since),
    ]


async def test_tasks_in_error_are_grouped_by_name_and_type_of_error(app: App) -> None:
    await in_error(app.sql_store, 3)
    [line] = await attention(app)
    assert line.number is not None and line.number.number == 3
    assert line.name is not None and line.error_type is not None
    assert State.ERROR in line.what and line.error_type in line.what


class Given:
    """A store with the observations that a test gives."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []

    def steps(self) -> None: ...

    async def read(self, steps: None, together: bool) -> list[Observation]:
        return self.observations


async def test_a_blip_of_the_store_loses_no_node_and_a_dead_node_is_one_report() -> None:
    begin, given = 1_790_000_000 * MICROS, Given()
    watcher = Watcher(given, given, Rules())  # type: ignore[arg-type]

    async def after(seconds: int, silent: list[str]) -> list[tuple[str, str]]:
        at = begin + seconds * MICROS
        given.observations = [
            Observation(queue=queue, at=at, time=at, silent=silent) for queue in "abc"
        ]
        return [(each.kind.value, each.subject) for each in await watcher.detect()]

    assert await after(0, ["n1", "n2"]) == []  # a worker that is elected anew
    assert await after(10, []) == []
    assert await after(70, ["n1", "n2"]) == []  # the store was away for a minute
    assert await after(80, []) == []
    assert await after(90, ["n1"]) == [("node_loss", "n1")]
    assert [await after(seconds, []) for seconds in range(100, 500, 10)] == [[]] * 40
