"""A standby of PostgreSQL becomes the primary: clients find it, and notice what it does not know."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from fairlead import App
from fairlead.backends.postgres.backlog import PostgresBacklogStore
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.schedule import PostgresScheduleStore
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql.coordinator import DatabaseCoordinator
from fairlead.cli.main import app as command_line
from fairlead.connections import Connections
from fairlead.errors import StoreUnavailable
from fairlead.model import LaneKey, LaneRecord, Level, PartitionKey
from fairlead.ports import backlog_store, schedule_store
from fairlead.ports.statements import Statement, Steps
from fairlead.testing import running, settled
from fairlead.testing.contract.tasks import FACTS
from services.postgres import PostgresServer
from tests.builders import idle
from tests.conftest import skip_if_missing
from tests.waiting import until

PARTITION = PartitionKey("payouts", 3)
LANE = LaneKey(*PARTITION, 5)
TTL = 30.0


class Pair:
    """A primary with one hot standby, and a migrated database."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary, self.standby = primary, standby
        self.url = primary.url_of("postgres", standby)

    def cut(self) -> None:
        """Let the standby receive nothing more."""
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            while not connection.execute("SELECT pid FROM pg_stat_replication").fetchone():
                pass  # else it could begin to receive only now
            self.standby.stop_receiving()
            while connection.execute("SELECT pid FROM pg_stat_replication").fetchone():
                pass

    def wait_until_replayed(self) -> None:
        """Wait until the standby shows all that the primary has committed."""
        with (
            psycopg.connect(self.primary.url, autocommit=True) as primary,
            psycopg.connect(self.standby.url, autocommit=True) as standby,
        ):
            position = primary.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
            while standby.execute(
                "SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", position
            ).fetchone() == (True,):
                pass

    def fail_over(self) -> None:
        """Crash the primary and promote the standby."""
        self.primary.crash()
        self.standby.promote()


@contextmanager
def started() -> Iterator[Pair]:
    with skip_if_missing("postgres"):
        primary = PostgresServer()
    with primary:
        app = App(primary.url, backlog="database")
        app.migrate()
        app.close()
        with PostgresServer(primary=primary) as standby:
            yield Pair(primary, standby)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Start a primary and a standby, which the test may kill."""
    with started() as pair:
        yield pair


@pytest.fixture(scope="module")
def lasting() -> Iterator[Pair]:
    """Start a primary and a standby for the tests after which both still run."""
    with started() as pair:
        yield pair


def asked(sql: str) -> Steps[object]:
    """Return the first value of a query."""
    rows = yield Statement(sql)
    return rows[0][0] if rows else None


PORT = "SELECT inet_server_port()"
"""Query for the port of the server that responds."""


@pytest.mark.parametrize("is_first", [True, False])
async def test_both_drivers_find_the_primary_wherever_it_is_in_the_url(
    lasting: Pair, is_first: bool
) -> None:
    servers = (lasting.primary, lasting.standby) if is_first else (lasting.standby, lasting.primary)
    database = PostgresDatabase(servers[0].url_of("postgres", servers[1]))
    assert database.read_now(asked(PORT)) == lasting.primary.port
    assert await database.read(asked(PORT)) == lasting.primary.port
    await database.close_async()


async def test_pools_move_to_the_new_primary_and_never_read_from_the_old_one_as_a_standby(
    pair: Pair,
) -> None:
    database = PostgresDatabase(pair.url)
    database.read_now(asked(PORT))
    await database.read(asked(PORT))  # both pools now have a connection to the old primary
    await asyncio.to_thread(pair.fail_over)
    await asyncio.to_thread(pair.primary.follow, pair.standby)
    assert database.read_now(asked(PORT)) == pair.standby.port
    assert await database.read(asked(PORT)) == pair.standby.port
    await database.close_async()


async def test_connections_to_a_server_that_only_reads_now_are_dropped_after_one_clear_error(
    pair: Pair,
) -> None:
    def write() -> Steps[object]:
        yield Statement("INSERT INTO fairlead_changes VALUES ('test', 1) ON CONFLICT DO NOTHING")
        return (yield Statement(PORT))[0][0]

    database = PostgresDatabase(pair.url)
    database.run(write())
    await database.run_async(write())
    pair.standby.promote()
    pair.primary.change_setting("default_transaction_read_only", "on")
    cause_and_cure = "this server only reads, such as a standby: use a URL with all servers"
    with pytest.raises(StoreUnavailable, match=cause_and_cure):
        database.run(write())
    assert database.run(write()) == pair.standby.port
    assert await database.run_async(write()) == pair.standby.port
    await database.close_async()


async def test_a_server_that_does_not_respond_delays_a_connection_by_one_time_out(
    lasting: Pair,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{lasting.primary.port}"
        known = f"@127.0.0.1:{lasting.primary.port}"
        database = PostgresDatabase(
            lasting.primary.url.replace(known, f"@{hosts}") + "?connect_timeout=2"
        )
        assert await database.read(asked(PORT)) == lasting.primary.port
        assert database.read_now(asked(PORT)) == lasting.primary.port
        await database.close_async()


async def test_an_error_says_what_is_wrong_with_each_server_without_the_password(
    pair: Pair,
) -> None:
    pair.primary.crash()
    database = PostgresDatabase(pair.url)
    with pytest.raises(StoreUnavailable) as by_thread:
        database.read_now(asked(PORT))
    with pytest.raises(StoreUnavailable) as by_loop:
        await database.read(asked(PORT))
    both = f"PostgreSQL at 127.0.0.1:{pair.primary.port},127.0.0.1:{pair.standby.port}/postgres: "
    for error in map(str, (by_thread.value, by_loop.value)):
        assert error.startswith(both)
        assert "refused" in error.lower() or "connect call failed" in error.lower()
        assert "read-only" in error or "not as target_session_attrs" in error
        assert pair.primary._password not in error and "\n" not in error
    await database.close_async()


@asynccontextmanager
async def stores(url: str) -> AsyncIterator[PostgresTaskStore]:
    store = PostgresTaskStore(PostgresDatabase(url))
    yield store
    await store.database.close_async()


async def test_a_node_learns_of_leases_that_another_got_after_its_own_were_lost(
    pair: Pair,
) -> None:
    names = [f"partition/payouts/{n}" for n in range(4)]
    async with stores(pair.url) as store, stores(pair.url) as other_store:
        one, other = DatabaseCoordinator(store), DatabaseCoordinator(other_store)
        await one.acquire(names[:1], "one", TTL)
        pair.cut()
        for name in names[1:]:  # changes of the leases that the standby never sees
            await one.acquire([name], "one", TTL)
        assert set(await one.renew("one", TTL)) == set(names)
        await asyncio.to_thread(pair.fail_over)
        await other.acquire(names[1:], "other", TTL)
        assert set(await one.renew("one", TTL)) == set(names[:1])
        owners = await one.owners()
        assert {name for name, owner in owners.items() if owner == "other"} == set(names[1:])


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Connections]:
    app = App(url)
    connections = app.connector.connections
    await connections.notifier.listen(lambda _: None)
    yield connections
    await connections.notifier.close()
    await connections.close_async()
    app.close()


async def test_no_node_seems_dead_because_its_lock_is_not_on_the_new_primary(pair: Pair) -> None:
    async with listening(pair.url) as one:
        assert one.presence is not None
        async with listening(pair.primary.url) as other:  # does not move to the new primary
            assert other.presence is not None
            is_held = asyncio.Event()
            await other.presence.hold("other", is_held.set)
            await is_held.wait()
            await other.store.register_node("other", [], [], 1, FACTS)
            await asyncio.to_thread(pair.fail_over)
            assert await one.presence.released(["other"]) == set()


async def test_an_owner_of_a_partition_is_fenced_when_another_got_its_range_id_after_a_failover(
    pair: Pair,
) -> None:
    async with stores(pair.url) as store, stores(pair.url) as other_store:
        one, other = PostgresBacklogStore(store), PostgresBacklogStore(other_store)
        await other.take_over([PARTITION])
        pair.cut()
        lost = (await one.take_over([PARTITION]))[PARTITION].range_id
        await one.write(LANE, lost, [], LaneRecord())
        await asyncio.to_thread(pair.fail_over)
        again = (await other.take_over([PARTITION]))[PARTITION].range_id
        assert again == lost  # the new primary does not know that the number was given
        with pytest.raises(backlog_store.Fenced):
            await one.write(LANE, lost, [], LaneRecord())
        with pytest.raises(backlog_store.Fenced):
            await one.delete_through(LANE, lost, Level(1, 1))
        await other.write(LANE, again, [], LaneRecord())


async def test_an_owner_of_an_ordered_partition_is_fenced_likewise(pair: Pair) -> None:
    async with stores(pair.url) as store, stores(pair.url) as other_store:
        one, other = PostgresScheduleStore(store), PostgresScheduleStore(other_store)
        await other.take_over(PARTITION)
        pair.cut()
        owned = await one.take_over(PARTITION)
        await one.keep(PARTITION, owned.range_id, owned.record)
        await asyncio.to_thread(pair.fail_over)
        again = await other.take_over(PARTITION)
        assert again.range_id == owned.range_id
        with pytest.raises(schedule_store.Fenced):
            await one.keep(PARTITION, owned.range_id, owned.record)
        await other.keep(PARTITION, again.range_id, again.record)


async def test_tasks_below_the_position_of_a_reader_are_read_after_a_failover(pair: Pair) -> None:
    app = App(pair.url)
    app.queue("payouts", partitions=1)
    ran: list[int] = []

    @app.task(queue="payouts")
    async def work(n: int) -> None:
        ran.append(n)

    async with running(app):
        pair.cut()
        for n in range(100):  # their positions are given again by the new primary
            await work.submit_async(n=n)
        await until(lambda: len(ran) == 100)
        await asyncio.to_thread(pair.fail_over)
        submitted = 0
        while submitted < 100:
            try:
                await work.submit_async(n=submitted + 100)
                submitted += 1
            except StoreUnavailable:
                await asyncio.sleep(0.02)
        await until(lambda: set(range(100, 200)) <= {*ran})
    app.close()


async def test_a_task_whose_completion_was_lost_in_a_failover_runs_again(pair: Pair) -> None:
    app = App(pair.url)
    gate, ran = asyncio.Event(), list[int]()

    @app.task
    async def work(n: int) -> None:
        ran.append(n)
        await gate.wait()

    async with running(app) as node:
        await work.submit_async(n=1)
        await until(lambda: ran == [1])
        with psycopg.connect(pair.standby.url, autocommit=True) as standby:
            states = "SELECT 1 FROM fairlead_tasks WHERE state = 'PROCESSING'"
            await until(lambda: standby.execute(states).fetchone() is not None)
        pair.cut()
        gate.set()
        await settled(app, node)  # on the old primary only
        await asyncio.to_thread(pair.fail_over)
        await until(lambda: ran == [1, 1])
        await settled(app, node)
    app.close()


def test_a_standby_serves_the_commands_that_read_and_refuses_the_others_with_a_reason(
    lasting: Pair, tmp_path: Path
) -> None:
    app = App(lasting.primary.url)
    pay = idle(app, "pay")
    task_id = pay.submit(n=1).id
    app.close()
    lasting.wait_until_replayed()
    url = lasting.url + "?target_session_attrs=prefer-standby"

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(command_line, [*arguments, "--url", url])
        return done.stdout + done.stderr

    assert [each["id"] for each in json.loads(run("tasks", "--json"))["tasks"]] == [task_id]
    assert task_id in run("tasks", "show", task_id)
    assert "its tables are up to date" in run("doctor")
    assert "this server only reads" in run("tasks", "cancel", task_id)
    lake = tmp_path / "lake"
    assert "this server only reads" in run("pipeline", "ingest", "--lake", str(lake))
    assert not list(lake.rglob("bronze*/**/*.parquet"))


def test_a_read_that_a_standby_ended_says_how_to_let_it_finish(lasting: Pair) -> None:
    lasting.standby.change_setting("max_standby_streaming_delay", "0")
    lasting.primary.execute("INSERT INTO fairlead_changes VALUES ('test', 1)")
    lasting.wait_until_replayed()
    database = PostgresDatabase(lasting.url + "?target_session_attrs=standby")
    with database.connection() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT * FROM fairlead_changes")
        lasting.primary.execute("DELETE FROM fairlead_changes WHERE kind = 'test'")
        lasting.primary.execute("VACUUM fairlead_changes")
        with (
            pytest.raises(StoreUnavailable, match="a standby ended this read: try again"),
            database.failures(connection),
        ):
            while True:
                connection.execute("SELECT pg_sleep(0.05) FROM fairlead_changes")
                connection.execute("SELECT 1")
    database.close()
