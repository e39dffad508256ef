"""Fixtures shared by all tests: the tiers, the real servers, and a store of each kind."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from fairlead import App
from services import MissingProgram
from services.cassandra import CassandraServer
from services.kafka import KafkaServer
from services.postgres import PostgresServer
from services.redis import RedisServer
from services.server import Server
from services.zookeeper import ZooKeeperServer
from tests import servers, tiers
from tests.databases import Databases

_HOST = pytest.StashKey[servers.Host]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--new-seeds",
        action="store_true",
        help="run properties and simulations with new seeds and all their examples, not with fixed ones",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seeds, so that every run can be made again, and open the host of the servers."""
    tiers.choose(config.option.new_seeds)
    if config.option.new_seeds and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.randrange(2**32))
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.stash[_HOST] = servers.Host()
    # A shell that starts us in the background has us ignore Ctrl-C, and what we start would inherit
    # that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers of the run; a run that is killed leaves this to the host itself."""
    if (host := config.stash.get(_HOST, None)) is not None:
        host.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once what has failed: a run that is cut off shows no summary."""
    if report.failed and not os.environ.get("PYTEST_XDIST_WORKER"):
        print(
            f"\nFAILED {report.nodeid} ({report.when}): {str(report.longreprtext).strip().splitlines()[-1:]}",
            flush=True,
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose name holds an address in memory: it has another name in each process."""
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


S = TypeVar("S", bound=Server)


@contextmanager
def or_skipped(name: str) -> Iterator[None]:
    """Skip the test where a server's program is missing; with FAIRLEAD_REQUIRE_<NAME>=1 fail."""
    try:
        yield
    except MissingProgram as missing:
        if os.environ.get(f"FAIRLEAD_REQUIRE_{name.upper()}", "0") != "0":
            raise
        pytest.skip(str(missing))


def own(server_class: type[S]) -> Iterator[S]:
    """A server of whoever asks; see `or_skipped`."""
    with or_skipped(server_class.name):
        server = server_class()
    server.start()
    yield server
    # The data is not needed any more, so stop without a flush.
    server.stop("immediate")


def shared(server_class: type[S]) -> S:
    """The run's server of this kind, on which each process makes names of its own."""
    with or_skipped(server_class.name):
        running = servers.running(server_class.name)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return server_class.attached(running, worker and f"{worker}_")


def _own_or_shared(request: pytest.FixtureRequest, name: str) -> str:
    return f"own_{name}" if f"own_{name}" in request.fixturenames else name


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One for each process of the run; see `tests.servers`."""
    yield from own(PostgresServer)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh, empty database; nothing stays connected to it."""
    url = postgres_server.create_database()
    yield url
    if postgres_server.pid is not None:
        postgres_server.disconnect(url)


@pytest.fixture(scope="session")
def migrated_databases(postgres_server: PostgresServer) -> Databases:
    """See `Databases`."""
    return Databases(postgres_server)


@pytest.fixture
def migrated_postgres_url(migrated_databases: Databases) -> Iterator[str]:
    """A database without a row; nothing stays connected to it."""
    url = migrated_databases.take()
    yield url
    migrated_databases.release(url)


@pytest.fixture(scope="session")
def cassandra_server() -> Iterator[CassandraServer]:
    """See `shared`."""
    server = shared(CassandraServer)
    yield server
    server.disconnect()


@pytest.fixture
def own_cassandra_server() -> Iterator[CassandraServer]:
    """One that the test may kill."""
    yield from own(CassandraServer)


@pytest.fixture
def cassandra_url(request: pytest.FixtureRequest) -> str:
    """A fresh, empty keyspace; on the test's own server if it has one."""
    server: CassandraServer = request.getfixturevalue(_own_or_shared(request, "cassandra_server"))
    return server.create_keyspace()


@pytest.fixture(scope="session")
def zookeeper_server() -> ZooKeeperServer:
    """See `shared`."""
    return shared(ZooKeeperServer)


@pytest.fixture
def zookeeper_url(zookeeper_server: ZooKeeperServer) -> str:
    """A folder of znodes that nobody has used."""
    return zookeeper_server.create_root()


@pytest.fixture(scope="session")
def kafka_server() -> KafkaServer:
    """See `shared`."""
    return shared(KafkaServer)


@pytest.fixture
def own_kafka_server() -> Iterator[KafkaServer]:
    """One that the test may kill."""
    yield from own(KafkaServer)


@pytest.fixture
def kafka_url(request: pytest.FixtureRequest) -> str:
    """Topics and a group that nobody has used; on the test's own server if it has one."""
    server: KafkaServer = request.getfixturevalue(_own_or_shared(request, "kafka_server"))
    return server.create_prefix()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One for each process of the run; see `tests.servers`."""
    yield from own(RedisServer)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """An empty database."""
    redis = pytest.importorskip("redis", reason="needs the extra redis")
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'tasks.db'}"


def url_of(store: str, request: pytest.FixtureRequest) -> str:
    """A fresh store of this kind; to migrate it is left to the test, and is quick."""
    fixture = "migrated_postgres_url" if store == "postgres" else f"{store}_url"
    return str(request.getfixturevalue(fixture))


@pytest.fixture(params=tiers.matrix("sqlite", "postgres"))
def store_url(request: pytest.FixtureRequest) -> str:
    """See `url_of`."""
    return url_of(request.param, request)


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    """An application on a fresh, migrated store of each kind in turn."""
    application = App(store_url)
    application.migrate()
    yield application
    application.close()


@pytest.fixture(scope="session")
def shared_data() -> Path | None:
    """The folder with the real workload, when it lies beside the repository."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None
