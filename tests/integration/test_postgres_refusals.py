"""Refusals of a PostgreSQL server for want of room or by its settings: errors name the cure, and no
acknowledged task is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fairlead import App, Exponential
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.errors import BatchTooLarge, ConfigurationError, StoreUnavailable
from fairlead.operate.doctor import examine
from fairlead.ports.statements import Statement, Steps
from fairlead.testing import drain, running
from services.postgres import PostgresServer, make_folder
from tests.conftest import skip_if_missing, small_disk
from tests.tiers import matrix
from tests.waiting import until

SPILL = "SELECT count(*) FROM (SELECT n FROM generate_series(1, 200000) AS n ORDER BY -n) AS sorted"


def spill() -> Steps[int]:
    """Sort more rows than fit in work_mem."""
    count: int = (yield Statement(SPILL))[0][0]
    return count


def read_changing() -> Steps[int]:
    """Read a table whose columns change."""
    return len((yield Statement("SELECT * FROM changing")))


@pytest.fixture
def disk(postgres_server: PostgresServer) -> Iterator[Path]:
    """Mount a disk of 16 MB for the server."""
    folder = make_folder("disk", postgres_server.user)
    with small_disk(folder, 16):
        if postgres_server.user is not None:
            os.chown(folder, postgres_server.user.pw_uid, postgres_server.user.pw_gid)
        yield folder
    folder.rmdir()


@pytest.mark.asyncio
async def test_a_worker_runs_where_temporary_files_are_forbidden_and_names_their_limit(
    postgres_url: str,
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        (name,) = admin.execute("SELECT quote_ident(current_database())").fetchone() or ()
        admin.execute(f"ALTER DATABASE {name} SET temp_file_limit = 0".encode())
        admin.execute(f"ALTER DATABASE {name} SET work_mem = '2MB'".encode())
    app, ran = App(postgres_url), list[int]()
    app.migrate()

    @app.task
    async def work(n: int, text: str) -> None:
        ran.append(n)

    work.submit_many([{"n": n, "text": "-" * 1800} for n in range(600)])
    await drain(app)
    assert sorted(ran) == [*range(600)]
    for read in (app.store.database.read_now, app.store.database.run):
        with pytest.raises(StoreUnavailable, match="raise temp_file_limit or work_mem"):
            read(spill())
    with pytest.raises(StoreUnavailable, match="raise temp_file_limit or work_mem"):
        await app.store.database.read(spill())
    app.close()


@pytest.fixture
def german_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of a server whose messages are in German."""
    monkeypatch.setenv("LANGUAGE", "de")
    with skip_if_missing(PostgresServer.name):
        server = PostgresServer()
    with server:
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("ALTER DATABASE postgres SET lc_messages = 'C.UTF-8'")
        with (
            psycopg.connect(server.url, autocommit=True) as connection,
            pytest.raises(psycopg.Error) as refused,
        ):
            connection.execute("SELECT 1 / 0")
        if "durch Null" not in str(refused.value):
            pytest.skip("the server has no German messages: install its translations")
        yield server.url


@pytest.mark.asyncio
async def test_refusals_are_recognized_in_another_language_of_the_server(german_url: str) -> None:
    with psycopg.connect(german_url, autocommit=True) as admin:
        admin.execute("ALTER DATABASE postgres SET temp_file_limit = 0")
        admin.execute("ALTER DATABASE postgres SET work_mem = '64kB'")
        admin.execute("CREATE TABLE changing (n bigint)")
        database = PostgresDatabase(german_url)
        with pytest.raises(BatchTooLarge, match="raise temp_file_limit or work_mem"):
            database.run(spill())
        with pytest.raises(BatchTooLarge, match="raise temp_file_limit or work_mem"):
            await database.run_async(spill())
        for _ in range(10):  # until the statement is prepared
            database.run(read_changing())
            await database.run_async(read_changing())
        admin.execute("ALTER TABLE changing ALTER COLUMN n TYPE text")
        with pytest.raises(StoreUnavailable, match="cached statement plan is invalid"):
            await database.run_async(read_changing())
        with pytest.raises(StoreUnavailable, match="gecachter Plan"):
            database.run(read_changing())
        assert database.run(read_changing()) == await database.run_async(read_changing()) == 0
    await database.close_async()


@pytest.mark.asyncio
async def test_completions_that_need_temporary_files_are_written_in_smaller_batches(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, ran = App(postgres_url), list[int]()
    app.migrate()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        (name,) = admin.execute("SELECT quote_ident(current_database())").fetchone() or ()
        admin.execute(f"ALTER DATABASE {name} SET temp_file_limit = 0".encode())
        admin.execute(f"ALTER DATABASE {name} SET work_mem = '64kB'".encode())
        admin.execute(f"ALTER DATABASE {name} SET hash_mem_multiplier = 1".encode())
    app.close()  # its connections have the settings from before

    @app.task(retry=Exponential(max_attempts=1))
    async def work(n: int) -> None:
        ran.append(n)
        raise ValueError(f"{n} " + "-" * 900)

    for first in range(0, 300, 20):
        work.submit_many([{"n": n} for n in range(first, first + 20)])
    await drain(app)
    assert sorted(ran) == [*range(300)]
    in_error = app.store.database.read_now(app.sql_store.queue_statuses())
    assert sum(status.error for status in in_error) == 300
    refusals = [record for record in caplog.records if "refuses a batch" in record.message]
    assert 1 <= len(refusals) <= 10
    assert all("raise temp_file_limit or work_mem" in str(vars(each)) for each in refusals)
    found = await examine(app.operate_context)
    assert [each.severity for each in found if "refuses large batches" in each.what] == ["problem"]
    app.close()


REFUSAL = """
CREATE FUNCTION refuse_attempts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM refused_tasks WHERE id = NEW.task_id) THEN
        RAISE EXCEPTION 'no changes before Monday' USING ERRCODE = (SELECT state FROM refused_tasks WHERE id = NEW.task_id);
    END IF;
    RETURN NEW;
END $$;
CREATE TABLE refused_tasks (id uuid PRIMARY KEY, state text NOT NULL);
CREATE TRIGGER refusal BEFORE INSERT ON fairlead_attempts FOR EACH ROW EXECUTE FUNCTION refuse_attempts();
"""


def count(connection: psycopg.Connection[Any], table: str) -> int:
    (found,) = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() or (0,)
    return int(found)


@pytest.mark.asyncio
@pytest.mark.parametrize("state", matrix("P0001", "23514", "53400", "57014", "42501", "42703"))
async def test_a_trigger_of_the_user_that_refuses_one_task_holds_back_only_its_ordering_key(
    postgres_url: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, ran = App(postgres_url), list[int]()
    app.migrate()

    @app.task
    async def work(n: int) -> None:
        ran.append(n)

    @app.task
    async def keyed(n: int) -> None:
        ran.append(n)

    bad = keyed.options(ordering_key="a").submit(n=-1)
    keyed.options(ordering_key="a").submit(n=-2)
    work.submit_many([{"n": n} for n in range(300)])
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(REFUSAL.encode())
        admin.execute("INSERT INTO refused_tasks VALUES (%s, %s)", (bad.id, state))
        async with running(app):
            await until(lambda: count(admin, "fairlead_attempts") == 300)
            assert sorted(ran) == [-1, *range(300)]
            work.submit_many([{"n": n} for n in range(300, 400)])
            await until(lambda: count(admin, "fairlead_attempts") == 400)
            assert -2 not in ran
            await until(lambda: count(admin, "fairlead_incidents") == 1)
            found = [each.what for each in await examine(app.operate_context)]
            assert [what for what in found if "refuses the ends of 1 runs" in what]
            admin.execute("DELETE FROM refused_tasks")
            await until(lambda: count(admin, "fairlead_tasks") == 0)
        assert sorted(ran) == [-2, -1, *range(400)]
        assert count(admin, "fairlead_attempts") == 402
    lines = [record for record in caplog.records if "refuses a completion" in record.message]
    assert lines and "no changes before Monday" in vars(lines[0])["error"]
    app.close()


@pytest.mark.asyncio
async def test_a_full_disk_refuses_submits_and_loses_no_task(
    postgres_server: PostgresServer, postgres_url: str, disk: Path
) -> None:
    app, ran = App(postgres_url), list[int]()
    app.migrate()

    @app.task
    async def work(n: int, text: str) -> None:
        ran.append(n)

    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE TABLESPACE small LOCATION '{disk}'".encode())
        admin.execute("ALTER TABLE fairlead_tasks SET TABLESPACE small")
        admin.execute("ALTER TABLE fairlead_attempts SET TABLESPACE small")
    acknowledged: list[int] = []
    with pytest.raises(StoreUnavailable, match="free space on the disk of the server"):
        for n in range(0, 100_000, 100):
            batch = range(n, n + 100)
            work.submit_many([{"n": n, "text": os.urandom(600).hex()} for n in batch])
            acknowledged += batch
    with pytest.raises(StoreUnavailable, match="free space on the disk of the server"):
        while True:
            work.submit(n=-1, text=os.urandom(600).hex())
            acknowledged.append(-1)
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    await drain(app, timeout=120)
    assert sorted(ran) == sorted(acknowledged)
    app.close()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("DROP TABLE fairlead_tasks, fairlead_attempts CASCADE")
        admin.execute("DROP TABLESPACE small")


def test_an_event_trigger_that_refuses_commands_is_named(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'no changes before Monday'; END $$"
        )
        admin.execute("CREATE EVENT TRIGGER refusal ON ddl_command_start EXECUTE FUNCTION refuse()")
        app = App(postgres_url)
        with pytest.raises(ConfigurationError, match=r"no changes before Monday; .* event trigger"):
            app.migrate()
        admin.execute("DROP EVENT TRIGGER refusal")
    assert app.migrate()
    app.close()
