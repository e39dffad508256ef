"""Promises of `fairlead.ports.sql_store.SqlStore` on the notes of runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import App
from fairlead.backends.sql.run_notes import MOST_NOTES
from fairlead.model import ClaimedTask, LogLine, NewTask, Progress, ProgressReport, RunNotes
from fairlead.ports.sql_store import SqlStore
from fairlead.testing.contract.tasks import AWKWARD, FACTS, NOW, SECOND, claimed, done, make, submit
from tests.conftest import url_of

pytestmark = pytest.mark.asyncio

NEVER_SUBMITTED = ["", "no id", "'; DROP TABLE t;--", "00000000-0000-7000-8000-000000000000"]


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[SqlStore]:
    """Return a new store of each kind in turn."""
    app = App(url_of(request.param, request))
    app.migrate()
    yield app.store
    app.close()


async def one_run(store: SqlStore, node: str = "node-1") -> ClaimedTask:
    """Return a new task that this node holds."""
    tasks = make()
    submit(store, tasks)
    (task,) = await claimed(store, tasks, node=node)
    return task


async def next_run(store: SqlStore, task: ClaimedTask, node: str = "node-1") -> ClaimedTask:
    """End the run to be tried again, and return the next one, on the same node."""
    await store.complete(node, [done(task, outcome="retried", next_state="SUBMITTED")])
    (again,) = await claimed(store, [task], node=node, version=task.version + 1)
    return again


def report(task: ClaimedTask, amount: float, at: int = NOW, **more: Any) -> ProgressReport:
    """Return a report of `amount` done at this instant."""
    progress = Progress(amount, more.get("total"), more.get("note"), at, task.attempt)
    return ProgressReport(task.id, task.version, progress)


def progress(store: SqlStore, task_id: str) -> Progress | None:
    """Return the progress that the store returns."""
    found: Progress | None = store.database.read_now(store.progress(task_id))
    return found


def notes(store: SqlStore, task_id: str) -> list[RunNotes]:
    """Return the notes that the store returns."""
    found: list[RunNotes] = store.database.read_now(store.run_notes(task_id))
    return found


def checkpoint(store: SqlStore, node: str, task: ClaimedTask, value: bytes) -> bool:
    """Store a checkpoint; return whether the store took it."""
    steps = store.store_checkpoint(node, task.id, task.version, value)
    return bool(store.database.run(steps))


# progress -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "total", "note"),
    [
        (0, None, None),
        (0.1, 0, ""),
        (1e15, 1e15, AWKWARD),
        (3, 2.5, "\N{SNOWMAN}" * 300),
    ],
)
async def test_progress_comes_back_as_it_was_reported(
    store: SqlStore, amount: float, total: float | None, note: str | None
) -> None:
    """`progress` returns each field of a report, whatever the text of its note is."""
    task = await one_run(store)
    await store.write_progress("node-1", [report(task, amount, NOW + 5, total=total, note=note)])
    assert progress(store, task.id) == Progress(amount, total, note, NOW + 5, 1)


async def test_one_write_carries_the_progress_of_many_tasks(store: SqlStore) -> None:
    """`write_progress` takes the reports of all runs of a node at once, or none."""
    tasks = make(300)
    submit(store, tasks)
    held = await claimed(store, tasks)
    await store.write_progress("node-1", [])
    await store.write_progress("node-1", [report(t, n) for n, t in enumerate(held)])
    found = [progress(store, task.id) for task in held]
    assert [each and each.done for each in found] == list(range(300))


async def test_an_earlier_report_of_a_run_never_replaces_a_later_one(store: SqlStore) -> None:
    """Reports that arrive in another order leave the latest one."""
    task = await one_run(store)
    for at, amount in ((NOW + 5, 7), (NOW + 4, 6), (NOW + 6, 8), (NOW + 5, 7)):
        await store.write_progress("node-1", [report(task, amount, at)])
    assert progress(store, task.id) == Progress(8, None, None, NOW + 6, 1)


async def test_a_node_reports_only_for_the_runs_that_it_holds(store: SqlStore) -> None:
    """Reports of another node, of an earlier version and of an ended run change nothing, and those
    in the same write for other tasks are stored."""
    first, other = await one_run(store), await one_run(store)
    await store.register_node("node-2", [], [], NOW, FACTS)
    await store.write_progress("node-2", [report(first, 1)])
    assert progress(store, first.id) is None
    second = await next_run(store, first)
    await store.write_progress("node-1", [report(first, 2), report(other, 3)])
    assert progress(store, first.id) is None
    assert progress(store, other.id) == Progress(3, None, None, NOW, 1)
    await store.complete("node-1", [done(second)])
    await store.write_progress("node-1", [report(second, 4)])
    assert progress(store, first.id) is None


async def test_progress_is_that_of_the_latest_run_that_reported_any(store: SqlStore) -> None:
    """A run without a report leaves the progress of the run before it; log lines are none."""
    first = await one_run(store)
    await store.write_progress("node-1", [report(first, 4, NOW + 9)])
    second = await next_run(store, first)
    assert progress(store, first.id) == Progress(4, None, None, NOW + 9, 1)
    lines = (LogLine(NOW, "INFO", "shop", "begins"),)
    await store.complete("node-1", [done(second, notes=RunNotes(2, None, lines))])
    assert progress(store, first.id) == Progress(4, None, None, NOW + 9, 1)


# checkpoints --------------------------------------------------------------------------------------


async def test_the_next_run_gets_the_latest_checkpoint(store: SqlStore) -> None:
    """A checkpoint takes the place of an earlier one, and comes with the next claim."""
    first = await one_run(store)
    assert first.checkpoint is None
    assert checkpoint(store, "node-1", first, b"1")
    assert checkpoint(store, "node-1", first, b'{"row":"\\u00fc"}')
    second = await next_run(store, first)
    assert (second.attempt, second.checkpoint) == (2, b'{"row":"\\u00fc"}')
    await store.resume_lost(["node-1"], NOW + SECOND, 10)
    (third,) = await claimed(store, [second], version=second.version + 1)
    assert third.checkpoint == second.checkpoint, "also after the loss of its node"


async def test_a_checkpoint_of_a_run_that_lost_its_task_is_refused(store: SqlStore) -> None:
    """`store_checkpoint` returns False for another node, version or state, and stores nothing."""
    first = await one_run(store)
    await store.register_node("node-2", [], [], NOW, FACTS)
    assert not checkpoint(store, "node-2", first, b"2")
    second = await next_run(store, first)
    assert second.checkpoint is None
    assert not checkpoint(store, "node-1", first, b"1")
    await store.complete("node-1", [done(second)])
    assert not checkpoint(store, "node-1", second, b"2")


async def test_a_checkpoint_of_an_unknown_task_is_refused(store: SqlStore) -> None:
    """`store_checkpoint` returns False for every text that is the id of no task."""
    await store.register_node("node-1", [], [], NOW, FACTS)
    for task_id in NEVER_SUBMITTED:
        steps = store.store_checkpoint("node-1", task_id, 1, b"1")
        assert not store.database.run(steps)


# notes --------------------------------------------------------------------------------------------


async def test_the_end_of_a_run_writes_its_notes(store: SqlStore) -> None:
    """`complete` stores the last progress, the log lines and the number of dropped ones."""
    task = await one_run(store)
    last = Progress(9, 10, AWKWARD, NOW + 8, 1)
    lines = tuple(LogLine(NOW + n, "WARNING", "shop", f"{n} {AWKWARD}") for n in range(200))
    kept = RunNotes(1, last, lines, dropped=3)
    await store.write_progress("node-1", [report(task, 1, NOW + 1)])
    await store.complete("node-1", [done(task, notes=kept)])
    assert notes(store, task.id) == [kept]
    assert progress(store, task.id) == last


async def test_an_end_without_new_progress_keeps_the_stored_one(store: SqlStore) -> None:
    """Log lines at the end of a run are stored beside the progress of the run."""
    task = await one_run(store)
    await store.write_progress("node-1", [report(task, 5, NOW + 1, total=6)])
    lines = (LogLine(NOW, "INFO", "shop", ""),)
    await store.complete("node-1", [done(task, notes=RunNotes(1, None, lines))])
    stored = Progress(5, 6, None, NOW + 1, 1)
    assert notes(store, task.id) == [RunNotes(1, stored, lines)]


async def test_runs_without_notes_are_left_out(store: SqlStore) -> None:
    """`notes` returns the runs that have any, first to last."""
    first = await one_run(store)
    await store.write_progress("node-1", [report(first, 1)])
    third = await next_run(store, await next_run(store, first))
    await store.write_progress("node-1", [report(third, 3)])
    assert [each.attempt for each in notes(store, first.id)] == [1, 3]


async def test_the_latest_runs_are_returned(store: SqlStore) -> None:
    """`run_notes` returns at most MOST_NOTES runs, the latest ones."""
    task = await one_run(store)
    for number in range(MOST_NOTES + 2):
        await store.write_progress("node-1", [report(task, number)])
        task = await next_run(store, task)
    found = notes(store, task.id)
    assert [each.attempt for each in found] == list(range(3, MOST_NOTES + 3))


async def test_an_unknown_task_has_no_notes(store: SqlStore) -> None:
    """Reads of every text that is the id of no task return nothing."""
    waiting: list[NewTask] = make()
    submit(store, waiting)
    for task_id in [*NEVER_SUBMITTED, waiting[0].id]:
        assert progress(store, task_id) is None
        assert notes(store, task_id) == []


async def test_notes_are_kept_as_long_as_the_history(store: SqlStore) -> None:
    """`clean` removes the notes of tasks whose attempts are too old, and no others."""
    ended, running = await one_run(store), await one_run(store)
    await store.write_progress("node-1", [report(ended, 1), report(running, 2)])
    await store.complete("node-1", [done(ended)])
    while await store.clean(NOW, 1000):
        pass
    assert notes(store, ended.id)
    while await store.clean(NOW + SECOND, 1000):
        pass
    assert notes(store, ended.id) == []
