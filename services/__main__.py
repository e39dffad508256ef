"""Run a real server for experiments until Ctrl-C: `python -m services postgres`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from services import MissingProgram
from services.cassandra import CassandraServer
from services.kafka import KafkaServer
from services.postgres import PostgresServer
from services.redis import RedisServer
from services.server import Server
from services.zookeeper import ZooKeeperServer

SERVERS: dict[str, Callable[[], Server]] = {
    "postgres": PostgresServer,
    "redis": RedisServer,
    "zookeeper": ZooKeeperServer,
    "kafka": KafkaServer,
    "cassandra": CassandraServer,
}


def main(names: list[str]) -> int:
    """Start the named servers (all by default), print their URLs, and stop the servers at SIGINT or
    SIGTERM. Return the exit code."""
    unknown = set(names) - SERVERS.keys()
    if unknown:
        print(
            f"unknown server {', '.join(sorted(unknown))}; use one of {', '.join(SERVERS)}",
            file=sys.stderr,
        )
        return 2
    running: list[Server] = []
    # SIGINT too, because a shell makes programs in the background ignore SIGINT.
    for end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end, signal.default_int_handler)
    try:
        for name in names or SERVERS:
            server = SERVERS[name]()
            server.start()
            running.append(server)
            print(f"{name}: {server.url}", flush=True)
        print("press Ctrl-C to stop", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    except MissingProgram as missing:
        print(missing, file=sys.stderr)
        return 1
    finally:
        for server in reversed(running):
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
