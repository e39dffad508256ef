"""A ZooKeeper session that sends requests together and closes when its owner stops renewing it."""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Auth
from kazoo.protocol.states import Callback
from kazoo.retry import KazooRetry
from kazoo.security import ACL, make_digest_acl

from fairlead.backends.zookeeper.failures import is_refused, translated
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.tls import PARAMETERS, Tls, explain
from fairlead.urls import hosts_of, parameters_of, shown_url, split_url

log = logging.getLogger("fairlead.zookeeper")
_kazoo_log = logging.getLogger("fairlead.zookeeper.client")
# kazoo logs several lines for each try to connect; the session logs one line for each cause. At
# DEBUG kazoo logs every request, also the one with the password.
_kazoo_log.addFilter(
    lambda record: (
        (record.levelno >= logging.ERROR or _kazoo_log.getEffectiveLevel() <= logging.DEBUG)
        and not any(isinstance(each, Auth) for each in record.args or ())
    )
)

KNOWN = (
    "zookeeper://[user:password@]host[:2181][,host...][/folder][?sslmode=verify-full"
    "&sslrootcert=FILE&sslcert=FILE&sslkey=FILE]"
)
DEFAULT_FOLDER = "/fairlead"
_RESPONSE_SECONDS = 5.0
_TRIES_TO_CONNECT = 2
"""A server that is starting may accept a connection and never respond on it; the next connection
gets its response."""
_TRIES_PER_SESSION = 5
"""Connections that may stay without a response before the session expires."""


class ZooKeeperEndpoint(NamedTuple):
    """Servers, root folder and login of a zookeeper:// URL."""

    hosts: str
    """Comma-separated, each `host[:port]`."""
    folder: str
    """Path of the znode that contains all of ours."""
    credential: str | None
    """`user:password`, or None."""
    tls: Tls | None = None
    """Certificates, if the URL asks for TLS."""

    @classmethod
    def of(cls, url: str) -> ZooKeeperEndpoint:
        """Parse a URL. Raise ConfigurationError, without the password in its text."""
        parts, where = split_url(url), f"URL {shown_url(url)}"
        login, _, hosts = parts.netloc.rpartition("@")
        folder = unquote(parts.path).rstrip("/")
        if not hosts or "//" in folder or (login and ":" not in login):
            raise ConfigurationError(f"{where}: use {KNOWN}")
        hosts_of(where, hosts, 2181)
        tls = Tls.of(where, parameters_of(where, parts, PARAMETERS))
        return cls(hosts, folder or DEFAULT_FOLDER, unquote(login) or None, tls)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server."""
        return hosts_of("the URL of ZooKeeper", self.hosts, 2181)

    def make_acls(self) -> list[ACL] | None:
        """Return the access control list of all that we create: all rights for our login, and none
        for others; None without a login. A certificate alone gives no rights."""
        if self.credential is None:
            return None
        user, _, password = self.credential.partition(":")
        return [make_digest_acl(user, password, all=True)]

    def __str__(self) -> str:
        """Return the servers for logs and errors, without the password."""
        return f"ZooKeeper at {self.hosts}"

    def __repr__(self) -> str:
        """Return the servers, without the password."""
        return f"<ZooKeeperEndpoint of {self.hosts}>"


class Session:
    """One owner's session with ZooKeeper, usable from any thread.

    ZooKeeper deletes the ephemeral znodes of the session when the session closes, or when the
    server has had no message from it for `seconds`. The session also closes by itself when `renew`
    is not called in time.
    """

    def __init__(self, endpoint: ZooKeeperEndpoint, seconds: float) -> None:
        """Connect. Raise StoreUnavailable or ConfigurationError."""
        self._endpoint = endpoint
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self.is_closed = False
        self._connected = threading.Event()
        secret = endpoint.credential
        context = None if endpoint.tls is None else endpoint.tls.make_context()
        for left in reversed(range(_TRIES_TO_CONNECT)):
            self._handler = _ImpatientHandler(
                min(_RESPONSE_SECONDS, seconds / _TRIES_PER_SESSION), context
            )
            self.client = KazooClient(
                endpoint.hosts,
                timeout=seconds,
                handler=self._handler,
                default_acl=endpoint.make_acls(),
                auth_data=[("digest", secret)] if secret else None,
                connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0),
                logger=_kazoo_log,
            )
            self.client.add_listener(self._on_state)
            try:
                with self._translate_errors():
                    self.client.start(_RESPONSE_SECONDS)
                break
            except StoreUnavailable:
                if not left:
                    raise

    @property
    def id(self) -> int | None:
        """ZooKeeper's id of this session, or None before the first connection. After the loss of a
        session, the next one has another id."""
        known = self.client.client_id
        return None if known is None else int(known[0])

    def renew(self, seconds: float) -> None:
        """Close the session in `seconds`, unless this method is called again before.

        kazoo's own thread keeps a session alive even while the event loop that does the work
        hangs, so heartbeats to ZooKeeper alone do not prove that the owner works.
        """
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if not self.is_closed:
                self._timer = threading.Timer(seconds, self._close_unrenewed)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Close the session; ZooKeeper deletes its ephemeral znodes at once."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            if self._timer is not None:
                self._timer.cancel()
        self.client.stop()
        self.client.close()

    def send(self, requests: Sequence[Callable[..., Any]], *ignored: type[Exception]) -> list[Any]:
        """Send all requests at once and return their results, in the same order.

        A request that fails with an error of an `ignored` kind has that error as its result. Raise
        StoreUnavailable or ConfigurationError for any other error.
        """
        with self._translate_errors():
            # kazoo connects again by itself; with a new session if ZooKeeper has ended the old one.
            if not self._connected.wait(_RESPONSE_SECONDS):
                raise KazooTimeoutError
            sent = [request() for request in requests]
            return [self._result(each, ignored) for each in sent]

    def handle_events(self) -> None:
        """Wait until the watches have been called for all events that arrived before the last
        response. Raise StoreUnavailable."""
        handled = threading.Event()
        # kazoo calls watches in the order of their events, in a thread of their own.
        self.client.handler.dispatch_callback(Callback("watch", handled.set, ()))
        with self._translate_errors():
            if not handled.wait(_RESPONSE_SECONDS):
                raise KazooTimeoutError

    def make_folder(self, path: str) -> None:
        """Create the znode at `path` and its parents, unless they exist."""
        with self._translate_errors():
            self.client.ensure_path(path)

    def _on_state(self, state: str) -> None:
        fields = {"coordinator": str(self._endpoint)}
        if state == KazooState.CONNECTED:
            self._connected.set()
            return
        self._connected.clear()
        if self.is_closed:
            return
        if state == KazooState.SUSPENDED:
            log.warning("the connection to ZooKeeper is lost", extra=fields)
        else:
            log.warning("the session with ZooKeeper has expired; its leases are free", extra=fields)

    @staticmethod
    def _result(sent: Any, ignored: tuple[type[Exception], ...]) -> Any:
        try:
            found = sent.get(timeout=_RESPONSE_SECONDS)
        except ignored as error:
            return error
        for part in found if isinstance(found, list) else ():  # the results of a transaction
            if is_refused(part):
                raise part
        return found

    def _close_unrenewed(self) -> None:
        log.warning("leases released: their owner did not renew them in time")
        self.close()

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        where = self._endpoint
        with translated(str(where), where.folder, where.addresses, where.tls is not None):
            try:
                yield
            except (KazooTimeoutError, ConnectionLoss) as error:
                if (refused := self._handler.refusal) is not None:
                    raise ConfigurationError(f"{where} refused: {refused}") from error
                raise


class _ImpatientHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, with a limit on each wait for a connection and for a handshake.

    kazoo waits for the whole session timeout, so one connection without a response costs the
    session and all its leases. With the limit, kazoo tries the next connection in time.
    """

    def __init__(self, seconds: float, context: ssl.SSLContext | None) -> None:
        """Use TLS if there is a `context`."""
        super().__init__()
        self._seconds = seconds
        self._context = context
        if context is not None:
            context.sslsocket_class = _ReportingSocket
        self.refusal: str | None = None
        """Cause and cure of the last handshake, if it failed and no retry can mend it."""

    def select(self, readers: Any, writers: Any, errors: Any, timeout: float | None = None) -> Any:
        """Wait for sockets as `select.select` does; a wait for one socket has the limit."""
        # One socket: the rest of a handshake, a request or a response. kazoo's main loop waits for
        # two, and may wait longer.
        if len(readers) + len(writers) == 1:
            timeout = self._limited(timeout)
        return super().select(readers, writers, errors, timeout)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect within the limit, if the caller gives a longer `timeout` or none. Raise
        OSError."""
        kwargs["timeout"] = self._limited(kwargs.get("timeout"))
        connection = super().create_connection(*args, **kwargs)
        if self._context is None:
            return connection
        # Not kazoo's TLS, which would trust the authorities of the system beside ours.
        connection.settimeout(kwargs["timeout"])
        try:
            wrapped = self._context.wrap_socket(connection, server_hostname=kwargs["hostname"])
        except OSError as error:
            connection.close()
            self.refusal = explain(str(error))
            raise
        self.refusal = None
        assert isinstance(wrapped, _ReportingSocket)
        wrapped.on_failure = self._on_failure
        return wrapped

    def _on_failure(self, error: ssl.SSLError) -> None:
        # With TLS 1.3 a server reads our certificate after the handshake, and refuses it then.
        self.refusal = explain(str(error)) or self.refusal

    def _limited(self, timeout: float | None) -> float:
        return self._seconds if timeout is None else min(timeout, self._seconds)


class _ReportingSocket(ssl.SSLSocket):
    """A socket that reports its failed reads, which kazoo turns into lost connections."""

    on_failure: Callable[[ssl.SSLError], None]

    def recv(self, *args: int) -> bytes:
        """Read as `ssl.SSLSocket.recv` does. Raise OSError."""
        try:
            return super().recv(*args)
        except ssl.SSLError as error:
            self.on_failure(error)
            raise
