"""A master of Redis with its replicas, and the Sentinels that name another master when it dies."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis import Redis

from services import MissingProgram
from services.redis import RedisServer
from services.server import Server

SERVICE = "tasks"
"""The name by which the Sentinels know the master."""

DOWN_AFTER = 500
"""Milliseconds of silence after which a Sentinel takes the master for dead."""

FAILOVER_MILLIS = 1_000
"""Milliseconds of a failover, at most. The Sentinels begin the next one after twice as many."""

_QUICK = ("info-period", "ping-period", "ask-period", "publish-period")
"""Intervals of a Sentinel, of 1 to 10 s, which would make a test wait for its next question."""


class Certificates:
    """A certificate for the loopback address, and the lines of a configuration that use it."""

    def __init__(self, folder: Path) -> None:
        """`folder`: with ca.pem, the certificate, and key.pem, its key."""
        self.ca, self._key = folder / "ca.pem", folder / "key.pem"

    def lines(self, port: int) -> str:
        """Return the lines for a server that speaks only TLS."""
        return (
            f"port 0\ntls-port {port}\ntls-cert-file {self.ca}\ntls-key-file {self._key}\n"
            f"tls-ca-cert-file {self.ca}\ntls-auth-clients no\ntls-replication yes\n"
        )


class MemberServer(RedisServer):
    """A server of a group, which can be master and replica."""

    def __init__(self, password: str, certificates: Certificates | None = None) -> None:
        super().__init__()
        self._password = password
        self._certificates = certificates

    def _prepare(self) -> None:
        super()._prepare()
        with Path(self.folder / "redis.conf").open("a") as settings:
            settings.write(f"masterauth {self._password}\nrepl-diskless-sync-delay 0\n")
            if self._certificates is not None:
                settings.write(self._certificates.lines(self._port))

    def _is_ready(self) -> bool:
        return _responds(self.operator) if self._certificates is not None else super()._is_ready()

    def operator(self) -> Any:
        """Return a client for the test itself."""
        return Redis(
            port=self.port,
            password=self._password,
            retry=None,
            socket_timeout=None,
            **_tls(self._certificates),
        )


class SentinelServer(Server):
    """One Sentinel, which needs a password of its own."""

    name = "sentinel"
    title = "Redis Sentinel"

    def __init__(self, group: RedisGroup) -> None:
        """Start nothing yet. Raise MissingProgram."""
        super().__init__()
        program = shutil.which("redis-server")
        if program is None:
            raise MissingProgram("Redis' server is missing: apt-get install redis-server")
        self._program = program
        self._group = group

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def operator(self) -> Any:
        """Return a client of this Sentinel."""
        return Redis(
            port=self.port,
            password=self._group.sentinel_password,
            retry=None,
            **_tls(self._group.certificates),
        )

    def _prepare(self) -> None:
        group = self._group
        settings = self.folder / "sentinel.conf"
        settings.touch(mode=0o600)
        settings.write_text(
            f"bind 127.0.0.1\nport {self._port}\ndir {self.folder}\n"
            f"requirepass {group.sentinel_password}\nsentinel sentinel-pass"
            f" {group.sentinel_password}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {group.master.port} {group.quorum}\n"
            f"sentinel auth-pass {SERVICE} {group.password}\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}\n"
            f"sentinel failover-timeout {SERVICE} {FAILOVER_MILLIS}\n"
        )
        if group.certificates is not None:
            with settings.open("a") as more:
                more.write(group.certificates.lines(self._port))

    def _command(self) -> list[str]:
        return [self._program, str(self.folder / "sentinel.conf"), "--sentinel"]

    def _is_ready(self) -> bool:
        return _responds(self.operator)


class RedisGroup:
    """A master, its replicas, and Sentinels."""

    def __init__(
        self,
        replicas: int = 1,
        sentinels: int = 1,
        certificates: Certificates | None = None,
    ) -> None:
        """Start nothing yet. Raise MissingProgram."""
        self.password = secrets.token_urlsafe(16)
        self.sentinel_password = secrets.token_urlsafe(16)
        self.quorum = sentinels // 2 + 1
        self.certificates = certificates
        self.members = [MemberServer(self.password, certificates) for _ in range(replicas + 1)]
        self.master = self.members[0]
        self._sentinels = [SentinelServer(self) for _ in range(sentinels)]

    @property
    def url(self) -> str:
        """URL of the master that the Sentinels name."""
        scheme = "redis+sentinel" if self.certificates is None else "rediss+sentinel"
        hosts = ",".join(sentinel.url for sentinel in self._sentinels)
        tls = "" if self.certificates is None else f"&ssl_ca_certs={self.certificates.ca}"
        return (
            f"{scheme}://:{self.password}@{hosts}/{SERVICE}/0"
            f"?sentinel_password={self.sentinel_password}{tls}"
        )

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            for member in self.members:
                started.enter_context(member)
            for member in self.members[1:]:
                self.follow(member)
            # A Sentinel learns of replicas when it first asks the master, and again after 10 s.
            for sentinel in self._sentinels:
                started.enter_context(sentinel)
            self._started = started.pop_all()
        for sentinel in self._sentinels:
            with sentinel.operator() as client:
                every = [word for name in _QUICK for word in (name, 100)]
                client.execute_command("SENTINEL", "DEBUG", *every)
        self.wait_for_sentinels()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._started.close()

    def follow(self, member: MemberServer) -> None:
        """Make the member a replica of the master, and wait until it has its data."""
        with member.operator() as client:
            client.replicaof("127.0.0.1", self.master.port)
            wait_until(lambda: client.info("replication").get("master_link_status") == "up")

    def named(self) -> MemberServer:
        """Return the member that the first Sentinel names as master."""
        with self._sentinels[0].operator() as client:
            port = client.sentinel_master(SERVICE)["port"]
        return next(member for member in self.members if member.port == port)

    def wait_for_new_master(self) -> MemberServer:
        """Wait until the Sentinel names another master, and return it."""
        before = self.master
        wait_until(lambda: self.named() is not before)
        self.master = self.named()
        return self.master

    def fail_over(self) -> MemberServer:
        """Kill the master, wait until the Sentinels name another one, and return it."""
        self.master.crash()
        return self.wait_for_new_master()

    def hand_over(self) -> MemberServer:
        """Let the Sentinels make a replica the master, while the master lives; return it."""
        with self._sentinels[0].operator() as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE)
        return self.wait_for_new_master()

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Let the Sentinels take no master for dead until the end of the block."""
        self._set_down_after(60_000)
        yield
        self._set_down_after(DOWN_AFTER)

    def _set_down_after(self, millis: int) -> None:
        for sentinel in self._sentinels:
            with sentinel.operator() as client:
                client.execute_command(
                    "SENTINEL", "SET", SERVICE, "down-after-milliseconds", millis
                )

    def repair(self) -> None:
        """Start the members that have died, make them replicas, and wait until all Sentinels know
        it. A slow machine may make the Sentinels replace a living master meanwhile."""
        for member in self.members:
            if member.pid is None:
                member.start()
        wait_until(self._is_repaired)

    def _is_repaired(self) -> bool:
        self.master = self.named()
        for member in self.members:
            if member is not self.master:
                with member.operator() as client:
                    state = client.info("replication")
                    if state.get("master_port") != self.master.port:
                        client.replicaof("127.0.0.1", self.master.port)
        return all(self._is_complete(each) for each in self._sentinels)

    def wait_for_sentinels(self) -> None:
        """Wait until every Sentinel knows the others, and every replica as one that may become
        master."""
        wait_until(lambda: all(self._is_complete(each) for each in self._sentinels))

    def _is_complete(self, sentinel: SentinelServer) -> bool:
        with sentinel.operator() as client:
            state = client.sentinel_master(SERVICE)
            replicas = client.sentinel_slaves(SERVICE)
        alive = {
            each["port"]
            for each in replicas
            if not each["is_sdown"] and each["master-link-status"] == "ok"
        }
        wanted = {member.port for member in self.members if member is not self.master}
        others = len(self._sentinels) - 1
        is_idle = "failover" not in str(state["flags"])
        return alive == wanted and is_idle and state["num-other-sentinels"] == others


def wait_until(is_so: Any) -> None:
    """Wait until the condition is true, at most a minute."""
    end = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > end:
            raise RuntimeError("the servers do not reach the wanted state")
        time.sleep(0.01)  # between questions to servers, which announce no state


def _responds(operator: Any) -> bool:
    with contextlib.suppress(Exception), operator() as client:
        return bool(client.ping())
    return False


def _tls(certificates: Certificates | None) -> dict[str, Any]:
    return {} if certificates is None else {"ssl": True, "ssl_ca_certs": str(certificates.ca)}
