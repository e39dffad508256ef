"""From URLs to adapters: the one place that knows them all. Optional ones are imported only when a URL asks for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from fairlead.channels.database import DatabaseChannel
from fairlead.clock import Clock
from fairlead.coordination.alone import Alone
from fairlead.coordination.database import DatabaseCoordinator
from fairlead.errors import ConfigurationError
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.lake import LakeKeeper
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import TaskLog
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import Bell, TriggerChannel
from fairlead.stores.sql_store import SqlTaskStore

KNOWN = (
    "sqlite:///tasks.db, sqlite:////absolute/path/tasks.db, postgresql://user:password@host:port/database, "
    "redis://host:6379/0"
)

_REDIS = ("redis", "rediss", "unix")


class Connections(NamedTuple):
    """What an application talks to."""

    store: TaskStore
    backlog: BacklogStore
    bell: Bell
    channel: TriggerChannel
    coordinator: Coordinator
    log: TaskLog | None = None
    """Of ordered queues, for submits."""


def connect(
    url: str,
    channel: str | None,
    coordinator: str | None,
    backlog: str | None,
    clock: Clock,
    partitions: Mapping[str, int],
    counted: Callable[[str, int], None],
) -> Connections:
    """The adapters for these URLs; nothing is opened yet. `partitions`: of the queues, as far as this process knows them;
    `counted`: is told what went wrong and how often. Raises ConfigurationError for a URL of no known kind."""
    if urlsplit(url).scheme in _REDIS:
        return _redis(url, channel, coordinator, backlog, counted, clock)
    store = task_store(url)
    bell = _memory_bell() if channel == "memory://" else _bell(store)
    return Connections(
        store,
        backlog_store(backlog, store),
        bell,
        _channel(channel, store, bell, partitions, counted, clock),
        _coordinator(coordinator, store, clock),
        task_log(store, clock),
    )


def _redis(
    url: str,
    channel: str | None,
    coordinator: str | None,
    backlog: str | None,
    counted: Callable[[str, int], None],
    clock: Clock,
) -> Connections:
    """Tasks that live in Redis alone: it is store, channel and order in one."""
    for name, other in (("channel", channel), ("backlog", backlog)):
        if other is not None:
            raise ConfigurationError(f"{name}={_without_secret(other)!r}: tasks on Redis need none; leave it out")
    _require_redis()
    from fairlead.channels.redis_tasks import RedisTaskChannel
    from fairlead.sharded.place import Place
    from fairlead.stores.no_backlog import NoBacklog
    from fairlead.stores.redis import MOST_LOST, RedisTaskStore

    place = Place.of(url)
    store = RedisTaskStore(place)
    bell = _memory_bell()
    return Connections(
        store,
        NoBacklog(),
        bell,
        RedisTaskChannel(place, store, bell, counted, MOST_LOST, clock),
        _coordinator(coordinator, None, clock),
    )


def _require_redis() -> None:
    try:
        import redis  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is missing: pip install 'fairlead[redis]'") from error


def _channel(
    url: str | None,
    store: SqlTaskStore,
    bell: Bell,
    partitions: Mapping[str, int],
    counted: Callable[[str, int], None],
    clock: Clock,
) -> TriggerChannel:
    if url in (None, "database", "memory://", "database://"):
        return DatabaseChannel(store, bell, clock)
    assert url is not None
    if urlsplit(url).scheme in _REDIS:
        _require_redis()
        from fairlead.channels.redis import RedisChannel

        return RedisChannel(url, store, bell, counted, clock)
    if urlsplit(url).scheme != "kafka":
        raise ConfigurationError(
            f"channel {_without_secret(url)!r} is unknown; use 'database' (default), 'memory://', kafka://host:9092 or "
            "redis://host:6379/0"
        )
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is missing: pip install 'fairlead[kafka]'") from error
    from fairlead.channels.kafka import KafkaChannel

    return KafkaChannel(url, store, bell, partitions, counted, clock)


def _coordinator(url: str | None, store: SqlTaskStore | None, clock: Clock) -> Coordinator:
    if url in (None, "database", "database://"):
        return Alone() if store is None else DatabaseCoordinator(store)
    if urlsplit(url).scheme != "zookeeper":
        raise ConfigurationError(
            f"coordinator {_without_secret(url)!r} is unknown; use 'database' (default) or zookeeper://host:2181/folder"
        )
    try:
        import kazoo  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is missing: pip install 'fairlead[zookeeper]'") from error
    from fairlead.coordination.zookeeper import ZooKeeperCoordinator

    return ZooKeeperCoordinator(url, clock)


def backlog_store(url: str | None, store: SqlTaskStore) -> BacklogStore:
    """The backlog store of a URL, cassandra://host:port/keyspace or one of a task store; without one it lives in the
    tables of the task store."""
    if url in (None, "database", "database://"):
        return _sql_backlog_store(store)
    if urlsplit(url).scheme == "cassandra":
        try:
            import cassandra  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(f"{error.name} is missing: pip install 'fairlead[cassandra]'") from error
        from fairlead.stores.cassandra import CassandraBacklogStore

        return CassandraBacklogStore(url)
    return _sql_backlog_store(task_store(url))


def _sql_backlog_store(store: SqlTaskStore) -> BacklogStore:
    if store.database.dialect == "sqlite":
        from fairlead.stores.sqlite_backlog import SqliteBacklogStore

        return SqliteBacklogStore(store)
    from fairlead.stores.postgres_backlog import PostgresBacklogStore

    return PostgresBacklogStore(store)


def task_log(store: SqlTaskStore, clock: Clock) -> TaskLog:
    """The log of ordered queues, one for each node and one for submits: in the database of the task store."""
    from fairlead.stores.sql_task_log import SqlTaskLog

    return SqlTaskLog(store, clock)


def schedule_store(store: SqlTaskStore) -> ScheduleStore:
    """The schedule of ordered queues: in the database of the task store."""
    from fairlead.stores.sql_schedule import SqlScheduleStore

    return SqlScheduleStore(store)


def require_lake() -> None:
    """Raises ConfigurationError when the extra that a lake needs is not installed."""
    from fairlead.pipeline.keeper import require

    require()


def lake_keeper(folder: str, store: SqlTaskStore, clock: Clock) -> LakeKeeper:
    """What moves the history of a store into the lake in this folder. Raises ConfigurationError for one that cannot be used."""
    from fairlead.pipeline.keeper import Keeper
    from fairlead.stores.sql_history import SqlHistory

    return Keeper(SqlHistory(store.database), folder, clock)


def bulk_sweeper(store: SqlTaskStore, clock: Clock) -> Callable[[], Awaitable[int]]:
    """What removes the leftovers of bulk submits that died; answers how many there were."""

    async def sweep() -> int:
        from fairlead.pipeline.bulk import janitor

        return await store.database.run_async(janitor.sweep(store, clock.now()))

    return sweep


def task_store(url: str) -> SqlTaskStore:
    """The task store of a URL."""
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from fairlead.stores.sqlite import SqliteTaskStore
        from fairlead.stores.sqlite_database import SqliteDatabase

        parts = urlsplit(url)
        options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        unknown = options.keys() - {"synchronous"}
        path = unquote(parts.path).removeprefix("/")
        if parts.netloc or not path or unknown:
            why = f"unknown option {', '.join(sorted(unknown))}" if unknown else "it names no file"
            raise ConfigurationError(f"URL {url!r}: {why}; use {KNOWN} (option: ?synchronous=FULL)")
        return SqliteTaskStore(SqliteDatabase(Path(path), options.get("synchronous", "FULL")))
    if scheme in ("postgresql", "postgres"):
        try:
            import asyncpg  # noqa: F401
            import psycopg  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(f"{error.name} is missing: pip install 'fairlead[postgres]'") from error
        from fairlead.stores.postgres import PostgresTaskStore
        from fairlead.stores.postgres_database import PostgresDatabase

        return PostgresTaskStore(PostgresDatabase(url))
    raise ConfigurationError(f"URL {_without_secret(url)!r} is of no known kind; use {KNOWN}")


def _bell(store: SqlTaskStore) -> Bell:
    from fairlead.stores.sqlite_database import SqliteDatabase

    if isinstance(store.database, SqliteDatabase):
        from fairlead.channels.fifo_bell import FifoBell

        return FifoBell(store.database.path)
    from fairlead.channels.postgres_bell import PostgresBell

    return PostgresBell(store.database)  # type: ignore[arg-type]


def _memory_bell() -> Bell:
    from fairlead.channels.memory_bell import MemoryBell

    return MemoryBell()


def _without_secret(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.hostname or "").geturl()
