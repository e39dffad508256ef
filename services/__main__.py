"""`python -m services postgres`: a real server for trying things out, until Ctrl-C."""

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
    """Start the named servers (all by default), print their URLs, wait for SIGINT or SIGTERM, stop
    them."""
    unknown = set(names) - SERVERS.keys()
    if unknown:
        print(
            f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SERVERS)}",
            file=sys.stderr,
        )
        return 2
    running: list[Server] = []
    # SIGINT too: a shell that starts us in the background has it ignored.
    for end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end, signal.default_int_handler)
    try:
        for name in names or SERVERS:
            server = SERVERS[name]()
            server.start()
            running.append(server)
            print(f"{name}: {server.url}", flush=True)
        print("Ctrl-C stops them", flush=True)
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
