"""The tables of each store, and bronze, have the columns of `fairlead.model.columns`."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.model.columns import ATTEMPTS, TASKS, Column
from fairlead.model.history import ATTEMPT_FIELDS
from fairlead.pipeline import models
from tests.pipeline.filling import connected

SQLITE_TYPES = {
    "bigint": "INTEGER",
    "boolean": "INTEGER",
    "bytea": "BLOB",
    "double precision": "REAL",
    "integer": "INTEGER",
    "smallint": "INTEGER",
    "text": "TEXT",
    "uuid": "TEXT",
}
IN_ONE_STORE = {"xid", "seq", "due_at", "due_seq", "order_seq"}
"""Columns that order the rows of one store."""


@pytest.mark.parametrize(
    ("table", "columns"), [("fairlead_tasks", TASKS), ("fairlead_attempts", ATTEMPTS)]
)
def test_a_table_has_the_listed_columns_with_their_types(
    store: SqlTaskStore, store_url: str, table: str, columns: tuple[Column, ...]
) -> None:
    is_sqlite = store.database.dialect == "sqlite"
    found: Any
    with connected(store_url) as connection:
        if is_sqlite:
            found = connection.execute(
                f"SELECT name, type, \"notnull\" = 0 FROM pragma_table_info('{table}')"
            )
        else:
            found = connection.execute(
                "SELECT column_name, data_type, is_nullable = 'YES' FROM information_schema.columns"
                f" WHERE table_name = '{table}'"
            )
        rows = {tuple(row) for row in found.fetchall()}
    assert {row for row in rows if row[0] not in IN_ONE_STORE} == {
        (c.name, SQLITE_TYPES[c.type] if is_sqlite else c.type, c.may_be_null) for c in columns
    }


def test_bronze_has_the_columns_of_attempts() -> None:
    nullable = {column.name: column.nullable for column in models.ATTEMPTS.columns}
    listed = {column.name: column.may_be_null for column in ATTEMPTS}
    assert listed.pop("unique_key") == nullable["unique_key_hash"]
    assert listed.items() <= nullable.items()
    assert set(ATTEMPT_FIELDS) - {"unique_key"} <= nullable.keys()
