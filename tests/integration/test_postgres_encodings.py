"""Texts on PostgreSQL are stored as they were given, or refused with a clear error."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fairlead import App
from fairlead.backends.postgres import requirements
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.sql.migrate import check, migrate
from fairlead.errors import ConfigurationError
from fairlead.model import LaneKey
from services.postgres import PostgresServer
from tests.builders import idle

KEY = "J\u00f6rg"
NUMBERS = pytest.mark.parametrize("number", [1, 60, 1500])


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def odd_url(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> str:
    """Return the URL of a new database with another encoding than UTF-8."""
    name = f"odd_{request.param.lower()}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{request.param}' TEMPLATE template0"
            " LC_COLLATE 'C' LC_CTYPE 'C'".encode()
        )
    return postgres_server.url_of(name)


@pytest.fixture
def app(migrated_postgres_url: str) -> Iterator[App]:
    application = App(migrated_postgres_url)
    yield application
    application.close()


def task_of(app: App) -> Any:
    return idle(app, "note")


def rows(number: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(number)]


def keys(url: str) -> list[tuple[str, int]]:
    with psycopg.connect(url, client_encoding="UTF8") as connection:
        return connection.execute(
            "SELECT fairness_key, count(*) FROM fairlead_tasks GROUP BY 1"
        ).fetchall()


def test_a_database_of_another_encoding_is_refused_with_the_cure(odd_url: str) -> None:
    database = PostgresDatabase(odd_url)
    expected = r"has the encoding \w+, and Fairlead needs UTF8; .* ENCODING 'UTF8' TEMPLATE"
    for work in (check, migrate):
        with pytest.raises(ConfigurationError, match=expected):
            work(database)

    async def connect() -> None:
        await database.connect_async()

    with pytest.raises(ConfigurationError, match=expected):
        asyncio.run(connect())
    with psycopg.connect(odd_url) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchone() == (0,)
    database.close()


@NUMBERS
@pytest.mark.parametrize("source", ["role", "environment"])
def test_our_own_connections_use_utf8_whatever_the_default_is(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch, number: int, source: str
) -> None:
    url = migrated_postgres_url
    if source == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE ROLE latin SUPERUSER LOGIN PASSWORD 'secret'")
            connection.execute("ALTER ROLE latin SET client_encoding = 'LATIN1'")
        url = re.sub("//[^@]+@", "//latin:secret@", url)
    app = App(url)
    note = task_of(app).options(fairness_key=KEY)
    note.submit_many(rows(number))
    asyncio.run(note.submit_many_async(rows(number)))
    app.close()
    monkeypatch.delenv("PGCLIENTENCODING", raising=False)
    if source == "role":
        with psycopg.connect(migrated_postgres_url, autocommit=True) as connection:
            connection.execute("DROP ROLE latin")
    assert keys(migrated_postgres_url) == [(KEY, 2 * number)]


@NUMBERS
@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "EUC_JP"])
def test_the_callers_connection_may_have_another_encoding(
    app: App, migrated_postgres_url: str, number: int, encoding: str
) -> None:
    with psycopg.connect(migrated_postgres_url, client_encoding=encoding) as connection:
        note = task_of(app).options(connection=connection, fairness_key=KEY)
        note.options(unique_key=f"{KEY} 2").submit(n=1)
        note.submit_many(rows(number))
    assert keys(migrated_postgres_url) == [(KEY, number + 1)]


def test_a_connection_without_an_encoding_is_refused(app: App, migrated_postgres_url: str) -> None:
    with psycopg.connect(migrated_postgres_url, client_encoding="SQL_ASCII") as connection:
        note = task_of(app).options(connection=connection, unique_key="one")
        with pytest.raises(ConfigurationError, match="SQL_ASCII.* client_encoding UTF8"):
            note.submit(n=1)


def test_a_server_that_is_too_old_is_refused(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "OLDEST_VERSION", 99)
    database = PostgresDatabase(postgres_url)
    with pytest.raises(
        ConfigurationError, match=r"runs PostgreSQL \d\d, and Fairlead needs 99 or newer"
    ):
        migrate(database)
    database.close()


def test_keys_are_walked_once_each_in_a_database_with_a_language_order(
    postgres_server: PostgresServer,
) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        if connection.info.server_version < 150000:
            pytest.skip("a database with an ICU locale needs PostgreSQL 15")
        connection.execute(
            b"CREATE DATABASE icu TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu"
            b" ICU_LOCALE 'en-US'"
        )
    app = App(postgres_server.url_of("icu"))
    app.migrate()
    note = task_of(app)
    fairness_keys = [
        "",
        "a",
        "A",
        "\u00e4",
        "a-b",
        "ab",
        "B",
        "\u200b",
        "\x01",
        "10",
        "9",
        "-",
        "\U0001f600",
    ]
    app.submit_many(
        [note.options(fairness_key=key).draft(n=n) for key in fairness_keys for n in range(5)]
    )
    store, lane = app.store, LaneKey(note.handler.queue, 0, 5)
    found: list[str] = [""]
    while page := store.database.run(store.ready_keys(lane, found[-1], 3)):
        found += [key for key, _ in page]
    assert sorted(found) == sorted(fairness_keys)
    keys = fairness_keys[1:]
    triggers = store.database.run(store.ready_of(lane, [(key, 0) for key in keys], 3))
    assert Counter(trigger.fairness_key for trigger in triggers) == dict.fromkeys(keys, 3)
    app.close()
