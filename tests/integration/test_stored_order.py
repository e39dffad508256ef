"""The order in which the tasks of one submit are stored, in each store."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from fairlead import App
from fairlead.core.fair.stored_order import IN_TURN, RUN
from fairlead.model import NewTask
from fairlead.ports.observer import Silent
from fairlead.submit.submission import BULK
from fairlead.testing import drain

KEYS = ["a"] * (IN_TURN + RUN + 2) + ["b", "c", "b"]
IN_RUNS = ["a", "b", "c", "a", "b", *["a"] * (IN_TURN + RUN)]
pytestmark = pytest.mark.stores


class Seen(Silent):
    """Fairness keys of the tasks of the last submit, as an observer gets them."""

    def submitted(self, tasks: Sequence[NewTask]) -> None:
        self.keys = [task.fairness_key for task in tasks]


async def test_each_key_of_a_submit_runs_once_before_any_runs_twice(app: App) -> None:
    """Far more tasks than memory holds at first: the lane knows all keys before it starts one."""
    app.queue("q", order="fair", partitions=1)
    ran: list[str] = []

    @app.task(queue="q")
    async def note(key: str) -> None:
        ran.append(key)

    keys = [f"k{n}" for n in range(140) for _ in range(1 + 2000 // (n + 1))]
    random.Random(1).shuffle(keys)
    app.submit_many([note.options(fairness_key=key).draft(key=key) for key in keys])
    await drain(app, concurrency=50)
    assert len(set(ran[:140])) == 140


def stored(app: App, order: str, keys: list[str]) -> list[str]:
    """Submit a task of each key in one submit to a queue of this order; return the keys in the
    order of their ids. Fail unless the handles and what an observer sees are in the order of the
    drafts."""
    app.queue("q", order=order)

    @app.task(queue="q")
    async def note(number: int) -> None: ...

    seen = app.observer = Seen()
    handles = app.submit_many(
        [note.options(fairness_key=key).draft(number=n) for n, key in enumerate(keys)]
    )
    assert seen.keys == keys
    show = app.management
    assert [show.show(handle.id).fairness_key for handle in handles[:10]] == keys[:10]
    numbers = [json.loads(show.payload(handle.id) or b"") for handle in handles[:10]]
    assert numbers == [{"number": n} for n in range(len(numbers))]
    by_id = sorted(zip((handle.id for handle in handles), keys, strict=True))
    return [key for _, key in by_id]


def test_a_fair_queue_shows_its_keys_first(app: App) -> None:
    assert stored(app, "fair", KEYS) == IN_RUNS


def test_a_fifo_queue_stores_tasks_as_they_are_submitted(app: App) -> None:
    assert stored(app, "fifo", KEYS) == KEYS


def test_the_pieces_of_a_large_submit_are_stored_in_runs_together(app: App) -> None:
    flood, late = ["a"] * (2 * BULK), ["b"] * (IN_TURN + 5)
    turns = ["a", "b"] * IN_TURN
    assert stored(app, "fair", flood + late) == [
        *turns,
        *["a"] * RUN,
        *["b"] * 5,
        *["a"] * (2 * BULK - IN_TURN - RUN),
    ]
