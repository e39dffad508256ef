"""From URLs to adapters: the one place that knows them all. Optional ones are imported only when a
URL asks for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from fairlead.backends.redis.coordinator import Alone
from fairlead.backends.sql.channel import DatabaseChannel
from fairlead.backends.sql.coordinator import DatabaseCoordinator
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import Clock
from fairlead.config import Settings
from fairlead.errors import ConfigurationError, NotSupported
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.lake import LakeExporter
from fairlead.ports.notifier import Notifier
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_log import TaskLog
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel

KNOWN = (
    "sqlite:///tasks.db, sqlite:////absolute/path/tasks.db,"
    " postgresql://user:password@host:port/database, redis://host:6379/0"
)

_REDIS = ("redis", "rediss", "unix")
_DATABASE = (None, "database", "database://")
"""Of a part that may live elsewhere: in the database of the task store."""

Counted = Callable[[str, int], None]


class Connections(NamedTuple):
    """What an application talks to."""

    store: TaskStore
    backlog: BacklogStore
    notifier: Notifier
    channel: TriggerChannel
    coordinator: Coordinator
    log: TaskLog | None = None
    """Of ordered queues, for submits: a node has one of its own."""
    schedule: ScheduleStore | None = None

    async def close_async(self) -> None:
        """Let go of what this event loop has opened. It may be used again."""
        await self.backlog.close()
        for part in (self.log, self.schedule):
            if part is not None:
                await part.close()
        await self.store.database.close_async()


def connect(
    settings: Settings, clock: Clock, partitions: Mapping[str, int], counted: Counted
) -> Connections:
    """The adapters for these URLs; nothing is opened yet. `partitions`: of the queues, as far as
    this process knows them; `counted`: is told what went wrong and how often. Raises
    ConfigurationError for a URL of no known kind."""
    if urlsplit(settings.url).scheme in _REDIS:
        return _redis(settings, clock, counted)
    store = task_store(settings.url)
    notifier = _memory_notifier() if settings.channel == "memory://" else _notifier(store)
    return Connections(
        store,
        backlog_store(settings.backlog, store),
        notifier,
        _channel(settings.channel, store, notifier, partitions, counted, clock),
        _coordinator(settings.coordinator, store, clock),
        task_log(settings.log, store, clock, partitions, counted),
        schedule_store(settings.schedule, store),
    )


def _redis(settings: Settings, clock: Clock, counted: Counted) -> Connections:
    """Tasks that live in Redis alone: it is store, channel and order in one."""
    for name in ("channel", "backlog", "log", "schedule"):
        if (other := getattr(settings, name)) is not None:
            raise ConfigurationError(
                f"{name}={_without_secret(other)!r}: tasks on Redis need none; leave it out"
            )
    _require("redis", "redis")
    from fairlead.backends.redis.no_backlog import NoBacklog
    from fairlead.backends.redis.sharded.endpoint import Place
    from fairlead.backends.redis.task_channel import RedisTaskChannel
    from fairlead.backends.redis.task_store import MOST_LOST, RedisTaskStore

    place = Place.of(settings.url)
    store = RedisTaskStore(place)
    notifier = _memory_notifier()
    return Connections(
        store,
        NoBacklog(),
        notifier,
        RedisTaskChannel(place, store, notifier, counted, MOST_LOST, clock),
        _coordinator(settings.coordinator, None, clock),
    )


def _require(module: str, extra: str) -> None:
    """Raises ConfigurationError when an optional library is not installed."""
    try:
        import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{error.name} is missing: pip install 'fairlead[{extra}]'"
        ) from error


def _channel(
    url: str | None,
    store: SqlTaskStore,
    notifier: Notifier,
    partitions: Mapping[str, int],
    counted: Counted,
    clock: Clock,
) -> TriggerChannel:
    if url in (*_DATABASE, "memory://"):
        return DatabaseChannel(store, notifier, clock)
    assert url is not None
    if urlsplit(url).scheme in _REDIS:
        _require("redis", "redis")
        from fairlead.backends.redis.channel import RedisChannel

        return RedisChannel(url, store, notifier, counted, clock)
    if urlsplit(url).scheme != "kafka":
        raise ConfigurationError(
            f"channel {_without_secret(url)!r} is unknown; use 'database' (default), 'memory://',"
            " kafka://host:9092 or redis://host:6379/0"
        )
    _require("confluent_kafka", "kafka")
    from fairlead.backends.kafka.channel import KafkaChannel

    return KafkaChannel(url, store, notifier, partitions, counted, clock)


def _coordinator(url: str | None, store: SqlTaskStore | None, clock: Clock) -> Coordinator:
    if url in _DATABASE:
        return Alone() if store is None else DatabaseCoordinator(store)
    if urlsplit(url).scheme != "zookeeper":
        raise ConfigurationError(
            f"coordinator {_without_secret(url)!r} is unknown; use 'database' (default) or"
            " zookeeper://host:2181/folder"
        )
    _require("kazoo", "zookeeper")
    from fairlead.backends.zookeeper.coordinator import ZooKeeperCoordinator

    return ZooKeeperCoordinator(url, clock)


def backlog_store(url: str | None, store: SqlTaskStore) -> BacklogStore:
    """The backlog store of a URL, cassandra://host:port/keyspace or one of a task store; without
    one it lives in the tables of the task store."""
    if url in _DATABASE:
        return _sql_backlog_store(store)
    if urlsplit(url).scheme == "cassandra":
        _require("cassandra", "cassandra")
        from fairlead.backends.cassandra.backlog import CassandraBacklogStore

        return CassandraBacklogStore(url)
    return _sql_backlog_store(task_store(url))


def _sql_backlog_store(store: SqlTaskStore) -> BacklogStore:
    if store.database.dialect == "sqlite":
        from fairlead.backends.sqlite.backlog import SqliteBacklogStore

        return SqliteBacklogStore(store)
    from fairlead.backends.postgres.backlog import PostgresBacklogStore

    return PostgresBacklogStore(store)


def task_log(
    url: str | None,
    store: TaskStore,
    clock: Clock,
    partitions: Mapping[str, int],
    counted: Counted,
) -> TaskLog:
    """The log of ordered queues, one for each node and one for submits: kafka://host:9092, or in
    the database of the task store."""
    if url in _DATABASE:
        from fairlead.backends.sql.task_log import SqlTaskLog

        assert isinstance(store, SqlTaskStore)
        return SqlTaskLog(store, clock)
    assert url is not None
    if urlsplit(url).scheme != "kafka":
        raise ConfigurationError(
            f"log {_without_secret(url)!r} is unknown; use 'database' (default) or"
            " kafka://host:9092"
        )
    _require("confluent_kafka", "kafka")
    from fairlead.backends.kafka.task_log import KafkaTaskLog

    return KafkaTaskLog(url, partitions, counted, clock)


def schedule_store(url: str | None, store: SqlTaskStore) -> ScheduleStore:
    """The schedule of ordered queues: cassandra://host:9042/keyspace, or in the database of the
    task store. The history of attempts is the task store's in either case."""
    if url in _DATABASE:
        from fairlead.backends.sql.schedule import SqlScheduleStore

        return SqlScheduleStore(store)
    assert url is not None
    if urlsplit(url).scheme != "cassandra":
        raise ConfigurationError(
            f"schedule {_without_secret(url)!r} is unknown; use 'database' (default) or"
            " cassandra://host:9042/keyspace"
        )
    _require("cassandra", "cassandra")
    from fairlead.backends.cassandra.schedule import CassandraScheduleStore

    return CassandraScheduleStore(url, store)


def require_lake() -> None:
    """Raises ConfigurationError when the extra that a lake needs is not installed."""
    from fairlead.pipeline.exporter_poller import require

    require()


def lake_keeper(folder: str, store: SqlStore, clock: Clock) -> LakeExporter:
    """What moves the history of a store into the lake in this folder. Raises ConfigurationError for
    one that cannot be used."""
    from fairlead.pipeline.exporter_poller import Keeper

    return Keeper(store.history(), folder, clock)


def bulk_sweeper(store: TaskStore, clock: Clock) -> Callable[[], Awaitable[int]] | None:
    """What removes the leftovers of bulk submits that died; answers how many there were. None where
    there is no bulk submit."""
    try:
        tables = store.as_sql()
    except NotSupported:
        return None

    async def sweep() -> int:
        from fairlead.pipeline.bulk import janitor

        return await tables.database.run_async(janitor.sweep(tables, clock.now()))

    return sweep


def task_store(url: str) -> SqlTaskStore:
    """The task store of a URL."""
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from fairlead.backends.sqlite.database import SqliteDatabase
        from fairlead.backends.sqlite.task_store import SqliteTaskStore

        parts = urlsplit(url)
        options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        unknown = options.keys() - {"synchronous"}
        path = unquote(parts.path).removeprefix("/")
        if parts.netloc or not path or unknown:
            why = f"unknown option {', '.join(sorted(unknown))}" if unknown else "it names no file"
            raise ConfigurationError(f"URL {url!r}: {why}; use {KNOWN} (option: ?synchronous=FULL)")
        return SqliteTaskStore(SqliteDatabase(Path(path), options.get("synchronous", "FULL")))
    if scheme in ("postgresql", "postgres"):
        for driver in ("asyncpg", "psycopg"):
            _require(driver, "postgres")
        from fairlead.backends.postgres.database import PostgresDatabase
        from fairlead.backends.postgres.task_store import PostgresTaskStore

        return PostgresTaskStore(PostgresDatabase(url))
    raise ConfigurationError(f"URL {_without_secret(url)!r} is of no known kind; use {KNOWN}")


def _notifier(store: SqlTaskStore) -> Notifier:
    from fairlead.backends.sqlite.database import SqliteDatabase

    if isinstance(store.database, SqliteDatabase):
        from fairlead.backends.sqlite.notifier import FifoNotifier

        return FifoNotifier(store.database.path)
    from fairlead.backends.postgres.notifier import PostgresNotifier

    return PostgresNotifier(store.database)  # type: ignore[arg-type]


def _memory_notifier() -> Notifier:
    from fairlead.backends.memory.notifier import MemoryNotifier

    return MemoryNotifier()


def _without_secret(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.hostname or "").geturl()
