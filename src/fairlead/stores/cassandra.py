"""The backlog store on Cassandra: every write is a lightweight transaction on the partition's range id."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import UUID

import msgspec
from cassandra import (
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    ProtocolVersion,
    RequestExecutionException,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.policies import DCAwareRoundRobinPolicy, ExponentialReconnectionPolicy, TokenAwarePolicy
from cassandra.protocol import ErrorMessage
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, TraceUnavailable, tuple_factory

from fairlead.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from fairlead.model import LaneKey, LaneRecord, Level, PartitionKey, Trigger, TriggerPath
from fairlead.ports.backlog_store import Fenced, Ownership
from fairlead.ports.statements import Row
from fairlead.stores.sql_file import load

MOST_BYTES = 512 * 1024
"""Of rows in one transaction (about 2,500 triggers): it takes some 0.3 s, and the server gives it two."""

REQUEST_TIMEOUT = 10.0
"""Seconds to wait for an answer; the server's own limits are lower."""

_ROW_OVERHEAD = 100
"""Bytes of a row beside its texts, roughly."""
_SCAN_PAGE = 10_000
_PORT = 9042
_SCHEMA = ("create_keyspace", "create_backlog")
_SERIAL = {"LOCAL_QUORUM": ConsistencyLevel.LOCAL_SERIAL, "QUORUM": ConsistencyLevel.SERIAL}
_TROUBLE = (
    RequestExecutionException, OperationTimedOut, NoHostAvailable, ConnectionException, ErrorMessage, TraceUnavailable,
    OSError,
)  # fmt: skip
_TOMBSTONES = re.compile(r"Read \d+ live rows and (\d+) tombstone")

_record = msgspec.json.Decoder(LaneRecord)
_encode = msgspec.json.encode


class CassandraUrl(msgspec.Struct, frozen=True):
    """`cassandra://user:password@host:port,host:port/keyspace?replication=1&consistency=LOCAL_QUORUM`"""

    hosts: list[tuple[str, int]]
    keyspace: str
    user: str | None
    password: str
    replication: int
    """Copies of each row in each datacentre, when `migrate` makes the keyspace."""
    consistency: str
    """LOCAL_QUORUM: fences owners of one datacentre from each other, which is where all must be. QUORUM: owners in any."""

    @classmethod
    def parse(cls, url: str) -> CassandraUrl:
        """Raises ConfigurationError, which says what is wrong and no secret."""
        parts = urlsplit(url)
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        consistency, replication = options.pop("consistency", "LOCAL_QUORUM"), options.pop("replication", "1")
        keyspace = parts.path.removeprefix("/")
        if re.fullmatch(r"[^:,]+(:\d+)?(,[^:,]+(:\d+)?)*", hosts) is None:
            raise ConfigurationError("the Cassandra URL names no hosts; use cassandra://host:9042,host:9042/keyspace")
        if re.fullmatch(r"[a-z][a-z0-9_]{0,47}", keyspace) is None:
            raise ConfigurationError(f"{keyspace!r} is no keyspace: at most 48 of a-z, 0-9 and _, a letter first")
        if consistency not in _SERIAL:
            raise ConfigurationError(f"consistency {consistency!r} is unknown; use {' or '.join(_SERIAL)}")
        if not replication.isdecimal() or not int(replication):
            raise ConfigurationError(f"replication {replication!r} is no number of copies; use 1 or more")
        if options:
            raise ConfigurationError(f"unknown option {', '.join(sorted(options))}; use replication, consistency")
        return cls(
            hosts=[(host, int(port or _PORT)) for host, _, port in (one.partition(":") for one in hosts.split(","))],
            keyspace=keyspace,
            user=unquote(user) if login else None,
            password=unquote(password),
            replication=int(replication),
            consistency=consistency,
        )


class CassandraBacklogStore:
    """See `fairlead.ports.backlog_store.BacklogStore`. It connects when it is first used.

    What differs: a write of more than MOST_BYTES goes out in pieces, each all or nothing. If its owner dies in between, the
    pieces that have landed stay, under a record that has the triggers of the whole write received again.

    Write for one lane of a partition after the other: transactions of one partition that run at once dispute each other's
    ballots, which made 200 writes take 5 s instead of 2 s, and some of them raise StoreUnavailable.
    """

    persist_seconds = 60.0
    delete_acks = 1000

    def __init__(self, url: str) -> None:
        """Raises ConfigurationError."""
        self.url = CassandraUrl.parse(url)
        self._cql = load("cassandra.cql")
        self._opening = threading.Lock()
        self._cluster: Any = None
        self._session: Any = None
        self._prepared: dict[str, Any] = {}

    async def migrate(self) -> None:
        """Make the keyspace and the tables that are missing. Raises StoreUnavailable."""
        with self._trouble():
            await asyncio.to_thread(self._migrate)

    def _migrate(self) -> None:
        with self._make_cluster() as cluster:
            session = cluster.connect()
            session.execute(self._cql["create_keyspace"] % msgspec.structs.asdict(self.url))
            session.set_keyspace(self.url.keyspace)
            session.execute(self._cql["create_backlog"])

    async def take_over(self, partition: PartitionKey) -> Ownership:
        held = None
        while True:
            range_id = (held or 0) + 1
            found = await self._conditionally([("raise_range_id", (range_id, *partition, held))])
            if found is None:
                break
            (held,) = found  # another was faster, or it was owned before
        # Read after the fence is up: no earlier owner's write can come in between any more. A plain quorum is enough,
        # here and in read_above: our round has finished whatever transaction it found half done, at the same quorum, and
        # what is half done after it is a write of our own that raised StoreUnavailable and will be repeated.
        rows = await self._execute("lanes", *partition)
        return Ownership(range_id, _lanes(rows[0][3]))

    async def write(self, lane: LaneKey, range_id: int, entries: Sequence[Trigger], record: LaneRecord) -> None:
        pieces = list(_pieces(entries))
        # Should we die after some of the pieces: nothing lies above their max_level, and what the others carry counts as
        # unread in the channel.
        first = min((entry.seq for entry in entries), default=0)
        unfinished = msgspec.structs.replace(record, read_seq=min(record.read_seq, max(first - 1, 0)))
        for n, piece in enumerate(pieces, 1):
            kept = _encode(record if n == len(pieces) else unfinished).decode()
            keep_record = ("keep_record", (lane.priority, kept, lane.queue, lane.partition, range_id))
            await self._fenced(lane, range_id, [keep_record, *(("write", _row(lane, entry)) for entry in piece)])

    async def read_above(self, lane: LaneKey, level: Level, limit: int) -> list[Trigger]:
        return [_trigger(lane, row) async for row in self._rows("read_above", *lane, *level, limit)]

    async def traced_read(self, lane: LaneKey, level: Level, limit: int) -> tuple[list[Trigger], int]:
        """As `read_above`, in one page, and how many tombstones the read has scanned at the replica that met the most: a
        range tombstone counts as two, its start and its end. Raises StoreUnavailable, also when the trace is late."""
        with self._trouble():
            statement = await self._bind("read_above", *lane, *level, limit)
            statement.fetch_size = limit
            response = await self._answered(statement, trace=True)
            trace = await asyncio.to_thread(response.get_query_trace)
        scanned = [int(count) for event in trace.events for count in _TOMBSTONES.findall(event.description)]
        return [_trigger(lane, row) for row in response.result().current_rows], max(scanned, default=0)

    async def delete_through(self, lane: LaneKey, range_id: int, level: Level) -> None:
        # A range cannot be deleted IF something; beside a statement that is conditional it can.
        fence = ("raise_range_id", (range_id, lane.queue, lane.partition, range_id))
        await self._fenced(lane, range_id, [fence, ("delete_through", (*lane, *level))])

    async def levelled(self, lane: LaneKey, above: Level, tasks: Sequence[tuple[str, int]]) -> set[str]:
        """Walks the lane from the level up to its end, or until all are found: seconds for a million entries."""
        missing = set(tasks)
        async with contextlib.aclosing(self._rows("tasks_above", *lane, *above)) as rows:
            while missing and (row := await anext(rows, None)) is not None:
                missing.discard((str(row[0]), row[1]))
        return {task_id for task_id, _ in set(tasks) - missing}

    async def records(self) -> dict[PartitionKey, Ownership]:
        """Walks the partitions."""
        return {
            PartitionKey(queue, partition): Ownership(range_id, _lanes(records))
            async for queue, partition, range_id, records in self._rows("owners")
        }

    async def ahead(self, lane: LaneKey, above: Level, through: Level) -> tuple[int, int]:
        """Walks what lies between."""
        keys = [key async for (key,) in self._rows("keys_between", *lane, *above, *through)]
        return len(keys), len(set(keys))

    async def entry(self, lane: LaneKey, task_id: str) -> Trigger | None:
        """Walks the lane at the server, from its end; of millions of entries the server may give up: StoreUnavailable."""
        try:
            task = UUID(task_id)
        except ValueError:
            return None
        rows = await self._execute("entry", *lane, task)
        return _trigger(lane, rows[0]) if rows else None

    async def count(self, lane: LaneKey, above: Level) -> int:
        """Walks the lane at the server."""
        count: int = (await self._execute("count", *lane, *above))[0][0]
        return count

    async def close(self) -> None:
        """Let go of the connections. It may be used again."""
        await asyncio.to_thread(self._close)

    # transactions -----------------------------------------------------------------------------------------------------

    async def _fenced(self, lane: LaneKey, range_id: int, statements: Sequence[tuple[str, Row]]) -> None:
        if await self._conditionally(statements) is not None:
            raise Fenced(f"partition {lane.partition} of {lane.queue} was taken over: range id {range_id} is void")

    async def _conditionally(self, statements: Sequence[tuple[str, Row]]) -> Row | None:
        """All or none, in one transaction, whose first statement bears the condition. None: done; else (range id now,)."""
        with self._trouble():
            await self._connected()
            batch = await asyncio.to_thread(self._batch, statements)
            rows = (await self._answered(batch)).result().current_rows
        applied, *found = rows[0]
        if applied:
            return None
        # Of a partition that never had an owner only the refusal comes back; of a batch, keys and range id.
        return (found[-1] if found else None,)

    def _batch(self, statements: Sequence[tuple[str, Row]]) -> Any:
        # In a thread, as it takes 20 microseconds a row.
        batch = BatchStatement(BatchType.UNLOGGED)
        for name, params in statements:
            batch.add(self._prepared[name], params)
        return batch

    # reads ------------------------------------------------------------------------------------------------------------

    async def _execute(self, name: str, *params: Any) -> list[Row]:
        return [row async for row in self._rows(name, *params)]

    async def _rows(self, name: str, *params: Any) -> AsyncGenerator[Row, None]:
        paging_state = None
        while True:
            with self._trouble():
                statement = await self._bind(name, *params)
                statement.fetch_size = _SCAN_PAGE
                page = (await self._answered(statement, paging_state=paging_state)).result()
            for row in page.current_rows:
                yield row
            paging_state = page.paging_state
            if paging_state is None:
                return

    async def _bind(self, name: str, *params: Any) -> Any:
        await self._connected()
        return self._prepared[name].bind(params)

    # the driver -------------------------------------------------------------------------------------------------------

    async def _answered(self, statement: Any, **options: Any) -> Any:
        """The driver's future of the statement, once it has its answer; raises the driver's errors."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        def on_answer(error: BaseException | None = None) -> None:
            # In the driver's thread. Whoever asked may be gone, with its loop.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, error)

        # In a thread too: it encodes the statement, and waits for a connection when all are busy.
        response = await asyncio.to_thread(self._session.execute_async, statement, **options)
        response.add_callbacks(lambda _: on_answer(), on_answer)
        await answer
        return response

    async def _connected(self) -> None:
        if self._session is None:
            await asyncio.to_thread(self._open)

    def _open(self) -> None:
        with self._opening:
            if self._session is not None:
                return
            cluster = self._make_cluster()
            try:
                session = cluster.connect()
                session.set_keyspace(self.url.keyspace)
                self._prepared = {name: session.prepare(cql) for name, cql in self._cql.items() if name not in _SCHEMA}
            except BaseException as error:
                cluster.shutdown()
                if isinstance(error, InvalidRequest):
                    what = f"Cassandra's keyspace {self.url.keyspace} or a table of it is missing: run migrate()"
                    raise SchemaMismatch(what) from error
                raise
            self._cluster, self._session = cluster, session

    def _close(self) -> None:
        with self._opening:
            cluster, self._cluster, self._session = self._cluster, None, None
        if cluster is not None:
            cluster.shutdown()

    def _make_cluster(self) -> Any:
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy()),
            consistency_level=ConsistencyLevel.name_to_value[self.url.consistency],
            serial_consistency_level=_SERIAL[self.url.consistency],
            request_timeout=REQUEST_TIMEOUT,
            row_factory=tuple_factory,
        )
        login = None if self.url.user is None else PlainTextAuthProvider(self.url.user, self.url.password)
        return Cluster(
            self.url.hosts,
            auth_provider=login,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            protocol_version=ProtocolVersion.V5,
            reconnection_policy=ExponentialReconnectionPolicy(0.5, 10.0, max_attempts=None),
        )

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except _TROUBLE as error:
            hosts = ", ".join(f"{host}:{port}" for host, port in self.url.hosts)
            raise StoreUnavailable(f"Cassandra at {hosts}: {type(error).__name__}: {error}") from error


def _pieces(entries: Sequence[Trigger]) -> Iterator[list[Trigger]]:
    """At least one, of at most MOST_BYTES each unless one entry alone is more."""
    piece: list[Trigger] = []
    room = MOST_BYTES
    for entry in entries:
        size = _ROW_OVERHEAD + len(entry.name) + len(entry.fairness_key) + len(entry.ordering_key or "")
        if piece and size > room:
            yield piece
            piece, room = [], MOST_BYTES
        piece.append(entry)
        room -= size
    yield piece


def _row(lane: LaneKey, entry: Trigger) -> Row:
    assert entry.level is not None
    # Unset, not null: a null is written as a tombstone.
    ordering_key = UNSET_VALUE if entry.ordering_key is None else entry.ordering_key
    return (
        *lane, *entry.level, UUID(entry.id), entry.version, entry.name, entry.fairness_key, entry.weight, ordering_key,
        entry.seq,
        entry.order_at,
    )  # fmt: skip


def _trigger(lane: LaneKey, row: Row) -> Trigger:
    turn, number, task_id, version, name, fairness_key, weight, ordering_key, seq, order_at = row
    return Trigger(
        str(task_id), version, lane.queue, lane.partition, name, lane.priority, fairness_key, weight, ordering_key,
        TriggerPath.SPILL, seq, Level(turn, number), order_at,
    )  # fmt: skip


def _lanes(records: dict[int, str] | None) -> dict[int, LaneRecord]:
    return {priority: _record.decode(record) for priority, record in (records or {}).items()}
