"""Hooks and fixtures of all tests: command-line options, real servers, and a store of each kind."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeVar

import pytest

from fairlead import App, config
from services import MissingProgram
from services.cassandra import CassandraServer
from services.java_server import JavaServer
from services.kafka import KafkaServer
from services.pgbouncer import PgBouncerServer
from services.postgres import PostgresServer
from services.redis import RedisServer
from services.server import Server
from services.zookeeper import ZooKeeperServer
from tests import servers, tiers
from tests.databases import Databases
from tests.keyspaces import Keyspaces

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_HOST = pytest.StashKey[servers.Host]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--new-seeds",
        action="store_true",
        help="run property tests and simulations with new random seeds and all examples",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seeds, so that every run can be repeated, and start the host of the servers."""
    tiers.choose(config.option.new_seeds)
    JavaServer.options = servers.QUICK_JAVA
    PostgresServer.more_settings = servers.NO_FLUSH
    if config.option.new_seeds and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.randrange(2**32))
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.stash[_HOST] = host = servers.Host()
        config.option.basetemp = config.option.basetemp or host.tests_folder
    # A shell makes a background process ignore Ctrl-C. Undo this, because child processes would
    # inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers of the run. If the run is killed, the host stops them itself."""
    if (host := config.stash.get(_HOST, None)) is not None:
        host.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print each failure at once, because a run that is cut off prints no summary."""
    if report.failed and not os.environ.get("PYTEST_XDIST_WORKER"):
        print(
            f"\nFAILED {report.nodeid} ({report.when}): {str(report.longreprtext).strip().splitlines()[-1:]}",
            flush=True,
        )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage before all tests are known, and never search modules and tests for it, because
    each search takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Make no test of a parameter marked `nightly` in a run that deselects it."""
    yield
    if "not nightly" in metafunc.config.option.markexpr:
        kept = [
            call for call in metafunc._calls if all(mark.name != "nightly" for mark in call.marks)
        ]
        metafunc._calls = kept or metafunc._calls[:1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose id contains a memory address, because the id differs in each process."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: give this parameter an id")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.option.new_seeds:
        terminalreporter.write_line(
            f"seed: --new-seeds --hypothesis-seed={config.option.hypothesis_seed}"
        )


@pytest.fixture(scope="session", autouse=True)
def parsed_once() -> Iterator[None]:
    """Parse our pyproject.toml once, although each application of a test reads its settings there."""
    with pytest.MonkeyPatch.context() as patch:
        parser = SimpleNamespace(**{**vars(tomllib), "loads": cache(tomllib.loads)})
        patch.setattr(config, "tomllib", parser)
        yield


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk of this size on an empty folder. Skip the test if that is refused."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", folder]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mount is refused: run the tests as a user that may mount a tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


S = TypeVar("S", bound=Server)


@contextmanager
def skip_if_missing(name: str) -> Iterator[None]:
    """Skip the test if the body raises MissingProgram, because the program of a server is not
    installed. With FAIRLEAD_REQUIRE_<NAME>=1, fail instead."""
    try:
        yield
    except MissingProgram as missing:
        if os.environ.get(f"FAIRLEAD_REQUIRE_{name.upper()}", "0") != "0":
            raise
        pytest.skip(str(missing))


def own_server(server_class: type[S]) -> Iterator[S]:
    """Start a server for the calling fixture alone, and stop it after the fixture. Skip the test if
    the server's program is missing."""
    with skip_if_missing(server_class.name):
        server = server_class()
    server.start()
    yield server
    # No test needs the data any more, so stop without a flush.
    server.stop("immediate")


def shared_server(server_class: type[S]) -> S:
    """Return the server of this kind that all processes of the run share. Each process creates names
    with its own prefix there. Skip the test if the server's program is missing."""
    with skip_if_missing(server_class.name):
        running = servers.running(server_class.name)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return server_class.attached(running, worker and f"{worker}_")


def _own_or_shared(request: pytest.FixtureRequest, name: str) -> str:
    return f"own_{name}" if f"own_{name}" in request.fixturenames else name


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Server of this process alone; `tests.servers` says why it is not shared."""
    yield from own_server(PostgresServer)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Create an empty database; close all connections to it after the test."""
    url = postgres_server.create_database()
    yield url
    if postgres_server.pid is not None:
        postgres_server.disconnect(url)


@pytest.fixture(scope="session")
def migrated_databases(postgres_server: PostgresServer) -> Databases:
    """Pool of migrated databases."""
    return Databases(postgres_server)


@pytest.fixture
def migrated_postgres_url(migrated_databases: Databases) -> Iterator[str]:
    """Take a migrated database without rows from the pool; close all connections to it after the
    test."""
    url = migrated_databases.take()
    yield url
    migrated_databases.release(url)


@pytest.fixture(scope="session")
def pgbouncer_server(postgres_server: PostgresServer) -> Iterator[PgBouncerServer]:
    """Pooler in transaction mode, in front of the PostgreSQL server of this process."""
    with skip_if_missing(PgBouncerServer.name):
        server = PgBouncerServer(postgres_server)
    with server:
        yield server


@pytest.fixture
def pooled_url(pgbouncer_server: PgBouncerServer, migrated_postgres_url: str) -> str:
    """URL of a migrated database without rows, through PgBouncer in transaction mode."""
    return pgbouncer_server.url_of(migrated_postgres_url)


@pytest.fixture(scope="session")
def cassandra_server() -> Iterator[CassandraServer]:
    """Server that all processes of the run share."""
    server = shared_server(CassandraServer)
    yield server
    server.disconnect()


@pytest.fixture
def own_cassandra_server() -> Iterator[CassandraServer]:
    """Server of this test alone, which the test may kill."""
    yield from own_server(CassandraServer)


@pytest.fixture
def patient_driver() -> Iterator[None]:
    """Let this process wait for the shared Cassandra as long as the server itself may take."""
    from cassandra.cluster import Cluster

    from fairlead.backends.cassandra import session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "REQUEST_TIMEOUT", servers.PATIENCE)
        patch.setattr(session, "_SCHEMA_SECONDS", servers.PATIENCE)
        patch.setattr(Cluster, "connect_timeout", servers.PATIENCE)
        yield


@pytest.fixture
def cassandra_url(request: pytest.FixtureRequest) -> str:
    """Create an empty keyspace, on the test's own server if the test has one."""
    name = _own_or_shared(request, "cassandra_server")
    server: CassandraServer = request.getfixturevalue(name)
    if name == "cassandra_server":
        request.getfixturevalue("patient_driver")
    return server.create_keyspace()


@pytest.fixture(scope="session")
def migrated_keyspaces(cassandra_server: CassandraServer) -> Iterator[Keyspaces]:
    """Pool of migrated keyspaces."""
    keyspaces = Keyspaces(cassandra_server)
    yield keyspaces
    keyspaces.close()


@pytest.fixture
def migrated_cassandra_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Take a keyspace with all tables and without rows from the pool. On the test's own server, create
    an empty one, because the server may crash. In both cases, the test must call `migrate`."""
    if "own_cassandra_server" in request.fixturenames:
        yield str(request.getfixturevalue("cassandra_url"))
        return
    keyspaces: Keyspaces = request.getfixturevalue("migrated_keyspaces")
    request.getfixturevalue("patient_driver")
    url = keyspaces.take()
    yield url
    keyspaces.release(url)


@pytest.fixture(scope="session")
def zookeeper_server() -> ZooKeeperServer:
    """Server that all processes of the run share."""
    return shared_server(ZooKeeperServer)


@pytest.fixture
def zookeeper_url(zookeeper_server: ZooKeeperServer) -> str:
    """Create an empty folder of znodes."""
    return zookeeper_server.create_root()


@pytest.fixture(scope="session")
def kafka_server() -> KafkaServer:
    """Server that all processes of the run share."""
    return shared_server(KafkaServer)


@pytest.fixture
def own_kafka_server() -> Iterator[KafkaServer]:
    """Server of this test alone, which the test may kill."""
    yield from own_server(KafkaServer)


@pytest.fixture
def kafka_url(request: pytest.FixtureRequest) -> str:
    """Return a URL with a new prefix of topics and groups, on the test's own server if the test has
    one."""
    server: KafkaServer = request.getfixturevalue(_own_or_shared(request, "kafka_server"))
    return server.create_prefix()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Server of this process alone; `tests.servers` says why it is not shared."""
    yield from own_server(RedisServer)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """Empty the database and return its URL."""
    redis = pytest.importorskip("redis", reason="needs the extra redis")
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'tasks.db'}"


def url_of(store: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a new store of this kind. The test must call `migrate`, which is quick."""
    fixture = "migrated_postgres_url" if store == "postgres" else f"{store}_url"
    return str(request.getfixturevalue(fixture))


@pytest.fixture(params=tiers.matrix("sqlite", "postgres"))
def store_url(request: pytest.FixtureRequest) -> str:
    """URL of a new store of each kind; see `url_of`."""
    return url_of(request.param, request)


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    """Application on a new, migrated store of each kind."""
    application = App(store_url)
    application.migrate()
    yield application
    application.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for one module, because asyncio starts no other loop while it runs. Skip the test if
    Chromium is missing."""
    from tests import browsers  # Playwright is slow to import, and few modules need it

    with skip_if_missing("chromium"), browsers.started() as running:
        yield running
