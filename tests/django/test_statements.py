"""Statements that an enqueue through Django sends to PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction

from fairlead.contrib.django import get_app
from tests.django import sample_tasks as tasks
from tests.django.conftest import settings_of, use_database
from tests.waiting import wait_until


@pytest.fixture
def on_postgres(migrated_shop_url: str) -> Iterator[str]:
    use_database(settings_of(migrated_shop_url))
    yield migrated_shop_url
    get_app().close()
    connections.close_all()


def sent(path: Path, call: Callable[[], object]) -> list[str]:
    """Return the kinds of messages that libpq sends to the server during a call."""
    driver = connection.connection.pgconn
    with path.open("w") as file:
        driver.trace(file.fileno())
        call()
        driver.untrace()
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    # A statement goes on over lines of its own, without the fields of a message.
    return [line[3] for line in lines if line[1:2] == ["F"]]


def test_an_enqueue_is_one_statement_of_the_callers_transaction(
    on_postgres: str, tmp_path: Path
) -> None:
    with transaction.atomic():
        tasks.echo.enqueue(0)  # after the driver's BEGIN
        for task in (tasks.echo, tasks.echo.using(queue_name="mail")):
            found = sent(tmp_path / "trace", lambda task=task: task.enqueue(1))
            assert (found.count("Parse"), found.count("Query"), found.count("Sync")) == (1, 0, 1)
    alone = sent(tmp_path / "trace", lambda: tasks.echo.enqueue(1))
    assert (alone.count("Parse"), alone.count("Query")) == (1, 2)  # BEGIN and COMMIT
    with connection.cursor() as cursor:
        # The server ends the connection that made the tables a little later.
        wait_until(lambda: clients(cursor) == 1)


def clients(cursor: Any) -> int:
    """Return the number of connections to the database."""
    cursor.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend'"
    )
    return int(cursor.fetchone()[0])


def test_with_prepare_threshold_the_server_plans_an_enqueue_once(
    on_postgres: str, tmp_path: Path
) -> None:
    use_database({**settings_of(on_postgres), "OPTIONS": {"prepare_threshold": 0}})
    with transaction.atomic():
        tasks.echo.enqueue(0)
        found = sent(tmp_path / "trace", lambda: tasks.echo.enqueue(1))
    assert (found.count("Parse"), found.count("Bind"), found.count("Sync")) == (0, 1, 1)
