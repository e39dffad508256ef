"""A task that is submitted alone is stored and announced as one that is submitted with others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from fairlead import App

DIFFERENT = {"id", "ready_seq", "submitted_at", "run_at", "ready_at", "triggered_at", "payload"}
"""Columns that differ between two equal tasks."""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fairness_key": "acme", "priority": 3, "weight": 2.5},
        {"unique_key": "one"},
        {"ordering_key": "order"},
        {"run_at": datetime(2100, 1, 1, tzinfo=UTC)},
    ],
    ids=["plain", "all plain options", "unique key", "ordering key", "later"],
)
def test_a_lone_task_has_the_columns_of_one_among_many(
    postgres_url: str, options: dict[str, Any]
) -> None:
    app = App(postgres_url)
    app.migrate()

    @app.task
    def note(number: int) -> None: ...

    alone = note.options(**options).submit(1)
    with_others = dict(options, unique_key="two") if "unique_key" in options else options
    drafts = [note.options(**with_others).draft(2), note.options(fairness_key="x").draft(3)]
    together = app.submit_many(drafts)[0]
    with psycopg.connect(postgres_url, row_factory=dict_row) as connection:
        found = {str(row["id"]): row for row in connection.execute("SELECT * FROM fairlead_tasks")}
    one, other = found[alone.id], found[together.id]
    same = {name for name in one if name not in DIFFERENT | _drawn(options)}
    assert {name: one[name] for name in same if name != "unique_key"} == {
        name: other[name] for name in same if name != "unique_key"
    }
    assert {name for name, value in one.items() if value is None} == {
        name for name, value in other.items() if value is None
    }
    app.close()


def _drawn(options: dict[str, Any]) -> set[str]:
    """Return the columns with an instant or a drawn position of a task with these options."""
    found = {"order_at", "order_seq"} if "ordering_key" in options else set()
    return found | ({"due_at", "due_seq"} if "run_at" in options else set())
