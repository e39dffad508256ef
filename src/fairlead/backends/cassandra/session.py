"""A session with Cassandra for the stores: its URL, named statements, and asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from cassandra import (
    ConsistencyLevel,
    ProtocolVersion,
    UnresolvableContactPoints,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.connection import ConnectionBusy, DefaultEndPoint
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    TokenAwarePolicy,
)
from cassandra.pool import NoConnectionsAvailable
from cassandra.query import BatchStatement, BatchType, tuple_factory

from fairlead.backends.cassandra.failures import translated
from fairlead.backends.cassandra.page_size import PageSize
from fairlead.backends.sql.sql_file import load
from fairlead.errors import ConfigurationError
from fairlead.ports.statements import Row
from fairlead.tls import PARAMETERS, Tls, explain, find_mismatch
from fairlead.urls import hosts_of, parameters_of, shown_url, split_url

T = TypeVar("T")

_driver_log = logging.getLogger("cassandra.cluster")
# The driver logs each failed connection with a traceback; the stores raise the same error.
_driver_log.addFilter(
    lambda record: not record.exc_info or _driver_log.getEffectiveLevel() <= logging.DEBUG
)

MOST_BYTES = 512 * 1024
"""Bytes of rows in one batch. A transaction of that size (about 2,500 triggers) takes some 0.3 s;
the server's limit is 2 s."""

REQUEST_TIMEOUT = 10.0
"""Seconds to wait for a response; the server's own limits are lower."""

_BUSY_PAUSE = 0.02
"""Seconds until a request is tried again that the driver could not send."""

_SCHEMA_SECONDS = 15.0
"""Seconds for a server to describe all its tables when a connection opens. The driver's default of
2 is too short for a busy server with many tables."""

_SCAN_PAGE = 10_000
_OURS = ("consistency", "local_dc", "replication")
_PORT = 9042
_OUR_TABLES = re.compile(r"\b(?=fairlead_)")
_SERIAL = {"LOCAL_QUORUM": ConsistencyLevel.LOCAL_SERIAL, "QUORUM": ConsistencyLevel.SERIAL}
_NAME = r"[A-Za-z0-9_.-]+"
_REPLICATION = re.compile(rf"[1-9]\d*|{_NAME}:[1-9]\d*(,{_NAME}:[1-9]\d*)*")


def bytes_of(*values: object) -> int:
    """Return the bytes of the texts among the values, in UTF-8."""
    return sum(len(value.encode()) for value in values if isinstance(value, str))


def _is_unsent(error: NoHostAvailable) -> bool:
    """Return whether the driver has sent the request to no host, because the sockets are full or
    too many requests are under way."""
    errors = error.errors.values() if isinstance(error.errors, dict) else ()
    return bool(errors) and all(
        isinstance(each, ConnectionBusy | NoConnectionsAvailable) for each in errors
    )


def chunks(values: Iterable[T], most: int) -> Iterator[list[T]]:
    """Yield all values in lists of at most `most`."""
    left = iter(values)
    while some := list(islice(left, most)):
        yield some


class CassandraUrl(msgspec.Struct, frozen=True):
    """Parts of a URL
    `cassandra://user:password@host:port,host:port/keyspace?replication=1&consistency=LOCAL_QUORUM&local_dc=dc1`.
    """

    hosts: list[tuple[str, int]]
    keyspace: str
    user: str | None
    password: str
    replication: str
    """Copies of each row in a keyspace that `migrate` creates: "3" copies in each datacentre that
    exists at that time, or "dc1:3,dc2:3"."""
    consistency: str
    """LOCAL_QUORUM if all owners are in one datacentre, because fences work inside it only; QUORUM
    if owners are in several."""
    local_dc: str | None = None
    """Datacentre to use while one of its nodes responds. By default, the datacentre of the first
    host that responds."""
    tls: Tls | None = None
    """Certificates, if the URL asks for TLS."""

    def __repr__(self) -> str:
        """Return the hosts and the keyspace, without secrets."""
        return f"<CassandraUrl of {self.location}/{self.keyspace}>"

    @property
    def strategy(self) -> str:
        """Replication of the keyspace, in CQL."""
        copies = (one.rpartition(":") for one in self.replication.split(","))
        named = ", ".join(
            f"'{datacentre or 'replication_factor'}': {count}" for datacentre, _, count in copies
        )
        return f"{{'class': 'NetworkTopologyStrategy', {named}}}"

    @property
    def location(self) -> str:
        """Hosts and ports, without secrets."""
        return f"Cassandra at {', '.join(f'{host}:{port}' for host, port in self.hosts)}"

    @classmethod
    def parse(cls, url: str) -> CassandraUrl:
        """Parse a URL. Raise ConfigurationError with the cause and without secrets."""
        parts, where = split_url(url), f"URL {shown_url(url)}"
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        options = parameters_of(where, parts, (*_OURS, *PARAMETERS))
        consistency = options.get("consistency", "LOCAL_QUORUM")
        replication = options.get("replication", "1")
        local_dc = options.get("local_dc")
        keyspace = parts.path.removeprefix("/")
        if re.fullmatch(r"[a-z][a-z0-9_]{0,47}", keyspace) is None:
            raise ConfigurationError(
                f"{where}: the path is not a keyspace: use at most 48 of a-z, 0-9 and _,"
                " beginning with a letter"
            )
        if consistency not in _SERIAL:
            raise ConfigurationError(
                f"consistency {consistency!r} is unknown; use {' or '.join(_SERIAL)}"
            )
        if _REPLICATION.fullmatch(replication) is None:
            raise ConfigurationError(
                f"replication {replication!r} is not a number of copies; use 1 or more, or"
                " datacentres: dc1:3,dc2:3"
            )
        if local_dc is not None and re.fullmatch(_NAME, local_dc) is None:
            raise ConfigurationError(
                f"local_dc {local_dc!r} is not a datacentre; use its name, as"
                " nodetool status shows it"
            )
        return cls(
            hosts=hosts_of(where, hosts, _PORT),
            keyspace=keyspace,
            user=unquote(user) if login else None,
            password=unquote(password),
            replication=replication,
            consistency=consistency,
            local_dc=local_dc,
            tls=Tls.of(where, options),
        )


class CassandraSession:
    """A session with Cassandra that connects at its first use.

    Methods raise StoreUnavailable, SchemaMismatch for a missing table, and ConfigurationError for a
    refused login or right.
    """

    def __init__(
        self, url: CassandraUrl, statements: str, schema: Collection[str], far_hosts: int = 0
    ) -> None:
        """Open no connection yet.

        `statements` is the name of a CQL file, beside `keyspace.cql`; `schema` has the names of its
        statements that create the tables, in order. While no node of our own datacentre is up,
        `far_hosts` nodes of each other datacentre are used; LOCAL_QUORUM then means a quorum of
        theirs.
        """
        self.url = url
        # Each statement names its keyspace, which cannot be a parameter. The server warns about
        # statements that are prepared after a USE.
        self._cql = {
            name: _OUR_TABLES.sub(f"{url.keyspace}.", cql)
            for file in ("keyspace.cql", statements)
            for name, cql in load(file, __package__).items()
        }
        self._schema = ("create_keyspace_owner", *schema)
        self._far_hosts = far_hosts
        self._opening = threading.Lock()
        self._cluster: Any = None
        self._session: Any = None
        self._prepared: dict[str, Any] = {}
        self.received = 0
        """Number of rows received so far."""
        self.on_written: Callable[[str], None] = lambda datacentre: None
        """Called after each batch with the datacentre that has acknowledged it."""

    async def migrate(self) -> None:
        """Create the keyspace and the tables that are missing."""
        await asyncio.to_thread(self.migrate_now)

    def migrate_now(self) -> None:
        """Create the keyspace and the tables that are missing."""
        with self.translate_errors(), self.make_cluster() as cluster:
            session = self._connect(cluster)
            session.execute(
                f"CREATE KEYSPACE IF NOT EXISTS {self.url.keyspace} WITH replication ="
                f" {self.url.strategy}"
            )
            for name in self._schema:
                session.execute(self._cql[name])

    @property
    def datacentres(self) -> int:
        """Number of datacentres with copies of the keyspace; 0 before the first statement."""
        if self._cluster is None:
            return 0
        strategy = self._cluster.metadata.keyspaces[self.url.keyspace].replication_strategy
        return len(getattr(strategy, "dc_replication_factors", ["one"]))

    def datacentres_up(self) -> dict[str, bool]:
        """Return, by datacentre, whether the driver has a connection to one of its nodes. Empty
        before the first statement."""
        up: dict[str, bool] = {}
        for host in self._cluster.metadata.all_hosts() if self._cluster is not None else ():
            up[host.datacenter] = up.get(host.datacenter, False) or host.is_up is True
        return up

    # statements -----------------------------------------------------------------------------------

    async def execute(self, name: str, *params: Any, **options: Any) -> list[Row]:
        """Return all rows of a statement; `options` are those of `rows`."""
        return [row async for row in self.rows(name, *params, **options)]

    async def rows(
        self,
        name: str,
        *params: Any,
        page: int = _SCAN_PAGE,
        sizes: PageSize | None = None,
        consistency: int | None = None,
        check: Callable[[str], None] = lambda datacentre: None,
    ) -> AsyncGenerator[Row, None]:
        """Yield the rows of a statement, `page` of them in one request, or fewer by their `sizes`.
        `check` may refuse, by an error, the datacentre that has returned them."""
        paging_state = None
        while True:
            count = page if sizes is None else sizes.within(page)
            with self.translate_errors():
                response = await self._response(
                    partial(self._bind, name, params, count, consistency),
                    paging_state=paging_state,
                )
                found = response.result()
                check(response.coordinator_host.datacenter)
            self.received += len(found.current_rows)
            if sizes is not None:
                sizes.on_rows(found.current_rows)
            for row in found.current_rows:
                yield row
            paging_state = found.paging_state
            if paging_state is None:
                return

    def execute_now(self, name: str, params: Row) -> list[Row]:
        """Return all rows of a statement. Blocks, in any thread."""
        with self.translate_errors():
            self._open()
            until = time.monotonic() + REQUEST_TIMEOUT
            while True:
                try:
                    statement = self._bind(name, params, _SCAN_PAGE, None)
                    return list(self._session.execute(statement))
                except NoHostAvailable as error:
                    if not _is_unsent(error) or time.monotonic() >= until:
                        raise
                time.sleep(_BUSY_PAUSE)

    async def batch(self, statements: Sequence[tuple[str, Row]]) -> list[Row]:
        """Run all statements or none; all must have the same partition key in Cassandra, which
        makes them one write of its replicas."""
        with self.translate_errors():
            response = await self._response(lambda: self._batch(statements))
            rows: list[Row] = response.result().current_rows
        self.on_written(response.coordinator_host.datacenter)
        return rows

    # run in a thread: a batch takes 20 microseconds a row -----------------------------------------

    def _batch(self, statements: Sequence[tuple[str, Row]]) -> Any:
        batch = BatchStatement(BatchType.LOGGED)
        for name, params in statements:
            batch.add(self._prepared[name], params)
        return batch

    def _bind(self, name: str, params: Row, page: int, consistency: int | None) -> Any:
        statement = self._prepared[name].bind(params)
        statement.fetch_size = page
        if consistency is not None:
            statement.consistency_level = consistency
        return statement

    # the driver -----------------------------------------------------------------------------------

    async def _response(self, make_statement: Callable[[], Any], **options: Any) -> Any:
        """Run the statement, wait for its end, and return the driver's finished future. While the
        driver has no room to send it, try again, for REQUEST_TIMEOUT at most. Raise the driver's
        errors."""
        await self.connected()
        until = time.monotonic() + REQUEST_TIMEOUT
        while True:
            try:
                return await self._one_response(make_statement, options)
            except NoHostAvailable as error:
                if not _is_unsent(error) or time.monotonic() >= until:
                    raise
            await asyncio.sleep(_BUSY_PAUSE)

    async def _one_response(
        self, make_statement: Callable[[], Any], options: dict[str, Any]
    ) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def on_response(error: BaseException | None = None) -> None:
            # Called in the driver's thread. The caller's loop may be closed already.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, error)

        # In a thread, because the driver encodes the statement and may wait for a connection.
        response = await asyncio.to_thread(
            lambda: self._session.execute_async(make_statement(), **options)
        )
        response.add_callbacks(lambda _: on_response(), on_response)
        await done
        return response

    async def connected(self) -> None:
        """Connect, unless there is a session already."""
        if self._session is None:
            await asyncio.to_thread(self._open)

    def _open(self) -> None:
        with self._opening:
            if self._session is not None:
                return
            cluster = self.make_cluster()
            try:
                session = self._connect(cluster)
                self._prepared = {
                    name: session.prepare(cql)
                    for name, cql in self._cql.items()
                    if name not in self._schema
                }
            except BaseException:
                cluster.shutdown()
                raise
            self._cluster, self._session = cluster, session

    def _connect(self, cluster: Any) -> Any:
        """Return a session of the cluster. Raise ConfigurationError if it asks for TLS and the URL
        does not: it then closes each connection, as it does while it starts."""
        try:
            return cluster.connect()
        except NoHostAvailable as error:
            mismatch = self.url.tls is None and find_mismatch(self.url.hosts, False, b"")
            if not mismatch:
                raise
            refusal = f"{self.url.location} refused: {explain(mismatch)}"
            raise ConfigurationError(refusal) from error

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """Close the connections, as `close` does."""
        with self._opening:
            cluster, self._cluster, self._session = self._cluster, None, None
        if cluster is not None:
            cluster.shutdown()

    def make_cluster(self) -> Any:
        """Return a new cluster object of the driver, not connected; the caller shuts it down."""
        near = DCAwareRoundRobinPolicy(
            self.url.local_dc or "", used_hosts_per_remote_dc=self._far_hosts
        )
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(near),
            consistency_level=ConsistencyLevel.name_to_value[self.url.consistency],
            serial_consistency_level=_SERIAL[self.url.consistency],
            request_timeout=REQUEST_TIMEOUT,
            row_factory=tuple_factory,
        )
        login = (
            None
            if self.url.user is None
            else PlainTextAuthProvider(self.url.user, self.url.password)
        )
        return Cluster(
            self.url.hosts if self.url.tls is None else _named(self.url.hosts),
            auth_provider=login,
            ssl_context=self.url.tls and self.url.tls.make_context(),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            protocol_version=ProtocolVersion.V5,
            reconnection_policy=ExponentialReconnectionPolicy(0.5, 10.0, max_attempts=None),
            control_connection_timeout=_SCHEMA_SECONDS,
        )

    def translate_errors(self) -> contextlib.AbstractContextManager[None]:
        """Raise Fairlead's errors in place of the driver's."""
        return translated(self.url.location, self.url.keyspace)


class _NamedEndPoint(DefaultEndPoint):  # type: ignore[misc]
    """An address of a host in the URL, whose certificate must have the name of that host. The
    driver would ask for the address as name."""

    def __init__(self, address: str, port: int, name: str) -> None:
        super().__init__(address, port)
        self._name = name

    @property
    def ssl_options(self) -> dict[str, str]:
        return {"server_hostname": self._name}


def _named(hosts: Iterable[tuple[str, int]]) -> list[_NamedEndPoint]:
    """Return the addresses of all hosts. Raise UnresolvableContactPoints if there is none."""
    found: dict[Any, _NamedEndPoint] = {}
    failed: dict[str, OSError] = {}
    for host, port in hosts:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            failed[host] = error
            continue
        found |= {each[4]: _NamedEndPoint(str(each[4][0]), port, host) for each in addresses}
    if not found:
        raise UnresolvableContactPoints(failed)
    return list(found.values())
