"""Migrations on real databases: applied once, in order, all or nothing. Tables that do not fit the
code are named in the error."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fairlead import App
from fairlead.backends import sqlite as sqlite_package
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.sql import migrate as migrations_module
from fairlead.backends.sql.migrate import Migration, check, migrate, migrations, print_sql
from fairlead.backends.sql.sql_file import load
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.errors import SchemaMismatch, StoreUnavailable
from fairlead.ports.statements import Statement, Steps
from fairlead.testing import drain, running
from tests.builders import idle
from tests.end_to_end.test_command_line import ROOT, environment

AnyDatabase = SqliteDatabase | PostgresDatabase


def open_database(url: str) -> AnyDatabase:
    return (
        SqliteDatabase(url.removeprefix("sqlite:///"))
        if url.startswith("sqlite")
        else PostgresDatabase(url)
    )


pytestmark = pytest.mark.stores


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def database(store_url: str) -> Iterator[AnyDatabase]:
    database = open_database(store_url)
    yield database
    database.close()


def rows_of(database: AnyDatabase, sql: str) -> Sequence[Any]:
    def steps() -> Steps[Sequence[Any]]:
        return (yield Statement(sql))

    return database.run(steps())


def test_an_empty_database_is_reported_and_then_migrated_once(database: AnyDatabase) -> None:
    with pytest.raises(SchemaMismatch, match=r"no Fairlead tables; run `fairlead migrate`"):
        check(database)
    if isinstance(database, PostgresDatabase):  # the first submit makes the tables of a file
        app = App(database.url)
        note = app.task(name="note")(lambda: None)
        for submit in (note.submit, lambda: asyncio.run(note.submit_async())):
            with pytest.raises(SchemaMismatch, match="run `fairlead migrate`") as refused:
                submit()
            ours = [each for each in refused.traceback if "/fairlead/" in str(each.path)]
            assert len(ours) == 2 and refused.value.__cause__ is None
        app.close()
    known = [migration.name for migration in migrations(database)]
    assert migrate(database) == known
    check(database)
    assert migrate(database) == []
    assert [
        row[1]
        for row in rows_of(database, "SELECT version, name FROM fairlead_schema ORDER BY version")
    ] == known


def _migrate(url: str, results: Any) -> None:
    database = open_database(url)
    try:
        results.put(migrate(database, levels=True))
    except Exception as error:
        results.put(repr(error))
    database.close()


def test_four_processes_migrate_at_once_and_each_file_is_applied_once(store_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_migrate, args=(store_url, results)) for _ in range(4)]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(30)
    database = open_database(store_url)
    assert [outcome for outcome in outcomes if isinstance(outcome, str)] == []
    names = [migration.name for migration in migrations(database)]
    assert sorted(outcomes) == sorted([[], [], [], [*names, "levels"]])
    check(database, levels=True)
    database.close()


def test_tables_of_levels_are_asked_for_and_made_where_an_application_keeps_levels(
    database: AnyDatabase, store_url: str
) -> None:
    migrate(database)
    check(database)
    assert not _level_tables(database)
    app = App(store_url, backlog="database")
    note = app.task(name="note")(lambda: None)
    cure = r"run `fairlead migrate` with the backlog setting .*FAIRLEAD_BACKLOG=database"
    with pytest.raises(SchemaMismatch, match=cure):
        note.submit()
    with pytest.raises(SchemaMismatch, match=cure):
        asyncio.run(drain(app))
    assert app.migrate() == ["levels"]
    assert app.migrate() == []
    assert len(_level_tables(database)) == 3
    note.submit()
    asyncio.run(drain(app))
    app.close()


def _level_tables(database: AnyDatabase) -> set[str]:
    tables = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if isinstance(database, SqliteDatabase)
        else "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema()"
    )
    return {name for (name,) in rows_of(database, tables) if name.startswith("fairlead_backlog")}


def test_an_application_with_levels_in_cassandra_has_no_tables_of_levels(
    database: AnyDatabase, store_url: str
) -> None:
    pytest.importorskip("cassandra", reason="pip install 'fairlead[cassandra]'")
    app = App(store_url, backlog="cassandra://127.0.0.1:1/nowhere")
    assert app.connections.cluster.migrate() == [each.name for each in migrations(database)]
    assert not _level_tables(database)
    app.close()


def test_a_worker_makes_the_tables_of_levels_in_a_new_file(sqlite_url: str) -> None:
    app = App(sqlite_url, backlog="database")
    app.task(name="note")(lambda: None).submit()
    asyncio.run(drain(app))
    app.close()
    database = open_database(sqlite_url)
    check(database, levels=True)
    database.close()


def test_the_command_makes_the_tables_of_levels_that_the_environment_names(
    database: AnyDatabase, store_url: str
) -> None:
    migrate(database)
    said = subprocess.run(
        [sys.executable, "-m", "fairlead", "migrate", "--url", store_url],
        cwd=ROOT,
        env=environment() | {"FAIRLEAD_BACKLOG": "database"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout == "levels\n"
    check(database, levels=True)


def add_migration(monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    monkeypatch.setattr(
        migrations_module,
        "migrations",
        lambda database: [*migrations(database), Migration(9998, "9998_next", sql)],
    )


def test_older_tables_are_reported_and_then_migrated(
    database: AnyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(database)
    add_migration(
        monkeypatch,
        "-- a remark;\nCREATE TABLE one (x integer);\n\nCREATE TABLE two (x integer);\n",
    )
    with pytest.raises(
        SchemaMismatch, match=r"older than this code: 9998_next not applied; run `fairlead migrate`"
    ):
        check(database)
    assert migrate(database) == ["9998_next"]
    check(database)
    assert list(rows_of(database, "SELECT one.x FROM one, two")) == []


def test_newer_tables_are_refused_and_left_unchanged(
    database: AnyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        add_migration(newer, "CREATE TABLE one (x integer);")
        migrate(database)
    for work in (check, migrate):
        with pytest.raises(
            SchemaMismatch, match=r"newer than this code: 9998_next .* upgrade fairlead"
        ):
            work(database)
    assert (
        len(rows_of(database, "SELECT version FROM fairlead_schema"))
        == len(migrations(database)) + 1
    )


def test_a_gap_in_the_applied_migrations_is_named(
    database: AnyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "CREATE TABLE one (x integer);")
    migrate(database)
    first = migrations(database)[0].name
    rows_of(database, "DELETE FROM fairlead_schema WHERE version = 1")
    for work in (check, migrate):
        with pytest.raises(SchemaMismatch, match=f"lack {first}, but later migrations"):
            work(database)


def test_a_failing_migration_leaves_nothing_of_itself(
    database: AnyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(database)
    add_migration(
        monkeypatch, "CREATE TABLE one (x integer);\nCREATE TABLE fairlead_tasks (x integer);\n"
    )
    with pytest.raises((StoreUnavailable, psycopg.Error, sqlite3.Error), match="already exists"):
        migrate(database)
    with pytest.raises(SchemaMismatch, match="9998_next not applied"):
        check(database)
    monkeypatch.undo()
    add_migration(monkeypatch, "CREATE TABLE one (x integer);\n")
    assert migrate(database) == ["9998_next"]


def test_a_database_of_another_package_has_its_own_migrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "another_store"
    shutil.copytree(Path(sqlite_package.__file__).parent, package)
    (package / "__init__.py").write_text("")
    (package / "database.py").write_text(
        "from fairlead.backends.sqlite.database import SqliteDatabase\n"
        "class AnotherDatabase(SqliteDatabase):\n"
        "    dialect = 'another'\n"
    )
    (package / "migrations" / "9998_own.sql").write_text("CREATE TABLE own (x integer);\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    database = importlib.import_module("another_store.database").AnotherDatabase(tmp_path / "db")
    assert migrate(database)[-1] == "9998_own"
    check(database)
    assert list(rows_of(database, "SELECT x FROM own")) == []
    database.close()


def test_the_printed_sql_makes_the_same_tables(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    assert "fairlead_backlog" not in print_sql(database)
    script = print_sql(database, levels=True)
    printed = sqlite3.connect(":memory:")
    printed.executescript(script)
    migrate(database, levels=True)
    tables = (
        "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE '%fairlead_schema%' ORDER BY name"
    )
    assert printed.execute(tables).fetchall() == list(rows_of(database, tables))
    postgres = open_database("postgresql://localhost:1/nobody")  # no connection is opened
    assert "CREATE TABLE fairlead_tasks" in print_sql(postgres)
    database.close()


ISOLATIONS = ("read committed", "repeatable read", "serializable")


def _set_default(url: str, setting: str) -> None:
    name = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET {setting}".encode())


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_eight_processes_migrate_at_once_under_any_default_isolation(
    postgres_url: str, isolation: str
) -> None:
    _set_default(postgres_url, f"default_transaction_isolation = '{isolation}'")
    database = open_database(postgres_url)
    with database.connection() as connection:
        # All of them wait for this lock, so that each begins before another one ends.
        ((lock,),) = connection.execute(_HELD).fetchall()
        assert lock
        with ThreadPoolExecutor(8) as pool:
            databases = [open_database(postgres_url) for _ in range(8)]
            runs = [pool.submit(migrate, each) for each in databases]
            while connection.execute(_WAITING).fetchall() != [(8,)]:
                time.sleep(0.02)
            connection.execute("SELECT pg_advisory_unlock_all()")
    applied = [run.result() for run in runs]
    assert sorted(map(len, applied)) == [0] * 7 + [len(migrations(database))]
    check(database)
    for each in (database, *databases):
        each.close()


_LOCK = "7377293604775354724"  # of migrations.sql
_HELD = f"SELECT pg_try_advisory_lock({_LOCK})"
_WAITING = """
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND NOT granted
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def test_a_role_whose_transactions_only_read_by_default_can_migrate(postgres_url: str) -> None:
    _set_default(postgres_url, "default_transaction_read_only = on")
    database = open_database(postgres_url)
    assert migrate(database)
    check(database)
    database.close()


def test_a_migration_that_is_killed_or_runs_out_of_time_leaves_nothing(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute(migrations_statement("create"))
        other.execute("BEGIN")
        # All tables can be created, but the record of the migration waits.
        other.execute("LOCK TABLE fairlead_schema IN SHARE MODE")
        command = [sys.executable, "-m", "fairlead", "migrate", "--url", postgres_url]
        process = subprocess.Popen(command, cwd=ROOT, env=environment())
        while other.execute(_BLOCKED).fetchall() != [(1,)]:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.wait()
        impatient = open_database(f"{postgres_url}?options=-cstatement_timeout%3D200")
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            migrate(impatient)
        impatient.close()
        other.execute("ROLLBACK")
    database = open_database(postgres_url)
    assert migrate(database) == [each.name for each in migrations(database)]
    check(database)
    database.close()


_BLOCKED = """
SELECT count(*) FROM pg_locks
 WHERE relation = 'fairlead_schema'::regclass AND mode = 'RowExclusiveLock' AND NOT granted
"""


def migrations_statement(name: str) -> bytes:
    return load("migrations.sql", "fairlead.backends.postgres")[name].encode()


def test_a_running_worker_goes_on_beside_newer_tables_and_a_new_one_is_refused(
    migrated_postgres_url: str,
) -> None:
    app = App(migrated_postgres_url)
    ran: list[int] = []

    @app.task
    def note(n: int) -> None:
        ran.append(n)

    async def test() -> None:
        async with running(app), asyncio.timeout(60):
            with psycopg.connect(migrated_postgres_url, autocommit=True) as connection:
                connection.execute("ALTER TABLE fairlead_tasks ADD COLUMN newer text")
                connection.execute("INSERT INTO fairlead_schema VALUES (9998, '9998_next', 0)")
            note.submit(n=1)
            note.submit_many([{"n": n} for n in range(2, 62)])
            while len(ran) < 61:
                await asyncio.sleep(0.02)

    asyncio.run(test())
    app.close()
    later = App(migrated_postgres_url)
    with pytest.raises(SchemaMismatch, match="newer than this code: 9998_next"):
        later.management.find()
    later.close()


def test_on_sqlite_the_first_call_of_an_app_can_be_a_submit_in_an_open_transaction(
    sqlite_url,
) -> None:
    App(sqlite_url).migrate()
    app = App(sqlite_url)
    note = idle(app, "note")
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    handle = note.options(connection=connection).submit()
    connection.execute("COMMIT")
    connection.close()
    assert handle.state() == "SUBMITTED"
    app.close()
