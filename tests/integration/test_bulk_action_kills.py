"""Bulk actions under kills: performers die between and within transactions, lose responses, take
actions over and race each other, while people change, interrupt and resume. Each task is changed
once, and the counts are exact.

A failure prints the seed of its run. Set FAIRLEAD_SEED to repeat all runs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead import App
from fairlead.clock import MICROS
from fairlead.errors import NotAllowed
from fairlead.operate import batches
from fairlead.operate.changes import NewValues, from_text
from fairlead.operate.store.actions import ActionState, ActionStore
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Statement, Steps
from tests import tiers
from tests.builders import idle
from tests.conftest import url_of
from tests.tiers import seeds

SEED = tiers.seed()
RUNS = 40
"""Runs of each test, in one database."""
TASKS = 23
PAGE = 4
NOW = 1_900_000_000_000_000


class Killed(Exception):
    """Raised in place of the end of a process."""


class World:
    """One action, its performers and the people around it."""

    def __init__(self, app: App, pay: Any, seed: int) -> None:
        self.chance = random.Random(seed)
        self.app, self.key, self.now = app, f"run {seed}", NOW
        self.store: SqlStore = app.operate_context.sql_store
        self.actions = app.management.actions
        later = datetime.now(UTC) + timedelta(days=1)
        handles = pay.options(run_at=later, fairness_key=self.key).submit_many(
            [{"n": n} for n in range(TASKS)]
        )
        self.ids = sorted(handle.id for handle in handles)
        self.action = self.actions.ask(
            NewValues(priority=3, actor="action"), app.management.where(fairness_key=self.key)
        ).id

    def run(self, steps: Steps[Any]) -> Any:
        """Run a transaction, which may be killed before any step or after its commit."""
        fate = self.chance.random()
        if fate < 0.15:
            self.store.database.run(_killed(steps, self.chance.randrange(8)))
        result = self.store.database.run(steps) if fate >= 0.15 else None
        if fate < 0.15 or fate > 0.92:
            raise Killed
        return result

    def performer(self, name: str) -> Iterator[None]:
        """Claim the action when it is free, and change page after page, with a pause after each
        step."""
        while True:
            action = self.store.database.read_now(
                ActionStore(self.store.database).action(self.action)
            )
            yield
            if not batches.is_free(action, self.now):
                continue
            action = self.run(batches.claim(self.store, action, name, self.now))
            while action is not None and action.state == ActionState.RUNNING:
                yield
                found = self.store.database.read_now(
                    self.store.tasks(batches.rest_of(action), batches.page_size(action))
                )
                yield
                change = from_text(action.change)
                page = batches.change_page(self.store, action, change, found, self.now)
                action = self.run(page)[0]

    def act(self) -> None:
        """Act as a person, or let time pass."""
        deed = self.chance.choice(["wait", "wait", "change", "interrupt", "resume", "take over"])
        management = self.app.management
        try:
            if deed == "wait":
                self.now += self.chance.randrange(40) * MICROS
            elif deed == "change":
                management.change(
                    self.chance.choice(self.ids), priority=self.chance.choice([6, 7, 8])
                )
            elif deed == "interrupt":
                self.actions.interrupt(self.action)
            else:
                self.actions.resume(self.action, is_here=False, take_over=deed == "take over")
        except NotAllowed:
            pass

    def simulate(self) -> None:
        """Run two performers until the action is done."""
        performers = [self.performer("a"), self.performer("b")]
        for step in range(5000):
            if self.actions.show(self.action).state == ActionState.DONE:
                return
            n = self.chance.randrange(2)
            try:
                next(performers[n])
            except Killed:
                performers[n] = self.performer(f"reborn {step}")
            if self.chance.random() < 0.15 and step < 400:
                self.act()
            elif step >= 400:
                self.now += 10 * MICROS
                if self.actions.show(self.action).state == ActionState.INTERRUPTED:
                    self.actions.resume(self.action, is_here=False)
        raise AssertionError("the action does not end")

    def judge(self) -> None:
        """Check the counts of the action against the changes in the history."""
        events = self.store.database.read_now(_changes_of(self.store))
        made = Counter(id for id, actor in events if actor == "action" and id in set(self.ids))
        done = self.actions.show(self.action)
        assert set(made.values()) <= {1}, "a task was changed twice"
        assert done.changed == len(made)
        assert done.looked == TASKS
        assert done.changed + done.refused == TASKS
        assert done.cursor == self.ids[-1]


def _killed(steps: Steps[Any], after: int) -> Steps[Any]:
    """Run so many steps of a transaction, and kill it before it commits."""
    try:
        step = next(steps)
        for _ in range(after):
            step = steps.send((yield step))
    except StopIteration:
        pass
    raise _RolledBack


class _RolledBack(Killed):
    pass


def _changes_of(store: SqlStore) -> Steps[list[tuple[str, str]]]:
    rows = yield Statement(
        "SELECT CAST(task_id AS text), actor FROM fairlead_events WHERE kind = 'changed'"
    )
    return [(row[0], row[1]) for row in rows]


@pytest.fixture(params=["sqlite", "postgres"])
def killing(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[App, Any]]:
    """Yield an application and a task, for each kind of store, with pages of four tasks."""
    app = App(url_of(request.param, request))
    pay = idle(app, "pay")
    app.migrate()
    monkeypatch.setattr(batches, "MOST_CHANGED", PAGE)
    yield app, pay
    app.close()


@pytest.mark.parametrize("block", seeds(10, few=1))
def test_each_task_is_changed_once_whenever_performers_die(
    killing: tuple[App, Any], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, pay = killing
    for seed in range(SEED + block * RUNS, SEED + (block + 1) * RUNS):
        world = World(app, pay, seed)

        def shared_clock(now: int, world: World = world) -> Steps[int]:
            return world.now
            yield

        monkeypatch.setattr(app.operate_context.sql_store, "shared_clock", shared_clock)
        try:
            world.simulate()
            world.judge()
        except AssertionError as broken:
            pytest.fail(f"FAIRLEAD_SEED={SEED}, seed {seed}: {broken}", pytrace=False)
