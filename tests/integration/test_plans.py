"""PostgreSQL finds the rows of every frequent statement by an index, whatever its statistics say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from fairlead.backends.postgres.backlog import PostgresBacklogStore
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql.rows import batch
from fairlead.model import LaneKey, LaneRecord, Level, NewTask, PartitionKey, State
from fairlead.testing.contract.tasks import FACTS, NOW, SECOND, done, make, wanted
from tests import tiers
from tests.integration.plans import CASES, Explainer, do, explaining, lie, unanalyzed

BATCHES = (1, 64, 500)
LANE = LaneKey("mail", 0, 5)


@pytest.fixture
def database(postgres_url: str) -> Iterator[PostgresDatabase]:
    yield from unanalyzed(postgres_url)


@pytest.mark.parametrize("case", tiers.matrix(*CASES), ids="-".join)
def test_no_frequent_statement_is_planned_to_read_a_table(
    database: PostgresDatabase, case: tuple[str, str]
) -> None:
    statistics, mode = case
    store = PostgresTaskStore(database)
    with explaining(database, case, lambda explain: _leave_a_few(store, explain)) as explain:
        _work(store, explain, 1)  # caches the plans of the statements
        if mode == "auto":
            for _ in range(6):
                _work(store, explain, 1)
        tasks = [*make(1000), *_of_keys(2000)]
        do(store.submission(tasks), explain)
        lie(explain.connection, statistics)
        explain.is_checking = True
        explain.connection.execute("SET statement_timeout = '2s'")
        for size in BATCHES:
            _work(store, explain, size)
    assert not explain.faults(), "\n\n".join(explain.faults())


def _leave_a_few(store: PostgresTaskStore, explain: Explainer) -> None:
    """Run thirty tasks, and move two to ERROR."""
    tasks = make(32)
    do(store.submission(tasks), explain)
    claimed = _claim(store, explain, tasks)
    do(store.completion("node", [done(task) for task in claimed[2:]]), explain)
    do(store.completion("node", [_failed(task, State.ERROR) for task in claimed[:2]]), explain)


def _failed(task: Any, to: State, **more: Any) -> Any:
    return done(task, outcome="failed", next_state=to, error_type="E", error_text="e", **more)


def _claim(store: PostgresTaskStore, explain: Explainer, tasks: Sequence[Any], by: int = 1) -> Any:
    do(store._register_node("node", "[]", "[]", NOW, FACTS), explain)
    claims = wanted(tasks, version=by)
    return do(store._claim("node", claims, NOW, {}), explain)


def _work(store: PostgresTaskStore, explain: Explainer, size: int) -> None:
    """Execute every frequent statement with this many tasks."""
    _run_tasks(store, explain, size)
    _run_ordered_tasks(store, explain, size)
    _run_unique_tasks(store, explain, size)
    _lose_and_change_tasks(store, explain, size)
    _read_lanes(store, explain, size)
    _use_backlog(store, explain, size)
    for name in (
        "clean_attempts",
        "clean_events",
        "clean_results",
        "clean_run_notes",
        "clean_unique_keys",
    ):
        do(store._clean(name, NOW + SECOND, size), explain)


def _run_tasks(store: PostgresTaskStore, explain: Explainer, size: int) -> None:
    tasks = make(size, keep_result=True)
    do(store.submission(tasks), explain)
    claimed = _claim(store, explain, tasks)
    assert len(claimed) == size
    do(store._still_held("node", [task.id for task in claimed]), explain)
    rows = [(task.id, task.version, 1.0, 2.0, "note", NOW) for task in claimed]
    do(store.alone("write_progress", batch(rows), "node"), explain)
    do(store.statuses([task.id for task in claimed]), explain)
    notes = [(task.id, 1, NOW, None, None, None, None, "[]", 0) for task in claimed]
    do(store.alone("keep_notes", batch(notes)), explain)
    do(store._hand_back("node", [(task.id, task.version) for task in claimed]), explain)
    claimed = _claim(store, explain, tasks, by=3)
    retried = [_failed(task, State.WAITING, run_at=NOW + 5) for task in claimed]
    do(store.completion("node", retried), explain)
    assert do(store._wake_due(NOW + SECOND, size), explain).moved == size
    do(store._next_due(), explain)
    claimed = _claim(store, explain, tasks, by=6)
    assert len(claimed) == size
    again = [_failed(task, State.SUBMITTED) for task in claimed]
    do(store.completion("node", again), explain)
    claimed = _claim(store, explain, tasks, by=8)
    assert len(claimed) == size
    lost, *rest = claimed
    do(store.completion("node", [done(task, result=b"1") for task in [*rest, lost]]), explain)
    assert len(do(store.completion("node", [done(task) for task in claimed]), explain).refused)
    tasks = make(size)
    do(store.submission(tasks), explain)
    claimed = _claim(store, explain, tasks)
    assert not do(store.completion("node", [done(task) for task in claimed]), explain).refused


def _run_ordered_tasks(store: PostgresTaskStore, explain: Explainer, size: int) -> None:
    keys = [f"key-{number % 50}" for number in range(size)]
    tasks = [make(1, ordering_key=key)[0] for key in keys]
    do(store.submission(tasks), explain)
    do(store.ordered(sorted({("mail", key) for key in keys}), 20), explain)
    heads = tasks[:50]
    claimed = _claim(store, explain, heads)
    assert len(claimed) == len(heads)
    do(store.changed([(task.id, 1) for task in tasks]), explain)
    do(store.completion("node", [done(task) for task in claimed]), explain)
    do(store.completion("node", [done(t) for t in _claim(store, explain, tasks)]), explain)
    for task in tasks:
        explain.connection.execute("DELETE FROM fairlead_tasks WHERE id = %s", (task.id,))


def _run_unique_tasks(store: PostgresTaskStore, explain: Explainer, size: int) -> None:
    tasks = [task for n in range(size) for task in make(1, unique_key=f"k{size}-{n}")]
    do(store.submission(tasks), explain)
    claimed = _claim(store, explain, tasks)
    do(store.completion("node", [done(task) for task in claimed]), explain)


def _lose_and_change_tasks(store: PostgresTaskStore, explain: Explainer, size: int) -> None:
    tasks = make(size)
    do(store.submission(tasks), explain)
    assert len(_claim(store, explain, tasks)) == size
    checking, explain.is_checking = explain.is_checking, False  # looks at every task, after a death
    assert do(store._resume_lost(["node"], NOW, size, 5), explain).moved == size
    explain.is_checking = checking
    first, second, *_ = [*tasks, *make(1)]
    do(store.move([(first.id, 3)], State.WAITING, NOW + 9, NOW, False), explain)
    do(store.change([(second.id, 3)], 5, "other", NOW, "me"), explain)
    do(store.task(first.id), explain)
    do(store.end([(first.id, 4)], State.CANCELLED, NOW, "me"), explain)
    claimed = _claim(store, explain, tasks, by=3)
    do(store.completion("node", [_failed(task, State.ERROR) for task in claimed]), explain)
    incidents = store.incidents
    found = do(incidents._claim(NOW + SECOND, NOW + 2 * SECOND, size), explain)
    assert found is not None
    do(incidents._sweep(0, NOW, size), explain)
    do(incidents._one("counts", 0), explain)
    explain.connection.execute("DELETE FROM fairlead_tasks WHERE state = 'ERROR'")


def _of_keys(count: int) -> list[NewTask]:
    """Return tasks of 100 fairness keys."""
    return [make(1, fairness_key=f"key-{number % 100:02}")[0] for number in range(count)]


def _read_lanes(store: PostgresTaskStore, explain: Explainer, size: int) -> None:
    do(store.ready(LANE, 0, size), explain)
    keys = do(store.ready_keys(LANE, "", size), explain)
    do(store.ready_of(LANE, [(key, 0) for key, _ in keys], 20), explain)
    do(store.lanes(), explain)
    do(store.oldest_ready(), explain)


def _use_backlog(store: PostgresTaskStore, explain: Explainer, size: int) -> None:
    backlog = PostgresBacklogStore(store)
    partition = PartitionKey("mail", 0)
    range_id = do(backlog._take_over([partition]), explain)[partition].range_id
    tasks = make(size)
    do(store.submission(tasks), explain)
    triggers = do(store.ready(LANE, 0, 10_000), explain)[-size:]
    entries = [
        msgspec.structs.replace(trigger, level=Level(range_id, number))
        for number, trigger in enumerate(triggers)
    ]
    record = LaneRecord()
    do(backlog._write(LANE, range_id, entries, record), explain)
    start = Level(range_id, -1)
    do(backlog._rows("read_above", *LANE, *start, size), explain)
    do(backlog._rows("entries", batch([entry.id for entry in entries]), *LANE, *start), explain)
    do(backlog._delete_through(LANE, range_id, Level(range_id, size)), explain)


@pytest.mark.parametrize("has_statistics", [False, True])
def test_a_search_for_due_tasks_reads_few_pages_of_a_long_table(
    database: PostgresDatabase, has_statistics: bool
) -> None:
    store = PostgresTaskStore(database)
    with database.connect() as connection:
        connection.prepare_threshold = None
        for _ in range(10):
            for run_at in (NOW, NOW + SECOND, NOW + 9 * SECOND):
                database.run(store.submission(make(1000, run_at=run_at)))
        if has_statistics:
            connection.execute("ANALYZE")
        explain = Explainer(connection)
        for _ in range(4):  # until the positions are settled
            store._snapshots.late_at = 0.0
            do(store._next_due(), explain)
        explain.findings = []
        do(store._next_due(), explain)
        assert len(do(store._due_rows(NOW + SECOND, 20), explain)) == 20
        pages = [finding.buffers for finding in explain.findings]
        assert max(pages) < 100, (pages, [finding.text for finding in explain.findings])
