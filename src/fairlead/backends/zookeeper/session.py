"""A ZooKeeper session that sends requests together and closes when its owner stops renewing it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Auth
from kazoo.protocol.states import Callback
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from fairlead.backends.zookeeper.failures import is_refused, translated
from fairlead.errors import ConfigurationError
from fairlead.urls import hosts_of, shown_url, split_url

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

KNOWN = "zookeeper://[user:password@]host[:2181][,host...][/folder]"
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

    @classmethod
    def of(cls, url: str) -> ZooKeeperEndpoint:
        """Parse a URL. Raise ConfigurationError, without the password in its text."""
        parts, where = split_url(url), f"URL {shown_url(url)}"
        login, _, hosts = parts.netloc.rpartition("@")
        folder = unquote(parts.path).rstrip("/")
        if not hosts or "//" in folder or parts.query or (login and ":" not in login):
            raise ConfigurationError(f"{where}: use {KNOWN}")
        hosts_of(where, hosts, 2181)
        return cls(hosts, folder or DEFAULT_FOLDER, unquote(login) or None)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server."""
        return hosts_of("the URL of ZooKeeper", self.hosts, 2181)

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
        for left in reversed(range(_TRIES_TO_CONNECT)):
            self.client = KazooClient(
                endpoint.hosts,
                timeout=seconds,
                handler=_ImpatientHandler(min(_RESPONSE_SECONDS, seconds / _TRIES_PER_SESSION)),
                default_acl=CREATOR_ALL_ACL if secret else None,
                auth_data=[("digest", secret)] if secret else None,
                connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0),
                logger=_kazoo_log,
            )
            self.client.add_listener(self._on_state)
            with (
                self._translate_errors(),
                contextlib.suppress(*((KazooTimeoutError,) if left else ())),
            ):
                self.client.start(_RESPONSE_SECONDS)
                break

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

    def _translate_errors(self) -> contextlib.AbstractContextManager[None]:
        return translated(str(self._endpoint), self._endpoint.folder, self._endpoint.addresses)


class _ImpatientHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, with a limit on each wait for a connection and for a handshake.

    kazoo waits for the whole session timeout, so one connection without a response costs the
    session and all its leases. With the limit, kazoo tries the next connection in time.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def select(self, readers: Any, writers: Any, errors: Any, timeout: float | None = None) -> Any:
        """Wait for sockets as `select.select` does; a wait for one socket has the limit."""
        # One socket: the rest of a handshake, a request or a response. kazoo's main loop waits for
        # two, and may wait longer.
        if len(readers) + len(writers) == 1:
            timeout = self._limited(timeout)
        return super().select(readers, writers, errors, timeout)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect within the limit, if the caller gives a longer `timeout` or none."""
        kwargs["timeout"] = self._limited(kwargs.get("timeout"))
        return super().create_connection(*args, **kwargs)

    def _limited(self, timeout: float | None) -> float:
        return self._seconds if timeout is None else min(timeout, self._seconds)
