"""Beside a transaction that stays open, PostgreSQL keeps the rows of tasks that have run. No frequent
statement reads them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence

import psycopg
import pytest

from fairlead.backends.postgres import task_store
from fairlead.backends.postgres.backlog import PostgresBacklogStore
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql.migrate import migrate
from fairlead.model import (
    IncidentKind,
    IncidentReport,
    LaneKey,
    Level,
    NewTask,
    PartitionKey,
    State,
)
from fairlead.testing.contract.tasks import FACTS, NOW, SECOND, done, make, wanted
from tests.integration.plans import Explainer, beside_a_backup, do

LANE = LaneKey("mail", 0, 5)
ROUND = 200

FILL = {
    "clean_attempts": """
        INSERT INTO fairlead_attempts (task_id, attempt, tries, queue, name, partition, priority,
               fairness_key, weight, version, submitted_at, run_at, finished_at, outcome, next_state,
               trigger_path, payload_bytes)
        SELECT gen_random_uuid(), 1, 1, 'mail', 'send', 0, 5, '', 1, 2, 0, 0, n, 'done', 'DONE',
               'hook', 0
          FROM generate_series(1, %s) AS n""",
    "clean_events": """
        INSERT INTO fairlead_events (task_id, version, kind, at, queue, name, fairness_key, weight,
               priority, run_at)
        SELECT gen_random_uuid(), 1, 'changed', n, 'mail', 'send', '', 1, 5, 0
          FROM generate_series(1, %s) AS n""",
    "clean_results": """
        INSERT INTO fairlead_results (task_id, finished_at, result)
        SELECT gen_random_uuid(), 1000000 * nextval('fairlead_ready_seq'), 'null'
          FROM generate_series(1, %s) AS n""",
    "clean_run_notes": """
        INSERT INTO fairlead_run_notes (task_id, attempt, began_at, lines)
        SELECT gen_random_uuid(), 1, 1000000 * nextval('fairlead_ready_seq'), repeat('x', 1000)
          FROM generate_series(1, %s) AS n""",
    "clean_unique_keys": """
        INSERT INTO fairlead_unique_keys (queue, unique_key, task_id, is_ended, kept_until)
        SELECT 'mail', gen_random_uuid(), gen_random_uuid(), true, 1000000 * nextval('fairlead_ready_seq')
          FROM generate_series(1, %s) AS n""",
}
"""Statements that add rows of the history, by the statement that deletes them."""

ADD_LEVELS = """
    INSERT INTO fairlead_backlog (queue, partition, priority, pass, id, task_id, version, name,
           fairness_key, weight, seq, order_at)
    SELECT 'mail', 0, 5, 1, n, gen_random_uuid(), 1, 'send', '', 1, 0, 0
      FROM generate_series(%s::bigint, %s::bigint) AS n
"""


@pytest.fixture
def store(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresTaskStore]:
    """Return a store on tables of its own: a TRUNCATE between tests would take their pages. A slow
    search adds no statement to those that a test counts."""
    monkeypatch.setattr(task_store, "SLOW_SECONDS", math.inf)
    database = PostgresDatabase(postgres_url)
    migrate(database, levels=True)
    yield PostgresTaskStore(database)
    database.close()


def test_no_frequent_statement_reads_rows_of_tasks_that_ran_beside_an_open_transaction(
    store: PostgresTaskStore,
) -> None:
    with beside_a_backup(store) as connection:
        explain = Explainer(connection)
        do(store.ready(LANE, 0, 1), explain)
        for _ in range(4):
            _run(store, explain, ROUND)
        first = _buffers(store, explain)
        for _ in range(12):
            _run(store, explain, ROUND)
        later = _buffers(store, explain)
        assert {name: (first[name], n) for name, n in later.items() if n > first[name] + 30} == {}


def test_a_search_reads_no_dead_rows_below_the_mark_of_any_lane(store: PostgresTaskStore) -> None:
    lanes = [LaneKey("mail", 0, 2), LaneKey("mail", 0, 7), LaneKey("mail", 3, 5), LANE]
    lanes.sort()
    with beside_a_backup(store) as connection:
        explain, pages = Explainer(connection), []
        for count in (1_000, 10_000):
            for lane in lanes:
                place = {"queue": lane.queue, "partition": lane.partition}
                tasks = make(count, priority=lane.priority, **place)
                store.database.run(store.submission(tasks))
            assert sorted(store.database.run(store.lanes())) == lanes
            connection.execute("DELETE FROM fairlead_tasks")
            for _ in range(3):  # until the positions are settled
                assert store.database.run(store.lanes()) == []
            explain.findings = []
            do(store.lanes(), explain)
            do(store.oldest_ready(), explain)
            do(store._stuck(NOW, 10), explain)
            pages.append([finding.buffers for finding in explain.findings])
        assert all(after <= before + 30 for before, after in zip(*pages, strict=True)), pages


def test_a_search_for_stuck_tasks_reads_as_many_pages_however_deep_the_lanes_are(
    store: PostgresTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_store, "_STUCK_ROWS", 400)
    with psycopg.connect(store.database.url, autocommit=True) as connection:
        explain, pages = Explainer(connection), []
        for count in (50, 2_000):
            for partition in range(8):
                store.database.run(store.submission(make(count, partition=partition)))
            connection.execute("ANALYZE fairlead_tasks")
            explain.findings = []
            do(store._stuck(NOW, 10), explain)
            pages.append(sum(finding.buffers for finding in explain.findings))
    assert pages[1] <= pages[0] + 200, pages


def test_a_backlog_is_deleted_without_a_read_of_levels_that_were_deleted_before(
    store: PostgresTaskStore,
) -> None:
    backlog, key = PostgresBacklogStore(store), PartitionKey(LANE.queue, LANE.partition)
    with beside_a_backup(store) as connection:
        asyncio.run(backlog.take_over([key]))
        explain, pages = Explainer(connection), []
        for number in range(1, 9):
            through = Level(1, number * ROUND)
            connection.execute(ADD_LEVELS, [through.id - ROUND + 1, through.id])
            asyncio.run(backlog.delete_through(LANE, 1, through))
            do(backlog._delete_through(LANE, 1, Level(1, through.id + 1)), explain)
            pages.append(explain.findings[-1].buffers)
        assert pages[-1] <= pages[0] + 10, pages


def test_a_search_for_an_unfinished_task_reads_none_of_those_behind_it(
    store: PostgresTaskStore,
) -> None:
    store.database.run(store._register_node("node", "[]", "[]", NOW, FACTS))
    (retried,) = make(1)
    store.database.run(store.submission([retried]))
    (held,) = store.database.run(store._claim("node", wanted([retried]), NOW, {}))
    retry = done(held, outcome="retried", next_state="WAITING", run_at=NOW + SECOND)
    store.database.run(store.completion("node", [retry]))
    store.database.run(store.submission(make(20_000, run_at=NOW + 60 * SECOND)))
    with store.database.connect() as connection:
        connection.prepare_threshold = None
        explain = Explainer(connection)
        assert do(store.has_unfinished(["mail"]), explain)
        store.database.run(store.submission(make(20_000)))
        assert do(store.has_unfinished(["mail"]), explain)
    pages = [finding.buffers for finding in explain.findings]
    assert max(pages) < 100, pages


def test_a_claim_reads_no_heartbeats_that_were_sent_beside_an_open_transaction(
    store: PostgresTaskStore,
) -> None:
    store.database.run(store._register_node("node", "[]", "[]", NOW, FACTS))
    with beside_a_backup(store) as connection:
        explain, pages = Explainer(connection), []
        for _ in range(2):
            for number in range(400):
                store.database.run(store._heartbeat("node", NOW + number))
            (task,) = make(1)
            store.database.run(store.submission([task]))
            do(store._claim("node", wanted([task]), NOW, {}), explain)
            pages.append(explain.findings[-1].buffers)
        assert pages[1] <= pages[0] + 1, pages


def _report(subject: str) -> IncidentReport:
    kind = IncidentKind.TASK_UNREADABLE
    return IncidentReport(kind=kind, subject=subject, details="", since=NOW, queue="mail")


def test_a_report_that_is_repeated_each_second_replaces_few_rows(
    store: PostgresTaskStore,
) -> None:
    with store.database.connection() as connection:
        versions = set()
        for second in range(60):
            asyncio.run(store.incidents.report([_report("one")], NOW + second * SECOND))
            (version,) = connection.execute("SELECT ctid::text FROM fairlead_incidents").fetchall()
            versions.add(version)
    assert len(versions) == 3


@pytest.mark.parametrize("name", FILL)
def test_history_is_cleaned_without_a_read_of_rows_that_were_deleted_before(
    store: PostgresTaskStore, name: str
) -> None:
    with beside_a_backup(store) as connection:
        explain, pages = Explainer(connection), []
        for _ in range(8):
            connection.execute(FILL[name], [ROUND])
            while asyncio.run(store.clean(NOW, ROUND // 2)) == ROUND // 2:
                pass
            do(store._clean(name, NOW, 10), explain)
            pages.append(explain.findings[-1].buffers)
        assert pages[-1] <= pages[0] + 10, pages


def test_due_tasks_are_found_without_a_read_of_those_that_waited_before(
    store: PostgresTaskStore,
) -> None:
    with beside_a_backup(store) as connection:
        explain, pages = Explainer(connection), []
        for number in range(8):
            tasks = make(ROUND, run_at=NOW + number * SECOND + 1)
            store.database.run(store.submission(tasks))
            for _ in range(2):  # until the positions are settled
                store._snapshots.late_at = 0.0
                asyncio.run(store.next_due())
            now = NOW + (number + 1) * SECOND
            assert asyncio.run(store.wake_due(now, ROUND)).moved == ROUND
            connection.execute("DELETE FROM fairlead_tasks")
            (last,) = make(1, run_at=now)
            store.database.run(store.submission([last]))
            for _ in range(2):
                store._snapshots.late_at = 0.0
                asyncio.run(store.next_due())
            store.database.run(store.ready(LANE, 0, 1))
            for _ in range(3):
                store.database.run(store.lanes())
            explain.findings = []
            assert not do(store.has_unfinished(["mail"]), explain)
            do(store._next_due(), explain)
            do(store._due_rows(now, 10), explain)
            marks = store.sql["lane_snapshot"]
            found = [finding for finding in explain.findings if finding.sql != marks]
            pages.append([finding.buffers for finding in found])
            asyncio.run(store.wake_due(now, 10))
        # The least of several rounds: now and then the server cleans a page within a statement.
        later = map(min, zip(*pages[4:], strict=True))
        assert all(n <= first + 30 for first, n in zip(pages[0], later, strict=True)), pages


def _run(store: PostgresTaskStore, explain: Explainer, count: int) -> None:
    explain.is_checking = False
    _run_tasks(store, explain, count)
    do(store.lanes(), explain)


def _run_tasks(store: PostgresTaskStore, explain: Explainer, count: int) -> None:
    tasks = make(count)
    do(store.submission(tasks), explain)
    do(store._register_node("node", "[]", "[]", NOW, FACTS), explain)
    claimed = do(store._claim("node", wanted(tasks), NOW, {}), explain)
    do(store._still_held("node", [task.id for task in claimed]), explain)
    do(store.completion("node", [done(task) for task in claimed]), explain)


def _buffers(store: PostgresTaskStore, explain: Explainer) -> dict[str, int]:
    """Return the pages that each statement touches now, by its text."""
    for _ in range(3):
        _run(store, explain, 1)
    explain.is_checking, explain.findings = True, []
    _run_tasks(store, explain, 20)
    do(store.lanes(), explain)
    do(store.oldest_ready(), explain)
    do(store.has_unfinished(["mail"]), explain)
    do(store._stuck(NOW + 100 * SECOND, 10), explain)
    do(store.ready(LANE, 0, 1000), explain)
    assert not explain.faults(), explain.faults()[0]
    return {finding.sql: finding.buffers for finding in explain.findings}


def test_the_claim_of_an_ordering_key_reads_no_rows_of_its_tasks_that_ran_beside_an_open_transaction(
    store: PostgresTaskStore,
) -> None:
    with beside_a_backup(store) as connection:
        explain = Explainer(connection, is_checking=False)
        do(store._register_node("node", "[]", "[]", NOW, FACTS), explain)
        pages = []
        for _ in range(6):
            tasks = make(300, ordering_key="one")
            do(store.submission(tasks), explain)
            *ran, before, last = [task.id for task in tasks]
            connection.execute("DELETE FROM fairlead_tasks WHERE id = ANY (%s::uuid[])", [ran])
            _run_keyed(store, explain, before)
            for _ in range(2):
                do(store.lanes(), explain)
            _run_keyed(store, explain, last)
            explain.is_checking, explain.findings = True, []
            (more,) = make(1, ordering_key="one")
            do(store.submission([more]), explain)
            _run_keyed(store, explain, more.id)
            explain.is_checking = False
            assert not explain.faults(), explain.faults()[0]
            pages.append({finding.sql: finding.buffers for finding in explain.findings})
        first, later = pages[0], pages[-1]
        assert {name: (first[name], n) for name, n in later.items() if n > first[name] + 10} == {}


def _run_keyed(store: PostgresTaskStore, explain: Explainer, id: str) -> None:
    ((head, _),) = do(store.ordered([("mail", "one")], 1), explain)
    assert head.id == id
    (held,) = do(store._claim("node", wanted([head], head.version), NOW, {}), explain)
    do(store.completion("node", [done(held)]), explain)


@pytest.mark.parametrize("count", [1, 60, 150])  # an INSERT; a COPY; more than a claim looks at
def test_earlier_tasks_of_an_ordering_key_that_commit_late_run_before_those_that_wait(
    store: PostgresTaskStore, count: int
) -> None:
    early = make(count, ordering_key="one", run_at=NOW - SECOND)
    with psycopg.connect(store.database.url) as slow:
        store.database.join(slow, store.submission(early))
        waiting = _raise_mark(store)
        slow.commit()
    _check_order(store, [*early, waiting])


def test_earlier_tasks_of_an_ordering_key_that_are_submitted_late_run_before_those_that_wait(
    store: PostgresTaskStore,
) -> None:
    waiting = _raise_mark(store)
    early = make(2, ordering_key="one", run_at=NOW - SECOND)
    store.database.run(store.submission(early))
    _check_order(store, [*early, waiting])


def test_a_task_of_an_ordering_key_that_is_moved_to_an_earlier_time_runs_before_those_that_wait(
    store: PostgresTaskStore,
) -> None:
    (moved,) = make(1, ordering_key="one", run_at=NOW + 60 * SECOND)
    store.database.run(store.submission([moved]))
    waiting = _raise_mark(store)
    steps = store.move([(moved.id, 1)], State.WAITING, NOW - SECOND, NOW, False)
    assert store.database.run(steps) is not None
    assert asyncio.run(store.wake_due(NOW, 10)).moved == 1
    _check_order(store, [moved, waiting])


def _raise_mark(store: PostgresTaskStore) -> NewTask:
    """Run tasks of the ordering key until its mark is settled, and return one that waits."""
    store.database.run(store._register_node("node", "[]", "[]", NOW, FACTS))
    *ran, waiting = make(5, ordering_key="one")
    store.database.run(store.submission([*ran, waiting]))
    for task in ran:
        store.database.run(store.lanes())
        (held,) = store.database.run(store._claim("node", wanted([task]), NOW, {}))
        store.database.run(store.completion("node", [done(held)]))
    assert store.marks.of_key("mail", "one").id == ran[-1].id
    return waiting


def _check_order(store: PostgresTaskStore, tasks: Sequence[NewTask]) -> None:
    heads = store.database.run(store.ordered([("mail", "one")], len(tasks) + 1))
    assert [trigger.id for trigger, _ in heads] == [task.id for task in tasks]
    heads = [trigger for trigger, _ in heads]
    for number, head in enumerate(heads):
        if number % 50 == 0:
            assert (
                store.database.run(store._claim("node", wanted(heads[number + 1 :]), NOW, {})) == []
            )
        (held,) = store.database.run(store._claim("node", wanted([head], head.version), NOW, {}))
        assert store.database.run(store._claim("node", wanted(heads[number + 1 :]), NOW, {})) == []
        store.database.run(store.completion("node", [done(held)]))


def test_a_task_that_commits_long_after_its_position_was_drawn_is_found(
    store: PostgresTaskStore,
) -> None:
    with psycopg.connect(store.database.url) as slow:
        (late,) = make(1)
        store.database.join(slow, store.submission([late]))
        for _ in range(5):
            others = make(3)
            store.database.run(store.submission(others))
            with store.database.connection() as connection:
                connection.execute("DELETE FROM fairlead_tasks WHERE queue = 'mail'")
            store.database.run(store.lanes())
        slow.commit()
    assert store.database.run(store.lanes()) == [LANE]
    assert [trigger.id for trigger in store.database.run(store.ready(LANE, 0, 10))] == [late.id]


def test_a_claimed_task_that_is_handed_back_is_found_at_its_old_position(
    store: PostgresTaskStore,
) -> None:
    (kept,) = make(1)
    store.database.run(store.submission([kept]))
    store.database.run(store._register_node("node", "[]", "[]", NOW, FACTS))
    store.database.run(store._claim("node", wanted([kept]), NOW, {}))
    for _ in range(5):
        store.database.run(store.submission(make(3)))
        with store.database.connection() as connection:
            connection.execute("DELETE FROM fairlead_tasks WHERE state = 'SUBMITTED'")
        store.database.run(store.lanes())
    store.database.run(store._hand_back("node", [(kept.id, 2)]))
    assert [trigger.id for trigger in store.database.run(store.ready(LANE, 0, 10))] == [kept.id]


def test_lanes_before_between_and_behind_those_with_marks_are_found(
    store: PostgresTaskStore,
) -> None:
    for _ in range(4):
        store.database.run(store.submission([*make(1, queue="c"), *make(1, queue="m")]))
        assert store.database.run(store.lanes()) == [LaneKey("c", 0, 5), LaneKey("m", 0, 5)]
        with store.database.connection() as connection:
            connection.execute("DELETE FROM fairlead_tasks")
    assert store.database.run(store.lanes()) == []
    for queue in "admz":
        store.database.run(store.submission(make(1, queue=queue)))
    store.database.run(store.submission(make(1, queue="c", priority=7)))
    lanes = [("a", 0, 5), ("c", 0, 7), ("d", 0, 5), ("m", 0, 5), ("z", 0, 5)]
    assert sorted(store.database.run(store.lanes())) == [LaneKey(*lane) for lane in lanes]


def test_the_list_of_undelivered_incidents_reads_no_delivered_ones_and_no_more_than_it_shows(
    store: PostgresTaskStore,
) -> None:
    incidents = store.incidents
    with store.database.connection() as connection:
        connection.execute(
            """INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at,
                      details, deliver_at, delivered_at)
               SELECT 'task_unreadable', n::text, 1, 'mail', '', n, n, '', n,
                      CASE WHEN n <= 20000 THEN n END
                 FROM generate_series(1, 40000) AS n"""
        )
        connection.execute("ANALYZE fairlead_incidents")
        explain = Explainer(connection)
        assert len(do(incidents.undelivered(1000), explain)) == 1000
        (found,) = explain.findings
        assert found.buffers < 100
