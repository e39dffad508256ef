"""Fixtures shared by all tests: the real servers, started at most once a session, and a store of
each kind."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings

from fairlead import App
from services import MissingProgram
from services.cassandra import CassandraServer
from services.kafka import KafkaServer
from services.postgres import PostgresServer
from services.redis import RedisServer
from services.server import Server
from services.zookeeper import ZooKeeperServer
from tests.databases import Databases

settings.register_profile("fairlead", deadline=None, print_blob=True)
settings.load_profile("fairlead")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose Hypothesis' seed ourselves, so that every run can be made again."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.randrange(2**32))
    # A shell that starts us in the background has us ignore Ctrl-C, and what we start would inherit
    # that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once what has failed: a run that is cut off shows no summary."""
    if report.failed and not os.environ.get("PYTEST_XDIST_WORKER"):
        print(
            f"\nFAILED {report.nodeid} ({report.when}): {str(report.longreprtext).strip().splitlines()[-1:]}",
            flush=True,
        )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    terminalreporter.write_line(f"seed: --hypothesis-seed={config.option.hypothesis_seed}")


S = TypeVar("S", bound=Server)


def serving(server_class: type[S]) -> Iterator[S]:
    """A server of this session's own; with FAIRLEAD_REQUIRE_<NAME>=1 its absence is a failure, else
    its tests are skipped."""
    try:
        server = server_class()
    except MissingProgram as missing:
        if os.environ.get(f"FAIRLEAD_REQUIRE_{server_class.name.upper()}", "0") != "0":
            raise
        pytest.skip(str(missing))
    server.start()
    yield server
    # Nobody wants the data any more, so nothing is flushed either.
    server.stop("immediate")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """See `serving`."""
    yield from serving(PostgresServer)


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
    migrated_databases.give_back(url)


@pytest.fixture(scope="session")
def cassandra_server() -> Iterator[CassandraServer]:
    """See `serving`."""
    yield from serving(CassandraServer)


@pytest.fixture
def cassandra_url(cassandra_server: CassandraServer) -> str:
    """A fresh, empty keyspace."""
    return cassandra_server.create_keyspace()


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """See `serving`."""
    yield from serving(ZooKeeperServer)


@pytest.fixture
def zookeeper_url(zookeeper_server: ZooKeeperServer) -> str:
    """A folder of znodes that nobody has used."""
    return zookeeper_server.create_root()


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """See `serving`."""
    yield from serving(KafkaServer)


@pytest.fixture
def kafka_url(kafka_server: KafkaServer) -> str:
    """Topics and a group that nobody has used."""
    return kafka_server.create_prefix()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """See `serving`."""
    yield from serving(RedisServer)


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


@pytest.fixture(params=["sqlite", "migrated_postgres"], ids=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """A fresh store of each kind in turn; to migrate it is left to the test, and is quick."""
    return str(request.getfixturevalue(f"{request.param}_url"))


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
