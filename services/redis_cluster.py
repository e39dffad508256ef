"""A Redis cluster of several servers, which share the slots."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

from services.process import free_port
from services.redis_group import MemberServer, wait_until

SLOTS = 16_384


class ClusterMember(MemberServer):
    """A server of a cluster."""

    def _prepare(self) -> None:
        super()._prepare()
        self.bus = free_port()  # the default, 10000 above the port, may be in use
        with Path(self.folder / "redis.conf").open("a") as settings:
            settings.write(
                f"cluster-enabled yes\ncluster-node-timeout 2000\ncluster-port {self.bus}\n"
            )


class RedisCluster:
    """A cluster of masters without replicas."""

    def __init__(self, password: str, servers: int = 3) -> None:
        """Start nothing yet. Raise MissingProgram."""
        self._password = password
        self.members = [ClusterMember(password) for _ in range(servers)]

    @property
    def url(self) -> str:
        """URL of the cluster."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"redis+cluster://:{self._password}@{hosts}"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            for member in self.members:
                started.enter_context(member)
            self._started = started.pop_all()
        count = len(self.members)
        for n, member in enumerate(self.members):
            with member.operator() as client:
                begin, end = SLOTS * n // count, SLOTS * (n + 1) // count - 1
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", begin, end)
                for other in self.members[:n]:
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus)
        self.wait_until_ok()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._started.close()

    def wait_until_ok(self) -> None:
        """Wait until every server knows all others and all slots."""
        for member in self.members:
            with member.operator() as client:
                wait_until(lambda client=client: len(client.cluster("NODES")) == len(self.members))
                wait_until(lambda client=client: client.cluster("INFO")["cluster_state"] == "ok")

    def flush(self) -> None:
        """Remove all keys."""
        for member in self.members:
            with member.operator() as client:
                client.flushall()

    def sizes(self) -> list[int]:
        """Return the number of keys of each server."""
        found = []
        for member in self.members:
            with member.operator() as client:
                found.append(client.dbsize())
        return found
