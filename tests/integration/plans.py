"""Plans of statements on PostgreSQL: run steps, and check how the server finds their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql.drivers import drive, executor
from fairlead.backends.sql.migrate import migrate
from fairlead.ports.statements import Row, Statement, Step

GROWING = {
    "fairlead_tasks",
    "fairlead_attempts",
    "fairlead_events",
    "fairlead_results",
    "fairlead_run_notes",
    "fairlead_unique_keys",
    "fairlead_backlog",
    "fairlead_task_log",
    "fairlead_schedule",
    "fairlead_completions",
    "fairlead_incidents",
}
"""Tables with a row for each task or run, and that of the incidents."""

MODES = ("force_generic_plan", "auto", "force_custom_plan")
STATISTICS = ("few", "none", "empty", "none of many", "tiny", "huge", "true")
CASES = [(statistics, mode) for statistics in STATISTICS for mode in MODES]

COMPILED_COST = 100_000
"""Cost above which the server compiles a statement, which takes longer than to run it."""


def unanalyzed(url: str) -> Iterator[PostgresDatabase]:
    """Yield a database with tables of its own, which no other process analyses."""
    database = PostgresDatabase(url)
    migrate(database, levels=True)
    with database.connection() as connection:
        for table in GROWING:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    yield database
    database.close()


@dataclass
class Node:
    """One node of an executed plan."""

    kind: str
    table: str
    has_condition: bool
    loops: int
    removed: int
    """Rows that all loops of the node read and threw away."""
    returned: int


@dataclass
class Finding:
    """How a statement was executed."""

    sql: str
    rows: int
    """Rows that the statement was given, or read."""
    nodes: list[Node]
    buffers: int
    milliseconds: float
    cost: float
    text: str

    @property
    def faults(self) -> list[str]:
        """Return why the statement's cost may grow with the tables."""
        most = 2000 + 8 * self.rows
        faults = [fault for node in self.nodes if (fault := _fault(node, most))]
        if self.cost > COMPILED_COST:
            faults.append(f"compiled, because of its cost {self.cost:.0f}")
        return faults


def _fault(node: Node, most: int) -> str | None:
    if node.removed > most:
        return f"{node.kind} {node.table} removed {node.removed} rows"
    if node.table not in GROWING:
        return None
    if node.kind == "Seq Scan" and (node.loops > 1 or node.removed + node.returned > most):
        return f"sequential scan of {node.table}, {node.loops} times"
    if node.loops > 1 and not node.has_condition:
        return f"{node.kind} of all of {node.table}, {node.loops} times"
    return None


@dataclass
class Explainer:
    """Executes steps on a psycopg connection, each statement prepared once, and explains them."""

    connection: psycopg.Connection[Any]
    is_checking: bool = True
    findings: list[Finding] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)

    def __call__(self, step: Step) -> Sequence[Row]:
        if not isinstance(step, Statement) or step.sql.startswith("LOCK"):
            return executor(self.connection)(step)
        call = self._call(step)
        if self.is_checking:
            self.findings.append(self._explain(step, call))
        cursor = self.connection.execute(call)
        return cursor.fetchall() if cursor.description else ()

    def faults(self) -> list[str]:
        """Return the faults of all statements so far, each with the plan of the first."""
        return [
            "\n".join([*finding.faults, finding.sql, finding.text])
            for finding in self.findings
            if finding.faults
        ]

    def _call(self, step: Statement) -> sql.Composable:
        name = self._names.get(step.sql)
        if name is None:
            name = self._names[step.sql] = f"plan_{len(self._names)}"
            prepare = sql.SQL("PREPARE {} AS ").format(sql.Identifier(name))
            self.connection.execute(prepare + sql.SQL(step.sql))  # type: ignore[arg-type]
        values = sql.SQL(", ").join(map(sql.Literal, step.params))
        call = sql.SQL("EXECUTE {}").format(sql.Identifier(name))
        return call + sql.SQL("({})").format(values) if step.params else call

    def _explain(self, step: Statement, call: sql.Composable) -> Finding:
        with self.connection.transaction(force_rollback=True):
            row = self.connection.execute(
                sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + call
            ).fetchone()
        plan, took = row[0][0]["Plan"], row[0][0]["Execution Time"]  # type: ignore[index]
        nodes = list(_walk(plan))
        given = max((len(p) for p in step.params if isinstance(p, list)), default=0)
        batches = (p.count("],[") + p.count('","') + 1 for p in step.params if isinstance(p, str))
        rows = max([given, plan["Actual Rows"], *batches])
        buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return Finding(step.sql, rows, nodes, buffers, took, plan["Total Cost"], _text(plan))


def _walk(plan: dict[str, Any]) -> Iterator[Node]:
    loops = plan["Actual Loops"]
    removed = sum(value for key, value in plan.items() if key.startswith("Rows Removed by"))
    kind = plan["Node Type"]
    has_condition = bool(plan.get("Index Cond") or plan.get("TID Cond"))
    has_condition |= kind == "Bitmap Heap Scan"
    yield Node(
        kind,
        plan.get("Relation Name", ""),
        has_condition,
        loops,
        removed * loops,
        plan["Actual Rows"] * loops,
    )
    for child in plan.get("Plans", ()):
        yield from _walk(child)


def _text(plan: dict[str, Any], depth: int = 0) -> str:
    kept = ("Relation Name", "Index Name", "Index Cond", "TID Cond", "Filter", "Join Filter")
    words = [f"{key}: {plan[key]}" for key in kept if key in plan]
    line = (
        f"{'  ' * depth}{plan['Node Type']} rows={plan['Actual Rows']} loops={plan['Actual Loops']}"
        f" cost={plan['Total Cost']:.0f} {'; '.join(words)[:200]}"
    )
    return "\n".join([line, *(_text(child, depth + 1) for child in plan.get("Plans", ()))])


@contextmanager
def explaining(
    database: PostgresDatabase, case: tuple[str, str], leave_a_few: Callable[[Explainer], None]
) -> Iterator[Explainer]:
    """Yield an explainer that does not check yet, in the mode of the case. `leave_a_few`: gives the
    tables a few rows, before the server analyses them, if the statistics are of these."""
    statistics, mode = case
    with database.connect() as connection:
        connection.prepare_threshold = None  # its own statements would be deallocated with ours
        connection.execute(f"SET plan_cache_mode = {mode}".encode())
        explain = Explainer(connection, is_checking=False)
        if statistics in ("few", "emptied"):
            leave_a_few(explain)
        if statistics in ("empty", "few", "emptied"):
            connection.execute("VACUUM ANALYZE")
        yield explain


def do(steps: Any, explain: Explainer) -> Any:
    """Execute the steps in a transaction, each statement explained; return their result."""
    with explain.connection.transaction():
        return drive(steps, explain)


def lie(connection: psycopg.Connection[Any], statistics: str) -> None:
    """Give the tables these statistics."""
    if statistics == "true":
        connection.execute("VACUUM ANALYZE")
    faked = {"none of many": (0, 400), "tiny": (1, 1), "huge": (10**9, 10**7)}.get(statistics)
    if faked is not None:
        rows, pages = faked
        connection.execute(
            "UPDATE pg_class SET reltuples = %s, relpages = %s WHERE relname LIKE 'fairlead%%'"
            " AND relkind IN ('r', 'i')",
            (rows, pages),
        )


@contextmanager
def beside_a_backup(store: PostgresTaskStore) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection beside a transaction that stays open and has read the tables."""
    with store.database.connect() as backup, store.database.connect() as connection:
        backup.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        for table in ("tasks", "backlog", "attempts"):
            backup.execute(f"SELECT count(*) FROM fairlead_{table}".encode())
        connection.prepare_threshold = None
        yield connection
