"""PostgreSQL finds the rows of reads and of small changes in long tables by an index, whatever its
statistics say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from fairlead.backends.postgres.backlog import PostgresBacklogStore
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.low_water import TaskMarks
from fairlead.backends.postgres.polling import Polling
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql.drivers import drive
from fairlead.backends.sql.history import SqlHistory
from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.sql_file import load
from fairlead.model import LaneKey, Level, PartitionKey, State
from fairlead.model.history import Position
from fairlead.ports.statements import Statement, Steps
from fairlead.ports.task_records import TaskFilter
from tests import tiers
from tests.integration.plans import CASES, GROWING, Explainer, explaining, lie, unanalyzed

FILLED = GROWING - {"fairlead_schedule", "fairlead_completions"}
"""Tables that the test fills; test_schedule_plans.py fills the others."""

ROWS = 20_000
MIDDLE = ROWS // 2
FEW = 20
LANE = LaneKey("mail", 0, 5)
QUIET = "quiet"
"""Queue with a few tasks of each kind, submitted before the flood."""


class Read(NamedTuple):
    """Steps that read few rows."""

    name: str
    steps: Steps[Any]
    rows: int = FEW
    """Rows that the steps may read."""


FILL = (
    """
INSERT INTO fairlead_tasks (id, queue, partition, name, state, priority, fairness_key, weight, keep_result, submitted_at,
       run_at, ready_at, ready_seq, due_at, due_seq, order_seq, payload_format, payload)
SELECT {id}, CASE WHEN n <= 5 THEN 'quiet' ELSE 'mail' END, CASE WHEN n <= 5 THEN n ELSE 0 END, 'send', 'SUBMITTED', 5,
       'key-' || n % 100, 1, false, n, n, n, n, NULL, NULL, NULL, 'json', '{{}}'
  FROM generate_series(1, {rows}) AS n
""",
    """
INSERT INTO fairlead_tasks (id, queue, partition, name, state, priority, fairness_key, weight, keep_result, submitted_at,
       run_at, ready_seq, due_at, due_seq, ordering_key, order_at, order_seq, payload_format, payload)
SELECT gen_random_uuid(), 'later', 0, 'send', 'WAITING', 5, '', 1, false, n, n, NULL, 10 * n, n, 'key-' || n % 100, n, n, 'json', '{{}}'
  FROM generate_series(1, {rows} / 4) AS n
""",
    """
INSERT INTO fairlead_attempts (xid, task_id, attempt, tries, queue, name, partition, priority, fairness_key, weight, version,
       submitted_at, run_at, finished_at, outcome, next_state, trigger_path, payload_bytes)
SELECT n::text::xid8, {id}, 1, 1, 'mail', 'send', 0, 5, 'key-' || n % 100, 1, 1, n, n, n, 'done', 'DONE', 'hook', 0
  FROM generate_series(1, {rows}) AS n
""",
    """
INSERT INTO fairlead_events (xid, task_id, version, kind, at, queue, name, fairness_key, weight, priority, run_at)
SELECT n::text::xid8, {id}, 1, 'changed', n, 'mail', 'send', '', 1, 5, n FROM generate_series(1, {rows}) AS n
""",
    """
INSERT INTO fairlead_results (task_id, finished_at, result) SELECT {id}, n, '{{}}' FROM generate_series(1, {rows}) AS n
""",
    """
INSERT INTO fairlead_run_notes (task_id, attempt, began_at, reported_at) SELECT {id}, 1, n, n FROM generate_series(1, {rows}) AS n
""",
    """
INSERT INTO fairlead_unique_keys (queue, unique_key, task_id, kept_until, is_ended)
SELECT 'mail', 'u' || n, {id}, n, true FROM generate_series(1, {rows}) AS n
""",
    """
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at, delivered_at)
SELECT CASE WHEN n % 2 = 0 THEN 'error' ELSE 'stuck' END, {id}::text, 1, 'mail', 'send', n, n, repeat('-', 100), n,
       CASE WHEN n % 1000 = 1 THEN NULL ELSE n END
  FROM generate_series(1, {rows}) AS n
""",
    """
INSERT INTO fairlead_backlog (queue, partition, priority, pass, id, task_id, version, name, fairness_key, weight, seq, order_at)
SELECT CASE WHEN n <= 5 THEN 'quiet' ELSE 'mail' END, 0, 5, n, n, {id}, 1, 'send', 'key-' || n % 100, 1, n, 0
  FROM generate_series(1, {rows}) AS n
""",
    """
INSERT INTO fairlead_task_log (queue, partition, message)
SELECT CASE WHEN n <= 5 THEN 'quiet' ELSE 'mail' END, 0, repeat('-', 300) FROM generate_series(1, {rows}) AS n
""",
)
"""Statements that fill the tables with rows numbered from 1."""

ID = "('01938d2c-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"
"""Id of the task of row n, in a statement."""


def _id(n: int) -> str:
    return f"01938d2c-0000-7000-8000-{n:012x}"


@pytest.fixture
def database(postgres_url: str) -> Iterator[PostgresDatabase]:
    yield from unanalyzed(postgres_url)


def _fill(explain: Explainer, rows: int) -> None:
    for statement in FILL:
        explain.connection.execute(statement.format(id=ID, rows=rows).encode())


def _run(read: Read, explain: Explainer) -> None:
    """Execute the steps, each statement explained, and undo what they change."""
    with explain.connection.transaction(force_rollback=True):
        drive(read.steps, explain)


def _one(statement: Statement) -> Steps[Any]:
    return (yield statement)


def _reads(database: PostgresDatabase) -> Iterator[Read]:
    store = PostgresTaskStore(database)
    ids = [_id(n) for n in range(MIDDLE, MIDDLE + FEW)]
    yield Read("lanes", store.lanes())
    yield Read("oldest_ready", store.oldest_ready())
    yield Read("ready_without", _one(store.statement("ready_without", *LANE, MIDDLE, FEW, FEW)))
    yield Read("stuck", store._stuck_rows(1, FEW), 5000)
    yield Read("has_unfinished", store.has_unfinished(["mail"]))
    yield Read("has_unfinished of none", store.has_unfinished(["nothing"]), 5000)
    yield Read("ahead", store.ahead(_id(FEW), FEW))
    yield Read("ahead of many", store.ahead(_id(ROWS - 1), FEW))
    yield Read("ahead in a quiet queue", store.ahead(_id(3), FEW))
    yield Read("statuses", store.statuses(ids))
    yield Read("ids_after", _one(store.statement("ids_after", ids[0], FEW)))
    for name in ("task", "last_attempt", "payload", "attempts", "result"):
        yield Read(name, _one(store.statement(name, ids[0])))
    keys = batch([("mail", f"u{n}") for n in range(FEW)])
    for name in ("unique_key_owners", "free_unique_keys"):
        yield Read(name, _one(store.statement(name, keys, 0)))
    yield from _of_polling(database)
    yield from _of_history(store)
    yield from _of_console(store)
    yield from _of_incidents(store)
    yield from _of_backlog(store)
    yield from _of_log(store)


def _of_polling(database: PostgresDatabase) -> Iterator[Read]:
    polling = Polling(database, TaskMarks())
    yield Read("changes", _one(Statement(polling._changed, polling._marks.due)))
    for above in (ROWS, ROWS - 1, 0):
        lanes = Statement(polling._lanes_above, ("[]", above))
        yield Read(f"lanes_above {above}", _one(lanes))


def _of_history(store: PostgresTaskStore) -> Iterator[Read]:
    history = SqlHistory(store.database)
    after, until = Position(MIDDLE, 0), Position(MIDDLE + FEW, 1 << 40)
    end = Position(ROWS, 1 << 40)
    yield Read("attempts", history.attempts(after, end, FEW))
    yield Read("events", history.events(after, end, FEW))
    yield Read("submitted", history.submitted(_id(MIDDLE), 1 << 60, FEW), 100)
    yield Read("ended", history.ended(after, until, 0, 0))
    yield Read("attempts_between", history.attempts_between(after, until))
    yield Read("position_after", history.position_after(after, end, FEW))


def _of_console(store: PostgresTaskStore) -> Iterator[Read]:
    reads = store.reads
    middle = _id(MIDDLE)
    for newest in (True, False):
        for name, where in {
            "all": TaskFilter(),
            "after": TaskFilter(after=middle),
            "unique key": TaskFilter(unique_key="u9"),
            "id": TaskFilter(id_prefix=middle.replace("-", "")[:-1]),
        }.items():
            yield Read(f"page {name} {newest}", reads.page(where, FEW, newest))
        ordered = TaskFilter(ordering_key="key-9")
        in_error = TaskFilter(state=State.ERROR, after=middle)
        yield Read(f"page ERROR {newest}", reads.page(in_error, FEW, newest, 500), 500)
        yield Read(f"page ordered {newest}", reads.page(ordered, FEW, newest), 250)
        for name, where in {
            "all": TaskFilter(state=State.DONE),
            "after": TaskFilter(state=State.DONE, after=str(Position(MIDDLE, 0))),
            "id": TaskFilter(state=State.DONE, id_prefix=middle.replace("-", "")[:-1]),
        }.items():
            walked = reads.page(where, FEW, newest, most_walked=100)
            yield Read(f"finished {name} {newest}", walked, 100)
    yield Read("runs", reads.runs(FEW))
    yield Read("errors", reads.errors(FEW))
    yield Read("running", reads.running(FEW))
    yield Read("mark", reads.mark())
    yield Read("key_settings", reads.key_settings([("mail", f"key-{n}") for n in range(FEW)]))


def _of_incidents(store: PostgresTaskStore) -> Iterator[Read]:
    incidents: Any = store.incidents
    ids, subjects = list(range(MIDDLE, MIDDLE + FEW)), [_id(n) for n in range(FEW)]
    yield Read("latest", incidents.latest(MIDDLE, FEW))
    yield Read("undelivered", incidents.undelivered(FEW))
    # By statistics of a short table, a page of a kind is sorted from all of its rows.
    yield Read("open", incidents.open(["error", "stuck", "task_unreadable"], FEW), 15 * FEW)
    reports = [("stuck", subject, 1, "mail", "send", 0, "") for subject in subjects]
    for name, *params in (
        ("note_errors", batch(subjects), 1),
        ("drop_errors", batch([(subject, 1) for subject in subjects])),
        ("report", batch(reports), 1, 0),
        ("tasks_of", batch(subjects)),
        ("delete", batch(ids)),
        ("delivered", batch(ids), 1),
        ("retry", batch([(id, 1) for id in ids])),
    ):
        yield Read(f"incidents {name}", incidents._one(name, *params), 3 * FEW)


def _of_backlog(store: PostgresTaskStore) -> Iterator[Read]:
    backlog = PostgresBacklogStore(store)
    quiet, middle, behind = LaneKey(QUIET, 0, 5), Level(MIDDLE, 0), Level(MIDDLE + FEW, 0)
    yield Read("take_over", backlog._take_over([PartitionKey("mail", 0)]))
    yield Read("ahead", backlog._rows("ahead", *LANE, *middle, *behind, 10_000))
    yield Read("ahead of many", backlog._rows("ahead", *LANE, 0, 0, *middle, FEW))
    yield Read("ahead of few", backlog._rows("ahead", *quiet, 0, 0, *middle, 10_000))
    yield Read("records", backlog._records())


def _of_log(store: PostgresTaskStore) -> Iterator[Read]:
    sql = load("schedule.sql", "fairlead.backends.postgres")
    asked = batch([("mail", n, 0) for n in range(8)])
    yield Read("receive", _one(Statement(sql["receive"], (asked, FEW, 0, 100_000))))
    yield Read("has_entries", _one(Statement(sql["has_entries"], ("mail", asked, 0))))
    seqs = batch(list(range(MIDDLE, MIDDLE + FEW)))
    yield Read("commit", _one(Statement(sql["commit"], (seqs, "mail", 0))))
    rows = [
        (_id(n), 1, 1, "mail", "send", 0, 5, "", 1, "", "", 1, *[n] * 7, "done", "DONE", None, None)
        + (None, "hook", 0, "")
        for n in range(MIDDLE, MIDDLE + FEW)
    ]
    yield Read("append_attempts", _one(Statement(sql["append_attempts"], (batch(rows),))))


@pytest.mark.parametrize("case", tiers.matrix(*CASES), ids="-".join)
def test_no_read_of_few_rows_is_planned_to_read_a_table(
    database: PostgresDatabase, case: tuple[str, str]
) -> None:
    statistics, mode = case
    long = []
    with explaining(database, case, lambda explain: _fill(explain, 30)) as explain:
        connection = explain.connection
        for _ in range(7 if mode == "auto" else 1):  # caches the plans of the statements
            for read in _reads(database):
                _run(read, explain)
        for table in sorted(FILLED):
            connection.execute(f"DELETE FROM {table}".encode())
        _fill(explain, ROWS)
        lie(connection, statistics)
        explain.is_checking = True
        for plans in ("old", "new"):
            for read in _reads(database):
                explain.findings = []
                _run(read, explain)
                most = 270 if read.rows <= FEW else 150 + 6 * read.rows
                long += [
                    f"{read.name}, {plans} plans: {finding.buffers} pages\n{finding.sql}\n{finding.text}"
                    for finding in explain.findings
                    if finding.buffers > most
                ]
            connection.execute("DISCARD PLANS")  # as the server does now and then
    assert not long, "\n\n".join(long)
