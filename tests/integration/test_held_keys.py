"""Ordering keys held by their first task, which waits for a retry, a person or another node: they cost
next to nothing, delay nothing else, and are free once that task ends, however it ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead import App, Delays, State
from fairlead.core.limits.held_keys import HEAL_SECONDS, SOON_SECONDS
from fairlead.engine import ordering
from fairlead.engine.ordering import CHECK_SECONDS, MOST_OF_KEY
from fairlead.ports.statements import Statement, Steps
from fairlead.testing import running, settled
from tests.waiting import until

pytestmark = [pytest.mark.ordered, pytest.mark.sqlite, pytest.mark.virtual_time]

SOON = 20.0


KINDS: dict[str, dict[str, Any]] = {
    "fair": {"order": "fair"},
    "fifo": {"order": "fifo"},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings of each kind of queue."""
    return KINDS[request.param]


class Asked:
    """Calls by which the node asks the store about ordering keys, and the keys in them."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.keys: Counter[str] = Counter()
        for name in ("ordered", "changed"):
            monkeypatch.setattr(app.store, name, self._counting(name, getattr(app.store, name)))

    def _counting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(asked: Sequence[Any], *rest: Any) -> Any:
            self.calls[name] += 1
            self.keys[name] += len(asked)
            return method(asked, *rest)

        return counted

    def clear(self) -> None:
        self.calls.clear()
        self.keys.clear()


def execute(app: App, sql: str) -> None:
    """Change rows behind the back of every node: no notification says so."""

    def steps() -> Steps[None]:
        yield Statement(sql, ())

    app.store.database.run(steps())


def failing_first(app: App, kind: dict[str, Any]) -> tuple[Any, asyncio.Event, asyncio.Event]:
    """Return a task that fails for number 0 and is then due in an hour, an event that it sets when it
    fails, and one that it sets when it runs for another number."""
    app.queue("q", **kind, partitions=1)
    failed, ran = asyncio.Event(), asyncio.Event()

    @app.task(queue="q", retry=Delays([3600.0]))
    async def step(n: int) -> None:
        if n:
            ran.set()
        else:
            failed.set()
            raise ConnectionError("not yet")

    return step, failed, ran


async def test_idle_checks_of_held_keys_ask_in_batches_and_read_no_key_again(
    app: App, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app.queue("q", **kind, partitions=1)
    keys, batch, sweeps = 300, 100, 4
    monkeypatch.setattr(ordering, "MOST_CHECKED", batch)

    @app.task(queue="q", retry=Delays([3600.0]))
    async def step() -> None:
        raise ConnectionError("not yet")

    for n in range(keys):
        step.options(ordering_key=f"key {n}").submit_many([{}] * 3)
    asked = Asked(app, monkeypatch)
    async with running(app) as node:
        await until(lambda: asked.keys["ordered"] >= keys and not len(node.parts.context.table))
        await asyncio.sleep(HEAL_SECONDS)
        asked.clear()
        await asyncio.sleep(sweeps * HEAL_SECONDS)
        assert asked.calls["ordered"] == 0
        assert keys * (sweeps - 1) <= asked.keys["changed"] <= keys * (sweeps + 1)
        assert asked.calls["changed"] <= 2 * (sweeps + 1) * keys // batch
        assert len(node.parts.context.table) == 0


HELD = {
    "WAITING": HEAL_SECONDS,
    "ERROR": HEAL_SECONDS,
    "PROCESSING": SOON_SECONDS,
}
"""Seconds between two checks of a first task, by its state."""


@pytest.mark.parametrize("state", HELD)
async def test_a_first_task_that_ends_without_a_notification_frees_its_key_at_the_next_check(
    app: App, kind: dict[str, Any], state: str
) -> None:
    app.queue("q", **kind, partitions=1)
    ran = asyncio.Event()

    @app.task(queue="q")
    async def step() -> None:
        ran.set()

    first = step.options(ordering_key="a").submit()
    execute(
        app,
        f"UPDATE fairlead_tasks SET state = '{state}', version = version + 1, ready_seq = NULL,"
        f" run_at = run_at + 3600000000, node = 'elsewhere' WHERE id = '{first.id}'",
    )
    step.options(ordering_key="a").submit_many([{}] * (MOST_OF_KEY + 5))
    async with running(app) as node:
        await until(lambda: not len(node.parts.context.table))
        await asyncio.sleep(2 * HEAL_SECONDS)
        assert not ran.is_set()
        assert len(node.parts.context.table) == 0
        execute(app, f"DELETE FROM fairlead_tasks WHERE id = '{first.id}'")
        async with asyncio.timeout(HELD[state] + CHECK_SECONDS + 1.0):
            await ran.wait()
        await settled(app, node)


async def test_a_person_who_ends_a_waiting_first_task_frees_its_key_at_once(
    app: App, kind: dict[str, Any]
) -> None:
    step, failed, ran = failing_first(app, kind)
    first, _ = (step.options(ordering_key="a").submit(n=n) for n in range(2))
    async with running(app) as node:
        async with asyncio.timeout(SOON):
            await failed.wait()
            await until(
                lambda: first.state() == State.WAITING and not len(node.parts.context.table)
            )
            app.management.cancel(first.id)
        async with asyncio.timeout(5.0):
            await ran.wait()


async def test_a_task_that_precedes_a_waiting_first_task_runs_at_once(
    app: App, kind: dict[str, Any]
) -> None:
    step, failed, ran = failing_first(app, kind)
    keyed = step.options(ordering_key="a")
    first = keyed.submit(n=0)
    async with running(app):
        async with asyncio.timeout(SOON):
            await failed.wait()
            await until(lambda: first.state() == State.WAITING)
        keyed.options(run_at=datetime.now(UTC) - timedelta(hours=1)).submit(n=1)
        async with asyncio.timeout(5.0):
            await ran.wait()


async def test_a_key_whose_skipped_task_runs_elsewhere_is_tried_once_a_second(
    app: App, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app.queue("q", **kind, partitions=1)
    ran = asyncio.Event()

    @app.task(queue="q")
    async def step() -> None:
        ran.set()

    skipped = step.options(ordering_key="a").submit()
    execute(
        app,
        "UPDATE fairlead_tasks SET state = 'PROCESSING', version = version + 1, order_at = NULL,"
        f" node = 'elsewhere' WHERE id = '{skipped.id}'",
    )
    step.options(ordering_key="a").submit()
    asked = Asked(app, monkeypatch)
    seconds = 10
    async with running(app):
        await asyncio.sleep(seconds)
        assert not ran.is_set()
        assert asked.calls["ordered"] <= 2 * (seconds + 1)
        execute(app, f"DELETE FROM fairlead_tasks WHERE id = '{skipped.id}'")
        async with asyncio.timeout(5.0):
            await ran.wait()


async def test_tasks_behind_a_held_key_cost_their_fairness_key_nothing_while_they_wait(
    app: App,
) -> None:
    app.queue("q", partitions=1)
    ran: list[str] = []
    failed = asyncio.Event()

    @app.task(queue="q", retry=Delays([3600.0]))
    async def step() -> None:
        failed.set()
        raise ConnectionError("not yet")

    @app.task(queue="q")
    async def note(key: str) -> None:
        ran.append(key)

    behind, more = 100, 300
    step.options(fairness_key="a", ordering_key="o").submit_many([{}] * (1 + behind))
    async with running(app, concurrency=1):
        async with asyncio.timeout(SOON):
            await failed.wait()
        await asyncio.sleep(5 * HEAL_SECONDS)
        drafts = [note.options(fairness_key=key).draft(key=key) for key in "ab"]
        app.submit_many(drafts * more)
        await until(lambda: len(ran) >= 2 * more)
    # The tasks behind the held one were charged once, when they arrived.
    assert ran[:more].count("a") >= (more - behind) // 2 - 1
