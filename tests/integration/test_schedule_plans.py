"""PostgreSQL finds the rows of a long schedule by the right index, whatever its statistics say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.schedule import PostgresScheduleStore
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql.rows import batch
from fairlead.ports.statements import Statement
from tests import tiers
from tests.integration.plans import CASES, MODES, Explainer, explaining, lie, unanalyzed

QUEUE = "mail"
EMPTIED = [("emptied", mode) for mode in MODES]
"""Cases of a table that was analyzed with a few rows, and again without rows."""
ROWS = 20_000
KEYS = 100
FILL = """
INSERT INTO {table} (queue, partition, run_at, ordering_key, unique_key, {columns})
SELECT 'mail', 0, n, 'key-' || n % 100, n::text, {values} FROM generate_series(1, {rows}) AS n
"""


@pytest.fixture
def database(postgres_url: str) -> Iterator[PostgresDatabase]:
    yield from unanalyzed(postgres_url)


def _fill(explain: Explainer, rows: int) -> None:
    for table, columns, values in (
        ("fairlead_schedule", "id, task", "gen_random_uuid(), '{}'"),
        ("fairlead_completions", "finished_at", "n"),
    ):
        explain.connection.execute(
            FILL.format(table=table, columns=columns, values=values, rows=rows).encode()
        )


def _work(store: PostgresScheduleStore, explain: Explainer) -> None:
    """Execute the reads and deletes of an owner in the middle of its partition."""
    partition = (QUEUE, 0)
    middle = (ROWS // 2, "key-0", str(ROWS // 2))
    end = (ROWS, "key-99", "9")
    keys = [(n, f"key-{n % KEYS}", str(n)) for n in range(ROWS // 2, ROWS // 2 + 20)]
    marks = batch([(0, *middle)])
    retried = batch([(*key, "00000000-0000-7000-8000-000000000000", 1, 1, None) for key in keys])
    statements: list[Statement] = [
        store._statement("read", *partition, *middle, *end, 20, 10_000),
        store._statement("read_of", *partition, *middle, *end, 20, 10_000, "key-7"),
        store._statement("find", *partition, *keys[0]),
        store._statement("find_id", "00000000-0000-7000-8000-000000000000"),
        store._statement("completed", *partition, batch(keys)),
        store._statement("completions", *partition, *middle, 20),
        store._statement("clean", *partition, *middle, *end, ROWS, 20),
        store._statement("try_again", *partition, retried),
        store._statement("move_tasks", *partition, batch([(0, *key, "{}") for key in keys])),
        store._statement("delete_moved", *partition, batch([(0, *key) for key in keys])),
        store._statement("delete_completed", *partition, batch(keys)),
        store._statement("has_due", QUEUE, ROWS, marks),
        store._statement("oldest", *partition),
    ]
    for statement in statements:
        explain(statement)


@pytest.mark.parametrize("case", tiers.matrix(*CASES, *EMPTIED), ids="-".join)
def test_no_statement_of_an_owner_passes_over_its_partition(
    database: PostgresDatabase, case: tuple[str, str]
) -> None:
    statistics, mode = case
    store = PostgresScheduleStore(PostgresTaskStore(database))
    with explaining(database, case, lambda explain: _fill(explain, 30)) as explain:
        connection = explain.connection
        for _ in range(7 if mode == "auto" else 1):  # caches the plans of the statements
            _work(store, explain)
        connection.execute("DELETE FROM fairlead_schedule; DELETE FROM fairlead_completions")
        if statistics == "emptied":
            connection.execute("VACUUM ANALYZE")
        _fill(explain, ROWS)
        lie(connection, statistics)
        explain.is_checking = True
        _work(store, explain)
        connection.execute("DISCARD PLANS")  # as the server does now and then
        _work(store, explain)
    if (
        statistics == "emptied"
    ):  # the server expects one row, and takes a sort for as good as an order
        has_due = store._sql["has_due"]
        explain.findings = [f for f in explain.findings if f.sql != has_due]
    long = [f for f in explain.findings if f.buffers > 120 + 20 * f.rows]
    texts = [f"{finding.buffers} pages\n{finding.sql}\n{finding.text}" for finding in long]
    assert not explain.faults() + texts, "\n\n".join(explain.faults() + texts)
