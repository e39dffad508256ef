"""A session with ZooKeeper: requests sent together, and an end when its owner no longer shows that
it lives."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    ConnectionLoss,
    NoAuthError,
    OperationTimeoutError,
    SessionExpiredError,
    ZookeeperStoppedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from fairlead.errors import ConfigurationError, StoreUnavailable

log = logging.getLogger("fairlead.zookeeper")

KNOWN = "zookeeper://[user:password@]host[:2181][,host...][/folder]"
DEFAULT_FOLDER = "/fairlead"
_ANSWER_SECONDS = 5.0
_TRIES_TO_CONNECT = 2
"""A server that is starting may take a connection and never answer on it: the next one is
answered."""
_AWAY = (
    ConnectionLoss,
    ConnectionDropped,
    SessionExpiredError,
    OperationTimeoutError,
    ZookeeperStoppedError,
    KazooTimeoutError,
)


class Endpoint(NamedTuple):
    """Where the znodes are, and who we are there."""

    hosts: str
    folder: str
    credential: str | None

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """Raises ConfigurationError, without the password in its text."""
        parts = urlsplit(url)
        who, _, hosts = parts.netloc.rpartition("@")
        folder = unquote(parts.path).rstrip("/")
        if not hosts or "//" in folder or parse_qs(parts.query) or (who and ":" not in who):
            raise ConfigurationError(f"URL zookeeper://{hosts}{parts.path}: use {KNOWN}")
        return cls(hosts, folder or DEFAULT_FOLDER, unquote(who) or None)

    def __str__(self) -> str:
        """For people: without the password."""
        return f"ZooKeeper at {self.hosts}"


class Session:
    """One owner's session. What it has created as ephemeral is gone when it ends, or when ZooKeeper
    has not heard of it for `seconds`; and it ends by itself when `keep` is not called for as long.
    For any thread."""

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        """Connects. Raises StoreUnavailable, ConfigurationError."""
        self._endpoint = endpoint
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self.has_ended = False
        self._connected = threading.Event()
        secret = endpoint.credential
        for left in reversed(range(_TRIES_TO_CONNECT)):
            self.client = KazooClient(
                endpoint.hosts,
                timeout=seconds,
                default_acl=CREATOR_ALL_ACL if secret else None,
                auth_data=[("digest", secret)] if secret else None,
                connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0),
                logger=log,
            )
            self.client.add_listener(self._changed)
            with self._telling(), contextlib.suppress(*((KazooTimeoutError,) if left else ())):
                self.client.start(_ANSWER_SECONDS)
                break

    @property
    def id(self) -> int | None:
        """What ZooKeeper calls it; None while it has none. Another one after a loss."""
        known = self.client.client_id
        return None if known is None else int(known[0])

    def keep(self, seconds: float) -> None:
        """End it in so many seconds, unless this is called again: ZooKeeper hears of us as long as
        a thread of ours runs, also when the loop that does the work hangs."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if not self.has_ended:
                self._timer = threading.Timer(seconds, self._end_unkept)
                self._timer.daemon = True
                self._timer.start()

    def end(self) -> None:
        """Let go of everything that is ephemeral, now."""
        with self._lock:
            if self.has_ended:
                return
            self.has_ended = True
            if self._timer is not None:
                self._timer.cancel()
        self.client.stop()
        self.client.close()

    def ask(self, requests: Sequence[Callable[..., Any]], *ignored: type[Exception]) -> list[Any]:
        """Send all of these at once and wait for the answers; an error of an ignored kind is an
        answer. Raises StoreUnavailable, ConfigurationError, and what else ZooKeeper refuses."""
        with self._telling():
            # After a loss it comes back by itself, as another session.
            if not self._connected.wait(_ANSWER_SECONDS):
                raise KazooTimeoutError
            sent = [request() for request in requests]
            return [self._answer(each, ignored) for each in sent]

    def make_folder(self, path: str) -> None:
        """Make sure that the folder is there."""
        with self._telling():
            self.client.ensure_path(path)

    def _changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()

    @staticmethod
    def _answer(sent: Any, ignored: tuple[type[Exception], ...]) -> Any:
        try:
            return sent.get(timeout=_ANSWER_SECONDS)
        except ignored as error:
            return error

    def _end_unkept(self) -> None:
        log.warning("leases ended: nobody has renewed them in time")
        self.end()

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except _AWAY as error:
            raise StoreUnavailable(
                f"{self._endpoint} does not answer ({type(error).__name__})"
            ) from error
        except (NoAuthError, AuthFailedError) as error:
            raise ConfigurationError(
                f"{self._endpoint} lets us not into {self._endpoint.folder}:"
                " check user and password in its URL"
            ) from error
